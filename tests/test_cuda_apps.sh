#!/usr/bin/env bash
# The lessons on GPUs, here two emulated ones: they name the GPU, train as on the CPU, go on from a
# checkpoint to the same bits, and share a batch (make EMULATE=1 test).
. "$(dirname "$0")/tap.sh"
if [[ ${BUILD:-build/cc} != *-emulated* ]]; then
    echo 1..1
    echo 'not ok 1 - lessons on a GPU # SKIP make EMULATE=1 test'
    exit 0
fi
few=(--limit 4 --batch-size 4 --workers 1 --lr 0.0001)

# near NAME FOLDER FOLDER: there are steps, and their losses differ by 2 % at most in two runs
near() {
    paste -d, "$2/metrics.csv" "$3/metrics.csv" >"$work/out"
    awk -F, 'NR == 1 { second = NF / 2 + 2; next }
        $2 != "" || $second != "" { n++; d = $2 - $second
            if (d * d > (0.02 * $second) ^ 2 || /nan|inf/) bad = 1 }
        END { exit bad || n == 0 }' "$work/out"
    tap $? "$1" "$work/out"
}

works 'wine on the CPU' "$apps/wine_single" --epochs 5 --log-dir "$work/wine-cpu"
works 'wine on a GPU' "$apps/wine_single" --epochs 5 --device cuda --log-dir "$work/wine-gpu"
says 'the GPU is named' '^On cuda:0, emulated GPU 0'
near 'wine: the same losses' "$work/wine-gpu" "$work/wine-cpu"
works 'wine on a GPU again' "$apps/wine_single" --epochs 5 --device cuda --save "$work/eager" \
    --save-every-steps 7
works 'wine on a GPU, captured' "$apps/wine_single" --epochs 5 --device cuda --save "$work/graph" \
    --save-every-steps 7 --graph
says 'it says what it does' '^--graph: after three steps as ever they are recorded, and replayed by cuda:0'
says 'both shapes of batches are replayed' '^graph: 6 steps as ever, 2 recorded, 17 replayed$'
same 'captured: the same bits' "$work/eager/model_latest.safetensors" \
    "$work/graph/model_latest.safetensors"
works 'wine on the CPU, checked' "$apps/wine_single" --epochs 1 --graph
says 'it says what it does' '^--graph: a CPU has no graphs: steps run as ever'
says 'nothing is replayed' '^graph: 5 steps as ever, 0 recorded, 0 replayed$'
works 'wine on two GPUs, --graph, by way of the host' "$apps/wine_ddp_spawn" --epochs 2 \
    --device cuda --graph
says 'it says why not' '^graph: 6 steps as ever, 0 recorded, 0 replayed; .*goes by way of the host'
TANDEM_NCCL=emulated works 'wine on two GPUs, by NCCL' "$apps/wine_ddp_spawn" --epochs 5 \
    --device cuda --save "$work/eager2"
TANDEM_NCCL=emulated works 'wine on two GPUs, captured' "$apps/wine_ddp_spawn" --epochs 5 \
    --device cuda --graph --save "$work/graph2"
says 'it says what it does' '^--graph: .* replayed by cuda:0, if all ranks can'
says 'steps are replayed' '^graph: 6 steps as ever, 2 recorded, 7 replayed$'
same 'captured on two GPUs: the same bits' "$work/eager2/model_0.safetensors" \
    "$work/graph2/model_0.safetensors"
works 'wine on two GPUs, a process each' "$apps/wine_ddp_spawn" --epochs 2 --device cuda \
    --save "$work/spawned"
says 'it has been tested' '^Test: [0-9]+/36 right'

wine=$PWD/data/wine.csv
cd "$work" || exit 1 # away from data/cifar10
unset LC_ALL
works 'ResNet-18 on a GPU, two epochs' "$apps/cifar_resnet18" "${few[@]}" --device cuda:1 --epochs 2 \
    --save "$work/two" --log-dir "$work/gpu"
says 'the GPU is named' 'cuda:1, emulated GPU 1'
works 'one epoch' "$apps/cifar_resnet18" "${few[@]}" --device cuda --epochs 1 --save "$work/one"
works 'resumed for a second' "$apps/cifar_resnet18" --resume "$work/one" --epochs 2 --device cuda \
    --save "$work/one"
same 'resumed: the same bits' "$work/two" "$work/one"
works 'its pictures sent a batch at a time' "$apps/cifar_resnet18" "${few[@]}" --device cuda \
    --epochs 2 --streamed --save "$work/streamed" --log-dir "$work/streamed-log"
same 'streamed: the same bits' "$work/two" "$work/streamed"
cut -d, -f1-4,7- "$work/gpu/metrics.csv" >"$work/metrics"
cut -d, -f1-4,7- "$work/streamed-log/metrics.csv" | same 'streamed: the same metrics' "$work/metrics" -
works 'ResNet-18 on the CPU' "$apps/cifar_resnet18" "${few[@]}" --epochs 2 --log-dir "$work/cpu"
near 'ResNet-18: the same losses' "$work/gpu" "$work/cpu"

# --autotune: the engine that timing finds, from the second step on; a resumed run has its checkpoint's.
tuned=("$apps/cifar_resnet18" "${few[@]}" --device cuda --autotune)
works 'with choices by timing' "${tuned[@]}" --epochs 5 --save "$work/tuned"
says 'they are made' '^autotune: [1-9][0-9]* choices; [1-9][0-9]* timed in '
works 'two epochs' "${tuned[@]}" --epochs 2 --save "$work/part"
TANDEM_EMULATED_FASTEST=2 works 'other choices' "${tuned[@]}" --epochs 2 --save "$work/other"
! cmp -s "$work/part" "$work/other"
tap $? 'other bits'
TANDEM_EMULATED_FASTEST=2 works 'resumed where timing finds others' "$apps/cifar_resnet18" \
    --resume "$work/part" --epochs 5 --device cuda --save "$work/part"
same 'the same bits as the uninterrupted run' "$work/tuned" "$work/part"
works 'captured' "${tuned[@]}" --epochs 5 --save "$work/captured" --graph
says 'it is replayed' '^graph: 3 steps as ever, 1 recorded, 1 replayed$'
same 'the same bits' "$work/tuned" "$work/captured"
rank() { # rank N FASTEST SAVE: a shell command
    echo "env RANK=$1 LOCAL_RANK=$1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port" \
        "TANDEM_EMULATED_FASTEST=$2 timeout 300 $apps/cifar_ddp_launch ${few[*]} --device cuda --autotune" \
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

speedrun=("$apps/cifar_speedrun" --limit 100 --batch-size 20 --width 0.05 --workers 0 --epochs 4
    --plain-test --device cuda)
what_it_says() { # without the seconds
    sed -n 's/^\(== epoch.*loss: [0-9.]*\|== test: .*acc: *[0-9.]*\).*/\1/p' "$work/out"
}
for recipe in sgd muon; do # sgd: each fifth step looks ahead, as a kind of its own
    case $recipe in
    sgd) steps='10 steps as ever, 2 recorded, 8 replayed' ;;
    muon) steps='6 steps as ever, 2 recorded, 12 replayed' ;;
    esac
    works "the speed run on a GPU, $recipe" "${speedrun[@]}" --recipe $recipe
    what_it_says >"$work/said"
    works "captured" "${speedrun[@]}" --recipe $recipe --graph
    says 'anew from when the whitening is frozen' "^graph: $steps\$"
    what_it_says >"$work/said2"
    same 'captured: the same losses and answers' "$work/said" "$work/said2"
done

works 'wine in fp16' "$apps/wine_single" --epochs 5 --device cuda --precision fp16 \
    --log-dir "$work/wine-f16" --data "$wine"
says 'the first lines say fp16' 'fp16'
near 'wine in fp16: the same losses' "$work/wine-f16" "$work/wine-cpu"
works 'wine in fp16 again' "$apps/wine_single" --epochs 5 --device cuda --precision fp16 \
    --data "$wine" --save "$work/f16" --save-every-steps 7
works 'wine in fp16, captured' "$apps/wine_single" --epochs 5 --device cuda --precision fp16 \
    --data "$wine" --save "$work/f16-graph" --save-every-steps 7 --graph
says 'steps are replayed' '^graph: 6 steps as ever, 2 recorded, 17 replayed$'
same 'captured in fp16: the same bits' "$work/f16/model_latest.safetensors" \
    "$work/f16-graph/model_latest.safetensors"
fails 'a run in fp16 that is too short for its loss scale' 1 \
    'nothing was learned: .*all 1 steps .*--epochs' \
    "$apps/cifar_resnet18" "${few[@]}" --device cuda --epochs 1 --precision fp16 --graph
fails 'the same, not captured' 1 \
    'nothing was learned: .*all 1 steps .*--epochs' \
    "$apps/cifar_resnet18" "${few[@]}" --device cuda --epochs 1 --precision fp16

works '--profile and --trace on a GPU' "$apps/wine_single" --data "$wine" --device cuda --epochs 2 \
    --profile --profile-limits 100,10 --trace "$work/trace.json"
says 'the table has products of a layer' '^matmul +fc1 \(Linear\) +fwd +11 +[0-9]+\.[0-9]'
grep -q '"cuda:0"' "$work/trace.json"
tap $? 'the timeline has a lane of the GPU'

dp=("$apps/cifar_dp" "${few[@]}" --devices 2 --epochs 1)
works 'DataParallel over two GPUs' "${dp[@]}" --device cuda --log-dir "$work/dp-gpu"
works 'DataParallel over two CPU devices' "${dp[@]}" --log-dir "$work/dp-cpu"
near 'DataParallel: the same losses' "$work/dp-gpu" "$work/dp-cpu"
fails 'more GPUs than there are' 134 'cuda:2 cannot be used: there are 2 GPUs here' \
    "$apps/cifar_dp" --limit 8 --device cuda --devices 3 --epochs 1
done_testing
