#!/usr/bin/env bash
# tdrun --elastic with the training programs: processes are killed, rank 0 too, and replaced, and the run ends with the
# fingerprint and the checkpoint of an undisturbed one, with shards, too. KILLS=4 of cifar_resnet18 and gpt.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
# shellcheck source=tests/help/train_net.sh
. "$(dirname "$0")/../help/train_net.sh"
unset TANDEM_TEXT TANDEM_MESH
export OMP_NUM_THREADS=1
kills=${KILLS:-4}
cat nn/*.c >"$work/text.txt"
cd "$work" || exit 1
few_images
tdrun=$apps/tdrun
trap 'kill -KILL $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT

lines() { grep -acsE -- "$1" storm; }
until_lines() { # until_lines COUNT PATTERN: or the run is over
    while [ "$(lines "$2")" -lt "$1" ] && kill -0 "$launcher" 2>/dev/null; do
        sleep 0.01
    done
}
rank_0() { # it is the one that logs
    local pid
    for pid in $(pgrep -P "$launcher"); do
        ! readlink /proc/"$pid"/fd/* 2>/dev/null | grep -q 'log/metrics.csv$' || echo "$pid"
    done
}

# storm KILLS STEP PROGRAM ARGUMENT...: a run of three. After two steps more in the latest world one of its processes is
# killed: rank 0, then a random other, and so on.
storm() {
    local count=$1 step=$2 program=$3 n worlds victim
    rm -rf log
    : >storm # it is read at once
    "$tdrun" --elastic 1:3 "${@:3}" --log-dir log >>storm 2>&1 &
    launcher=$!
    for ((n = 1; n <= count; n++)); do
        until_lines $(($(lines "$step") + 2)) "$step"
        worlds=$(lines '^tandem: world [0-9]+ of ')
        victim=$(rank_0)
        [ $((n % 2)) -eq 1 ] || victim=$(pgrep -P $launcher -f "^$program" | shuf -n 1) # not its guard
        kill -KILL "$victim" 2>/dev/null || break # it is over
        until_lines $((worlds + 1)) '^tandem: world [0-9]+ of '
    done
    wait $launcher
    rc=$?
    made=$((n - 1))
    cp storm out
    test $rc -eq 0 -a $made -eq "$count" -a "$(lines '\[init\]')" -ge $((3 + count))
    tap $? "${program##*/}: of three processes $count are killed, one after the other, and replaced" out
}
fingerprint_of() { grep -a '^fingerprint' "$1" | sort -u; }
same_end() { # same_end EXPECTED: the fingerprint, and no step is logged twice
    fingerprint_of storm >now
    same 'with the fingerprint of an undisturbed run' "$1" now
    cut -d, -f1,2 log/metrics.csv | grep -v ',$' | tail -n +2 | cut -d, -f1 | sort -nuc 2>out
    tap $? 'no step was logged twice' out
}

# ---- cifar_resnet18 ----

cifar=$apps/cifar_resnet18
short=(--limit 64 --batch-size 4 --workers 1 --lr 0.002 --leaves 4 --clip-grad-norm 1 --ema 0.9 --print-every 1
    --test-every 2 --epochs $((2 * kills)))
works 'cifar_resnet18 on one process' "$cifar" "${short[@]}" --save one.st
fingerprint_of out >one
storm "$kills" '^== step' "$cifar" "${short[@]}" --save part.st
same_end one
same 'the same checkpoint, byte for byte' one.st part.st
works 'without averages' "$cifar" "${short[@]}" --ema 0
fingerprint_of out >plain
storm "$kills" '^== step' "$cifar" "${short[@]}" --ema 0 --shard parameters
same_end plain

# ---- gpt ----

few=(--data text.txt --preset 'gpt-nano layers=2 heads=2 width=32 context=32 dropout=0.1' --batch-size 2 --leaves 6
    --epochs "$kills" --epoch-steps 150 --print-every 1)
works 'gpt on one process' "$apps/gpt" "${few[@]}" --save one.st
fingerprint_of out >one
storm "$kills" '^step' "$apps/gpt" "${few[@]}" --save part.st
same_end one
same 'the same checkpoint, byte for byte' one.st part.st
storm "$kills" '^step' "$apps/gpt" "${few[@]}" --save part.st --shard optimizer
same_end one
works 'the checkpoint has equal tensors' "$apps/compare" one.st part.st

# Who stands still is skipped, and comes back like a new process when it goes on.
: >storm
"$tdrun" --elastic 1:3 "$apps/gpt" "${few[@]}" --shard gradients --timeout 1 >>storm 2>&1 &
launcher=$!
until_lines 3 '^step'
stopped=$(pgrep -P $launcher -f "^$apps/gpt" | tail -n 1)
kill -STOP "$stopped"
until_lines 1 '^tandem: world [0-9]+ of 2 '
kill -CONT "$stopped"
until_lines 1 '^tandem: world [0-9]+ of 3 '
wait $launcher
rc=$?
cp storm out
test $rc -eq 0 -a "$(lines '^tandem: world [0-9]+ of 3 ')" -ge 1
tap $? 'a process that was stopped comes back' out
fingerprint_of storm >now
same 'with the fingerprint of an undisturbed run' one now

# Of three processes any two are neighbours, of which one has the copy of the other's windows.
rm -rf log part.st
: >storm
"$tdrun" --elastic 1:3 --max-restarts 1 "$apps/gpt" "${few[@]}" --shard optimizer --save part.st --save-every-steps 20 \
    --auto-resume >>storm 2>&1 &
launcher=$!
until_lines 30 '^step'
pgrep -P $launcher -f "^$apps/gpt" | head -n 2 | xargs kill -KILL
wait $launcher
rc=$?
cp storm out
test $rc -eq 0 && grep -q 'and its copy have both died: start the run again from its latest checkpoint' storm &&
    grep -q '^resumed from part.st' storm
tap $? 'without a window and its copy the run goes on from the checkpoint, and says so' out
fingerprint_of storm >now
same 'to the same fingerprint' one now

# Rank 0 of a run of one is all that has the state: the newcomer asks for the checkpoint, from which all begin again.
rm -rf log part.st
: >storm
"$tdrun" --elastic 1:1 --max-restarts 1 "$apps/gpt" "${few[@]}" --log-dir log --save part.st --save-every-steps 20 --auto-resume \
    >>storm 2>&1 &
launcher=$!
until_lines 30 '^step'
kill -KILL "$(rank_0)"
wait $launcher
rc=$?
cp storm out
test $rc -eq 0 && grep -q 'start the run again from its latest checkpoint' storm && grep -q '^resumed from part.st' storm
tap $? 'without a process that has the state it goes on from the checkpoint, and says so' out
fingerprint_of storm >now
same 'to the same fingerprint' one now

# ---- train_net ----

make_folders pictures
net=("$apps/train_net" --cfg "$repository/apps/tools/config/resnet18.yaml" --leaves 3 TRAIN.DATASET pictures TEST.DATASET pictures
    MODEL.NUM_CLASSES 5 TRAIN.BATCH_SIZE 2 TEST.BATCH_SIZE 4 TRAIN.IM_SIZE 32 TEST.IM_SIZE 32 TEST.CROP_SIZE 32 TRAIN.WORKERS 1
    OPTIM.MAX_EPOCH 12 TRAIN.PRINT_FREQ 1 RNG_SEED 1)
works 'train_net on one process' "$tdrun" --nproc-per-node 1 "${net[@]}" OUT_DIR whole
fingerprint_of out >one.net
: >storm
"$tdrun" --elastic 2:3 "${net[@]}" --shard gradients OUT_DIR log >>storm 2>&1 &
launcher=$!
until_lines 3 'tested on'
kill -KILL "$(rank_0)"
wait $launcher
rc=$?
cp storm out
test $rc -eq 0 -a "$(lines '^tandem: world [0-9]+ of ')" -ge 1
tap $? 'train_net with --shard gradients: rank 0 of three is killed' out
fingerprint_of storm >now
same 'with the fingerprint of an undisturbed run' one.net now
works 'the same best model' "$apps/compare" whole/best log/best

# ---- what does not go with it ----

elastic=("$tdrun" --elastic 1:2)
fails 'without leaves' 1 'give --leaves N, at least as many as there are processes' "${elastic[@]}" "$cifar" --limit 64
fails 'with shards and averages' 1 'a step that a death undoes would leave them changed' "${elastic[@]}" "$cifar" --leaves 4 \
    --shard optimizer --ema 0.9
TANDEM_MESH=dp=2 fails 'with a mesh of the environment' 1 'with --mesh .or TANDEM_MESH.' "${elastic[@]}" "$cifar" --leaves 4
fails 'with slices' 1 "a dead process's stage or slice would be lost" "${elastic[@]}" "$apps/gpt" --leaves 4 --slices 2 --data text.txt
fails 'with stages' 1 "a dead process's stage or slice would be lost" "${elastic[@]}" "$apps/gpt" --leaves 4 --mesh pp=2 --data text.txt
fails 'with hashes of steps' 1 'with --hash-every' "${elastic[@]}" "$cifar" --leaves 4 --hash-every 1 --log-dir hashes
fails 'with a trace' 1 'with --trace or --report' "${elastic[@]}" "$cifar" --leaves 4 --trace trace.json
fails 'with timed choices' 1 'with --autotune' "${elastic[@]}" "$cifar" --leaves 4 --autotune
fails 'with a download' 1 'run the program once without tdrun' "${elastic[@]}" "$cifar" --leaves 4 --download
fails 'without a seed' 1 'set RNG_SEED' "${elastic[@]}" "${net[@]}" OUT_DIR other RNG_SEED None
fails 'a test' 1 'is for training' "${elastic[@]}" "$apps/test_net" --cfg "$repository/apps/tools/config/resnet18.yaml"
done_testing
