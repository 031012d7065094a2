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

# near_printed NAME FILE FILE: as many epochs, and printed losses that differ by 2 % at most
near_printed() {
    paste -d ' ' <(sed -n 's/^Epoch [0-9]*, Loss: //p' "$2") <(sed -n 's/^Epoch [0-9]*, Loss: //p' "$3") >"$work/out"
    awk 'NF != 2 || ($1 - $2) ^ 2 > (0.02 * $2) ^ 2 || /nan|inf/ { bad = 1 } END { exit bad || NR == 0 }' "$work/out"
    tap $? "$1" "$work/out"
}

ln -s "$PWD/data" "$work/data"
cd "$work" || exit 1
works 'wine on the CPU' "$apps/wine_single" 5
mv out wine-cpu
TANDEM_DEVICE=cuda works 'wine on a GPU' "$apps/wine_single" 5
mv out wine-gpu
near_printed 'wine: the same losses' wine-gpu wine-cpu
TANDEM_DEVICE=cuda works 'wine on two GPUs, a process each' "$apps/wine_ddp_spawn" 2
says 'it has been tested' '^Test: [0-9]+/36 right'
rm data # there is no CIFAR-10 here

# Steps of two shapes, of 4 and of 2 images.
app=$apps/cifar_resnet18
shapes=(--limit 6 --batch-size 4 --workers 1 --lr 0.0001 --epochs 5)
works 'steps of two shapes' "$app" "${shapes[@]}" --device cuda --save eager --save-every-steps 7
says 'the GPU is named' 'cuda:0, emulated GPU 0'
works 'captured' "$app" "${shapes[@]}" --device cuda --save graph --save-every-steps 7 --graph
says 'it says what it does' '^--graph: after three steps as ever they are recorded, and replayed by cuda:0'
says 'both shapes of batches are replayed' '^graph: 6 steps as ever, 2 recorded, 2 replayed$'
same 'captured: the same bits' eager graph
works 'on the CPU, checked' "$app" "${few[@]}" --epochs 2 --graph
says 'it says what it does' '^--graph: a CPU has no graphs: steps run as ever'
says 'nothing is replayed' '^graph: 2 steps as ever, 0 recorded, 0 replayed$'
works 'two GPUs, --graph, by way of the host' "$app" "${few[@]}" --spawn 2 --epochs 5 --device cuda --graph
says 'it says why not' '^graph: 5 steps as ever, 0 recorded, 0 replayed; .*goes by way of the host'
two=("$app" "${shapes[@]}" --limit 12 --spawn 2 --device cuda)
TANDEM_NCCL=emulated works 'two GPUs, by NCCL' "${two[@]}" --save eager2
TANDEM_NCCL=emulated works 'two GPUs, captured' "${two[@]}" --graph --save graph2
says 'it says what it does' '^--graph: .* replayed by cuda:0, if all ranks can'
says 'steps are replayed' '^graph: 6 steps as ever, 2 recorded, 2 replayed$'
same 'captured on two GPUs: the same bits' eager2 graph2

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
        "TANDEM_EMULATED_FASTEST=$2 timeout 300 $apps/cifar_resnet18 ${few[*]} --device cuda --autotune" \
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

four=("$app" --limit 4 --batch-size 4 --workers 1 --lr 0.01 --device cuda) # it can learn them by heart
half=("${four[@]}" --precision fp16 --epochs 10)
works 'fp16' "${half[@]}" --save f16 --log-dir f16-log
says 'the first lines say fp16' 'fp16'
loss_of() { sed -n "s|^== step: \[ *1/1\] \[ *$1/10\] . loss: *\([0-9.]*\) .*|\1|p" "$work/out"; }
awk -v first="$(loss_of 1)" -v last="$(loss_of 10)" 'BEGIN { exit !(last > 0 && last < first / 2) }'
tap $? 'it learns' "$work/out"
works 'the first step in fp32' "${four[@]}" --epochs 1 --log-dir f32-log
for log in f16-log f32-log; do # before the first update: later, rounding moves such small batches far apart
    mkdir -p "first-$log" && head -n 2 $log/metrics.csv >"first-$log/metrics.csv"
done
near 'fp16: the same loss in the first step' first-f16-log first-f32-log
works 'fp16, captured' "${half[@]}" --save f16-graph --graph
says 'steps are replayed' '^graph: 3 steps as ever, 1 recorded, 6 replayed$'
same 'captured in fp16: the same bits' f16 f16-graph
fails 'a run in fp16 that is too short for its loss scale' 1 \
    'nothing was learned: .*all 1 steps .*--epochs' \
    "$apps/cifar_resnet18" "${few[@]}" --device cuda --epochs 1 --precision fp16 --graph
fails 'the same, not captured' 1 \
    'nothing was learned: .*all 1 steps .*--epochs' \
    "$apps/cifar_resnet18" "${few[@]}" --device cuda --epochs 1 --precision fp16

works '--profile and --trace on a GPU' "$app" "${few[@]}" --device cuda --epochs 2 \
    --profile --profile-limits 100,10 --trace "$work/trace.json"
says 'the table has products of a layer' '^matmul +fc \(Linear\) +fwd +[0-9]+ +[0-9]+\.[0-9]'
grep -q '"cuda:0"' "$work/trace.json"
tap $? 'the timeline has a lane of the GPU'

dp=("$apps/cifar_resnet18" "${few[@]}" --dp 2 --epochs 1)
works 'DataParallel over two GPUs' "${dp[@]}" --device cuda --log-dir "$work/dp-gpu"
works 'DataParallel over two CPU devices' "${dp[@]}" --log-dir "$work/dp-cpu"
near 'DataParallel: the same losses' "$work/dp-gpu" "$work/dp-cpu"
lesson=("$apps/cifar_dp" --limit 4 --batch-size 4 --epochs 1)
TANDEM_DEVICE=cuda works 'the lesson over two GPUs' "${lesson[@]}"
step_of() { sed -n 's/^== step: .*loss: \([0-9.]*\).*/\1/p' "$work/out"; }
of_gpus=$(step_of)
works 'and over two CPU devices' "${lesson[@]}"
awk -v a="$of_gpus" -v b="$(step_of)" 'BEGIN { exit !(a > 0 && (a - b) ^ 2 < (0.02 * b) ^ 2) }'
tap $? 'the same loss' "$work/out"
fails 'more GPUs than there are' 134 'cuda:2 cannot be used: there are 2 GPUs here' \
    env TANDEM_DEVICE=cuda "$apps/cifar_dp" --limit 8 --devices 3 --epochs 1
done_testing
