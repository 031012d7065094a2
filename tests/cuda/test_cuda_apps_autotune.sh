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
says 'it is replayed' '^graph: 3 eager steps, 1 recorded, 1 replayed$'
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
done_testing
