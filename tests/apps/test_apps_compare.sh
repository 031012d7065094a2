#!/usr/bin/env bash
# compare: equal runs and checkpoints are equal; every flipped bit is found and named; files that
# are no checkpoints, and other models, are refused or told apart.
. "$(dirname "$0")/../help/tap.sh"
worker=$PWD/${BUILD:-build/cc}/tests/worker_hashes
compare=$apps/compare
cifar=("$apps/cifar_resnet18" --limit 8 --batch-size 4 --workers 0)
cd "$work" || exit 1
few_images

# ---- bits of weights, momentum, gradients, and means on their way ----

flips=200 steps=1000
[ -z "${SANITIZE:-}" ] || flips=20 steps=100
works "$flips runs with a flipped bit, two of $steps steps without" "$worker" runs $flips 5 $steps
works "no difference in $steps steps" "$compare" runs/long0 runs/long1
says 'it says so' "^runs/long0 and runs/long1 are equal in $steps hashed steps of 2 ranks\$"
found=0
for ((i = 0; i < flips; i++)); do
    IFS=$'\t' read -r step rank what name <"runs/flip$i/expected"
    "$compare" runs/clean "runs/flip$i" >found 2>&1
    if [ $? -eq 1 ] && grep -q "differ, first in step $step on rank $rank:$" found && grep -q "^  $what $name: " found; then
        found=$((found + 1))
    else
        echo "flip $i, expected step $step, rank $rank, $what $name" | cat - found >>missed
    fi
done
[ $found -eq $flips ]
tap $? "each flip is found and named ($found of $flips)" missed

# ---- runs of a program ----

mkdir one two other split shards
works 'a run' "${cifar[@]}" --epochs 2 --log-dir one --hash-every 1 --save one/run.safetensors --threads 1
last=$(tail -n 1 out)
works 'the same with other threads' "${cifar[@]}" --epochs 2 --log-dir two --hash-every 1 --save two/run.safetensors --threads 2
echo "$last" | grep -Eq '^fingerprint: [0-9a-f]{16}$' && [ "$(tail -n 1 out)" = "$last" ]
tap $? 'both end with one fingerprint' out
works 'they are equal' "$compare" one two
says 'in their steps' 'equal in 4 hashed steps of 1 rank$'
says 'and in their checkpoint' "^one/run.safetensors and two/run.safetensors are equal: .*${last#fingerprint: }\$"
works 'one epoch of it' "${cifar[@]}" --epochs 1 --log-dir split --hash-every 1 --save split/run.safetensors
head -n 1 one/hashes.tsv | sed 's/^1/99/' >>split/hashes.tsv
printf '3\tstep' >>split/hashes.tsv # steps behind the checkpoint, and half a line
works 'and the other' "${cifar[@]}" --epochs 2 --resume split/run.safetensors --log-dir split --hash-every 1 --save split/run.safetensors
works 'they are equal to the whole' "$compare" one split
works 'every third step' "${cifar[@]}" --epochs 2 --log-dir shards --hash-every 3
[ "$(cut -f 1 shards/hashes.tsv | sort -u)" = 3 ]
tap $? 'has one step of four'
works 'another rate' "${cifar[@]}" --epochs 2 --log-dir other --hash-every 1 --save other/run.safetensors --lr 0.02
"$compare" one other >out 2>&1
[ $? -eq 1 ] && grep -q '^  before optimizer.lr: ' out &&
    grep -Eq '^conv1.weight\[0,0,0,0\]: -?[0-9.e-]+ \(0x[0-9a-f]{8}\) and .*, and [0-9]+ other elements of 9408$' out
tap $? 'differs in step 1, and in an element' out

ways='none optimizer gradients parameters'
! shortened || ways='none parameters'
for shard in $ways; do
    mkdir $shard
    works "two processes, $shard" "${cifar[@]}" --spawn 2 --batch-size 2 --epochs 1 --accumulate 2 --shard $shard \
        --log-dir $shard --hash-every 1 --save $shard/run.safetensors
    works "$shard is equal to none" "$compare" none $shard
done

# A rank's operations are those of its leaves; all else does not depend on who had which.
mkdir leaves leaves2
cifar+=(--limit 16)
works 'a run of four leaves' "${cifar[@]}" --leaves 4 --batch-size 2 --epochs 1 --log-dir leaves --hash-every 1
works 'on two processes' "${cifar[@]}" --leaves 4 --batch-size 2 --epochs 1 --log-dir leaves2 --hash-every 1 --spawn 2
works 'is equal' "$compare" leaves leaves2
says 'in each step' 'equal in 2 hashed steps of 1 rank, operations apart'

fails 'no folder for hashes' 1 'hash-every writes into the folder of --log-dir' "${cifar[@]}" --hash-every 1

# ---- files of all kinds ----

python3 - <<'EOF'
import json, struct
def write(name, tensors, texts={}):
    header, data = {"__metadata__": texts} if texts else {}, b""
    for key, dtype, shape, values in tensors:
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    open(name, "wb").write(struct.pack("<Q", len(text)) + text + data)
u32 = lambda *v: struct.pack("<%dI" % len(v), *v)
u16 = lambda *v: struct.pack("<%dH" % len(v), *v)
write("nan", [("w", "F32", [2, 2], u32(0, 1, 0x7fc00000, 3))])
write("nan2", [("w", "F32", [2, 2], u32(0, 1, 0x7fc00001, 3))])
write("zero", [("w", "F32", [2, 2], u32(0x80000000, 1, 0x7fc00000, 3))])
write("wide", [("w", "F32", [4], u32(0, 1, 0x7fc00000, 3))])
write("name", [("v", "F32", [2, 2], u32(0, 1, 0x7fc00000, 3))])
write("half", [("h", "F16", [2], u16(0x3c00, 0x3c01)), ("b", "BF16", [2], u16(0x3f80, 0x3f81))])
write("half2", [("h", "F16", [2], u16(0x3c00, 0x3c02)), ("b", "BF16", [2], u16(0x3f80, 0x3f81))])
write("bool", [("m", "BOOL", [1], b"\1")])
write("scalar", [("s", "I64", [], b"\5\0\0\0\0\0\0\0")])
write("scalar2", [("s", "I64", [], b"\6\0\0\0\0\0\0\0")])
write("empty", [("e", "F32", [0, 3], b"")])
write("said", [("w", "F32", [1], u32(1))], {"tandem.fingerprint": "0123456789abcdef"})
write("drawn", [("w", "F32", [1], u32(1))], {"random.default": "1 2"})
write("drawn2", [("w", "F32", [1], u32(1))], {"random.default": "1 3"})
open("text", "w").write("no checkpoint\n")
EOF
differs() { # differs NAME PATTERN A B
    "$compare" "$3" "$4" >out 2>&1
    [ $? -eq 1 ] && grep -qE -- "$2" out
    tap $? "$1" out
}
works 'NaNs of the same bits' "$compare" nan nan
differs 'NaNs of other bits' '^w\[1,0\]: nan \(0x7fc00000\) and nan \(0x7fc00001\), and 0 other elements of 4$' nan nan2
differs 'zeros of other signs' '^w\[0,0\]: 0 \(0x00000000\) and -0 \(0x80000000\)' nan zero
differs 'other shapes' '^w: f32\[2,2\] and f32\[4\]: other models$' nan wide
differs 'other names' '^only nan has w$' nan name
differs 'numbers of 16 bits' '^h\[1\]: 1.00097656 \(0x3c01\) and 1.00195312 \(0x3c02\)' half half2
differs 'a single number' '^s\[\]: 5 \(0x0+5\) and 6' scalar scalar2
differs 'texts' "^random.default: '1 2' and '1 3'\$" drawn drawn2
works 'no elements' "$compare" empty empty
fails 'a file of another library' 2 "tensor 'm' is BOOL" "$compare" bool bool
fails 'content that is not what was saved' 2 "'said' has changed since it was saved" "$compare" said said
fails 'no checkpoint' 2 "'text' cannot be used" "$compare" nan text
head -c 30 nan >short
fails 'a file that was cut' 2 "'short' cannot be used" "$compare" short nan
fails 'no such file' 2 'nowhere' "$compare" nan nowhere
fails 'a file and a folder' 2 'one is a folder, the other is not' "$compare" nan one
mkdir nothing
fails 'a folder without anything to compare' 2 'have neither hashes of steps' "$compare" one nothing
for line in 'x' '1	a' '0	a	b	0123456789abcdef' '1	a	b	0123'; do
    mkdir -p bad
    echo "$line" >bad/hashes.tsv
    fails "a line '$line'" 2 'hashes.tsv, line 1: ' "$compare" bad bad
done
head -c 100 one/hashes.tsv >bad/hashes.tsv
differs 'a run that ended early' 'only one/hashes.tsv has this step' one bad
fails 'one argument' 64 'two runs or two checkpoints' "$compare" nan

done_testing
