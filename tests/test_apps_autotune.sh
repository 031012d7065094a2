#!/usr/bin/env bash
# --autotune on CPUs: choices are timed once and kept in a file, where the next run finds them; they
# are rank 0's on all ranks; a resumed run has those of its checkpoint; a damaged file is replaced.
# run: plain
. "$(dirname "$0")/tap.sh"
few=(--limit 48 --batch-size 16 --workers 1 --winograd --autotune)
tools=$PWD/tests
cd "$work" || exit 1
unset TANDEM_DATA # synthetic pictures
export TANDEM_CACHE=$work/cache

works 'two epochs' "$apps/cifar_resnet18" "${few[@]}" --epochs 2 --save whole
says 'it times them' '^autotune: [1-9][0-9]* choices; [1-9][0-9]* timed in [0-9.]+ s, 0 of earlier runs$'
file=$(echo cache/plans-*-2-threads.txt)
test -s "$file"
tap $? 'there is a file for two threads'
grep -qE '^(winograd|direct) \(direct [0-9.]+ ms, winograd [0-9.]+ ms\)$' "$file"
tap $? 'it says what was measured'
cp "$file" first
works 'the same again' "$apps/cifar_resnet18" "${few[@]}" --epochs 2 --save again
says 'it finds them' '^autotune: [1-9][0-9]* choices; 0 timed in 0.0 s, [1-9][0-9]* of earlier runs$'
same 'the file is left alone' "$file" first
same 'the same bits' whole again

python3 "$tools/flip_choices.py" "$file"
works 'with the opposite choices' "$apps/cifar_resnet18" "${few[@]}" --epochs 2 --save other
! cmp -s whole other
tap $? 'other bits: they decide'

# What is resumed has the checkpoint's choices: the file now says the opposite.
works 'the opposite choices, one epoch' "$apps/cifar_resnet18" "${few[@]}" --epochs 1 --save part
python3 "$tools/flip_choices.py" "$file"
works 'resumed, where the file says otherwise' "$apps/cifar_resnet18" --resume part --epochs 2 \
    --save part --threads 1
! grep -q autotune: out
tap $? 'nothing is chosen anew' out
same 'resumed: the same bits as the uninterrupted run' other part
works 'in mid-epoch, after one step' "$apps/cifar_resnet18" "${few[@]}" --epochs 1 --save early \
    --save-every-steps 1 --limit 16
works 'a run of one step, resumed' "$apps/cifar_resnet18" --resume early --epochs 2 --save early
works 'not stopped' "$apps/cifar_resnet18" "${few[@]}" --epochs 2 --save late --limit 16
same 'the same bits' late early

# Two ranks, whose files say opposite things.
mkdir one two
export OMP_NUM_THREADS=1
TANDEM_CACHE=$work/one works 'one thread' "$apps/cifar_resnet18" "${few[@]}" --epochs 1 --save alone
cp one/* two
python3 "$tools/flip_choices.py" two/plans-*
rank() { # rank N CACHE SAVE: a shell command
    echo "env RANK=$1 LOCAL_RANK=$1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port" \
        "TANDEM_CACHE=$work/$2 timeout 300 $apps/cifar_resnet18 ${few[*]} --epochs 1 --save $3"
}
pair() { # pair SAVE CACHE CACHE: of rank 0 and rank 1
    port=$(free_port)
    together "two ranks: $1" "$(rank 0 "$2" "$1")" "$(rank 1 "$3" "$1.1")"
}
pair both one one
says 'one rank speaks' '^autotune: [1-9][0-9]* choices; 0 timed in 0.0 s, [1-9][0-9]* of earlier runs$'
test "$(grep -c '^autotune:' out)" = 1
tap $? 'only one' out
pair first_says one two
same 'rank 1 does what rank 0 has chosen' both first_says
pair second_says two one
! cmp -s both second_says
tap $? 'not what rank 1 has'
pair control two two
same 'but rank 0' control second_says
export OMP_NUM_THREADS=2

head -c 200 "$file" >cut && cp cut "$file"
works 'a damaged file' "$apps/cifar_resnet18" "${few[@]}" --epochs 1 --limit 16 --save none
says 'it is named' "^tandem: the kept plans are not used, and made anew: .*$file: line [0-9]+: "
says 'they are timed again' '^autotune: [1-9][0-9]* choices; [1-9][0-9]* timed'
works 'and kept' "$apps/cifar_resnet18" "${few[@]}" --epochs 1 --limit 16 --save none
says 'for the next run' '; 0 timed in 0.0 s'
TANDEM_CACHE=off works 'without a file' "$apps/cifar_resnet18" "${few[@]}" --epochs 1 --limit 16 --save none
says 'they are timed' '; [1-9][0-9]* timed'
: >blocked
TANDEM_CACHE=$work/blocked works 'no folder' "$apps/cifar_resnet18" "${few[@]}" --epochs 1 --limit 16 \
    --save none
says 'it is said' '^tandem: plans cannot be kept for the next run: '

works 'without --winograd' "$apps/cifar_resnet18" --limit 16 --batch-size 16 --epochs 1 --autotune --save none
says 'there is nothing to choose' '^autotune: nothing to choose: a CPU has two ways only for 3x3'
done_testing
