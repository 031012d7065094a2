#!/usr/bin/env bash
# --autotune on emulated GPUs: choices by timing, eager, resumed, captured, and by two ranks that would choose
# otherwise (make EMULATE=1 test).
. "$(dirname "$0")/cuda_apps.sh"
cd "$work" || exit 1

# --autotune: the engine that timing finds, from the second step on; a resumed run has its checkpoint's.
tuned=("$app" "${few[@]}" --device cuda --autotune)
works 'with choices by timing' "${tuned[@]}" --epochs 5 --save "$work/tuned"
says 'they are made' '^autotune: [1-9][0-9]* choices; [1-9][0-9]* timed in '
works 'two epochs' "${tuned[@]}" --epochs 2 --save "$work/part"
TANDEM_EMULATED_FASTEST=2 works 'other choices' "${tuned[@]}" --epochs 2 --save "$work/other"
! cmp -s "$work/part" "$work/other"
tap $? 'other bits'
TANDEM_EMULATED_FASTEST=2 works 'resumed where timing finds others' "$app" \
    --resume "$work/part" --epochs 5 --device cuda --save "$work/part"
same 'the same bits as the uninterrupted run' "$work/tuned" "$work/part"
works 'captured' "${tuned[@]}" --epochs 5 --save "$work/captured" --graph
says 'it is replayed' '^graph: 3 steps as ever, 1 recorded, 1 replayed$'
same 'the same bits' "$work/tuned" "$work/captured"
rank() { # rank N FASTEST SAVE: a shell command
    echo "env RANK=$1 LOCAL_RANK=$1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port" \
        "TANDEM_EMULATED_FASTEST=$2 timeout 300 $app ${few[*]} --device cuda --autotune" \
        "--epochs 2 --save $3"
}
pair() { # pair FASTEST FASTEST: of rank 0 and rank 1
    port=$(free_port)
    together "two ranks, $1 and $2" "$(rank 0 "$1" "$work/pair$1$2")" "$(rank 1 "$2" "$work/pair$1$2.1")"
}
pair 1 1
pair 1 2
pair 2 1
same 'rank 1 does what rank 0 has chosen' "$work/pair11" "$work/pair12"
! cmp -s "$work/pair11" "$work/pair21"
tap $? 'not what it would have chosen itself'

# The file of earlier runs.
once=("${tuned[@]}" --epochs 1 --save none)
export TANDEM_CACHE=$work/cache
works 'with a file' "${once[@]}"
file=$(echo cache/plans-*.txt)
works 'the same again' "${once[@]}"
says 'it finds them' '^autotune: [1-9][0-9]* choices; 0 timed in 0.0 s, [1-9][0-9]* of earlier runs$'
head -c 200 "$file" >cut && cp cut "$file"
works 'a damaged file' "${once[@]}"
says 'it is named' "^tandem: the kept plans are not used, and made anew: .*$file: line [0-9]+: "
says 'they are timed again' '^autotune: [1-9][0-9]* choices; [1-9][0-9]* timed'
TANDEM_CACHE=off works 'without a file' "${once[@]}"
says 'they are timed' '; [1-9][0-9]* timed'
: >blocked
TANDEM_CACHE=$work/blocked works 'no folder' "${once[@]}"
says 'it is said' '^tandem: plans cannot be kept for the next run: '
done_testing
