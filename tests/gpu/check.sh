#!/usr/bin/env bash
# Everything that needs a GPU, in stages of falling value, each under its own time limit, all of it in
# under ten minutes. The last thing printed is a table, whatever happens. docs/gpu-check.md explains.
#
#     make gpu-check                  in a checkout
#     bash tests/gpu/check.sh         in an unpacked kit (make gpu-kit)
#
# GPU_CHECK_OUT=DIR   where the table, device.json and logs.tar.gz go (build/gpu-check)
# DEVICE=cuda:0       the GPU
# BUDGET=540          seconds for all stages
# STAGES="NCCL sanitizer"    only the stages whose names contain one of the words
# PYTHON=...          a python with torch, for the comparison and its CUDA libraries
# EMULATE=1           a trial of this script on the emulated GPU: smaller sizes
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build/cc} OUT=${GPU_CHECK_OUT:-build/gpu-check} DEVICE=${DEVICE:-cuda:0} BUDGET=${BUDGET:-540}
EMULATE=${EMULATE:-}
[ ! -d lib ] || export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} # of a kit
begin=$EPOCHREALTIME
mkdir -p "$OUT" || exit 1
rm -f "$OUT"/*.log "$OUT"/table.txt
rows=() bad=0 met=
check=$BUILD/tests/gpu/check

since() { awk "BEGIN { printf \"%.0f\", $EPOCHREALTIME - $1 }"; }

row() { # row STATE STAGE SECONDS TEXT
    rows+=("$(printf '%-8s %-22s %4s s  %s' "$1" "$2" "$3" "$4")")
    printf '%s\n' "${rows[-1]}"
    [ "$1" != FAILED ] || bad=$((bad + 1))
}

table() { # runs last, whatever has happened
    local left=$?
    trap - EXIT
    {
        printf '\ntandem gpu-check, %s, %s\n' "$(date -u +%Y-%m-%dT%H:%MZ)" "${gpu:-no GPU seen}"
        [ "${#rows[@]}" -eq 0 ] || printf '%s\n' "${rows[@]}"
        if [ $left -ne 0 ]; then echo "ended before all stages had run (code $left)"; fi
        printf '%s stages, %d failed, %s s; logs in %s\n' "${#rows[@]}" "$bad" "$(since "$begin")" "$OUT"
    } | tee "$OUT/table.txt"
    # Named files: the folder itself changes while the archive is written into it.
    # shellcheck disable=SC2046 # no name has a space
    (cd "$OUT" && tar -czf logs.tar.gz $(ls -d -- *.log table.txt device.json 2>/dev/null))
    exit $((bad > 0 || left != 0)) # in a trap, exit alone has the code from before the trap
}
trap table EXIT
trap 'exit 130' INT TERM HUP

is_wanted() { # is_wanted STAGE
    local word
    for word in ${STAGES:-}; do
        if [[ $1 == *"$word"* ]]; then
            met+=" $word "
            return 0
        fi
    done
    [ -z "${STAGES:-}" ]
}

skipped() { # skipped STAGE WHY
    ! is_wanted "$1" || row skipped "$1" 0 "$2"
}

stage() { # stage NAME LIMIT COMMAND...: the last line of its output goes into the table. 77: skipped
    local name=$1 limit=$2 start=$EPOCHREALTIME left rc text log
    shift 2
    is_wanted "$name" || [ "$name" = program ] || [ "$name" = info ] || return 1
    log=$OUT/$(echo "$name" | tr ' /' '--').log
    left=$((BUDGET - $(since "$begin")))
    if [ $left -lt 5 ]; then
        row 'no time' "$name" 0 "the $BUDGET seconds are used up"
        return 1
    fi
    [ "$limit" -le $left ] || limit=$left
    timeout --kill-after=5 "$limit" "$@" >"$log" 2>&1 </dev/null
    rc=$?
    text=$(grep -v '^ *$' "$log" | tail -n 1 | cut -c 1-150)
    [ $rc -ne 124 ] || text="$(grep '^tandem, ' "$log" | tail -n 1 | cut -c 1-150) $text"
    case $rc in
    0) row ok "$name" "$(since "$start")" "$text" ;;
    77) row skipped "$name" "$(since "$start")" "$text" ;;
    124 | 137) row FAILED "$name" "$(since "$start")" "longer than $limit s; $text" ;;
    *) row FAILED "$name" "$(since "$start")" "code $rc: $(grep -m 1 FAIL "$log" | cut -c 1-110) $text" ;;
    esac
    return $rc
}

# ---- what there is ----

python_with_torch() {
    local p
    for p in ${PYTHON:-} python3 /usr/bin/python3 build/venv/bin/python /opt/conda/bin/python; do
        if timeout 60 "$p" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null; then
            echo "$p"
            return
        fi
    done
}

# The folders of that python's CUDA libraries, as TANDEM_CUDA_LIBRARIES wants them: used only where the
# usual search finds no cuDNN.
wheel_folders() {
    "$1" -c 'import glob, site, sys
roots = site.getsitepackages() + [site.getusersitepackages()] + sys.path
print(":".join(sorted({d for r in roots if r for d in glob.glob(r + "/nvidia/*/lib")})))' 2>/dev/null
}

program() { # the carried program if it starts here, otherwise one built here
    local rc
    "$check" >/dev/null 2>&1
    rc=$?
    if [ $rc -eq 64 ] || [ $rc -eq 1 ]; then # its usage, or no GPU: it starts
        echo "$check"
        return 0
    fi
    echo "the carried program does not start here; building"
    "$check" 2>&1 | head -n 3
    make -j"$(nproc)" "$check" ${EMULATE:+EMULATE=1} && echo "$check, built here"
}

python=$(python_with_torch)
export -f program
export check BUILD EMULATE
if ! stage program 240 bash -c program; then
    row FAILED 'all else' 0 'there is no program to check with'
    exit 1
fi
if [ -z "$EMULATE" ]; then
    if ! "$check" --device "$DEVICE" info "$OUT/device.json" >/dev/null 2>&1 && [ -n "$python" ]; then
        folders=$(wheel_folders "$python")
        [ -z "$folders" ] || export TANDEM_CUDA_LIBRARIES=$folders
    fi
    size=8192 times=1000 batch=32 steps=20 graph="32 12" graph_limit=60
else
    size=128 times=10 batch=32 steps=2 graph="2 5" graph_limit=180
fi
export TANDEM_CACHE=$OUT/cache
run() { # run NAME LIMIT ARGUMENTS OF check
    local name=$1 limit=$2
    shift 2
    stage "$name" "$limit" "$check" --device "$DEVICE" "$@"
}

run 'info' 40 info "$OUT/device.json" || true
gpu=$(sed -n 's/^cuda:[0-9]*: //p' "$OUT/info.log" | head -n 1)
if ! grep -q '^cuda:' "$OUT/info.log"; then
    exit 1 # the GPU cannot be used: the table says why
fi

# ---- in order of value ----

run 'operations fp32' 150 ops fp32 # the first to load cuDNN, about 1 GB, perhaps from a cold disk
run 'operations bf16' 60 ops bf16
run 'bits' 30 bits
run 'training fp32' 60 train fp32 $batch $steps
run 'training bf16' 60 train bf16 $batch $steps
# shellcheck disable=SC2086
run 'captured fp32' $graph_limit graph fp32 $graph
# shellcheck disable=SC2086
run 'captured bf16' $graph_limit graph bf16 $graph
run 'operations tf32' 60 ops tf32
run 'operations fp16' 60 ops fp16
# shellcheck disable=SC2086
run 'captured fp16' $graph_limit graph fp16 $graph
run 'ceilings' 40 ceilings $size
run 'large' 60 large $times

throughput() { # throughput NAME LIMIT [--ways WAYS] MODEL STEM SIZE CLASSES BATCH STEPS
    local name=$1 limit=$2
    shift 2
    stage "$name" "$limit" python3 tests/gpu/throughput.py --check "$check" --device "$DEVICE" \
        ${python:+--torch "$python"} "$@"
}
if ! command -v python3 >/dev/null; then
    skipped throughput 'there is no python3'
elif [ -z "$EMULATE" ]; then
    throughput 'resnet18 32 b256' 120 --ways graph,eager resnet18 imagenet 32 10 256 100
    throughput 'resnet18 cifar b512' 80 --ways graph,eager resnet18 cifar 32 10 512 20
    throughput 'resnet50 224 b128' 90 --ways graph,eager resnet50 imagenet 224 1000 128 10
else
    throughput 'resnet18 32 b2' 240 resnet18 imagenet 32 10 2 1
fi

stage sanitizer 120 bash tests/gpu/sanitize.sh "$check" "$DEVICE"

train=$BUILD/apps/cifar_resnet18
if [ -n "${TANDEM_DATA:-}" ] && [ -x "$train" ]; then
    few=
    [ -z "$EMULATE" ] || few='--limit 16 --batch-size 8 --epochs 1'
    for precision in fp32 bf16; do
        # shellcheck disable=SC2086
        stage "CIFAR-10 $precision" 60 "$train" --device "$DEVICE" --precision $precision $few
    done
    [ -n "$EMULATE" ] || stage 'CIFAR-10 to 94 %' 90 "$BUILD/apps/cifar_speedrun" --device "$DEVICE" --precision bf16 --runs 25
else
    skipped CIFAR-10 'TANDEM_DATA does not name the folder with its files'
fi
if [ -n "$EMULATE" ]; then
    skipped NCCL 'the emulated GPU has none'
elif ! grep -q '^NCCL: /' "$OUT/info.log"; then
    skipped NCCL "$(grep -m 1 '^NCCL' "$OUT/info.log" | cut -c 1-100)"
else
    # Last: what a lost rank leaves behind disturbs nobody.
    stage NCCL 240 bash tests/gpu/nccl.sh "$BUILD"
fi
if [ -z "$EMULATE" ] && command -v python3 >/dev/null; then
    # torch.compile takes one to two minutes where its cache is empty
    throughput 'resnet18 32 b256 compiled' 200 --ways compile resnet18 imagenet 32 10 256 100
fi
for word in ${STAGES:-}; do
    [[ $met == *" $word "* ]] || row FAILED "$word" 0 'no stage has this word in its name'
done
exit 0
