#!/usr/bin/env bash
# The lessons and the main job on GPUs, here two emulated ones: they name the GPU, train as on the CPU, go
# on from a checkpoint to the same bits, learn in fp16, and share a batch (make EMULATE=1 test).
. "$(dirname "$0")/cuda_apps.sh"

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

unset LC_ALL
works 'ResNet-18 on a GPU, two epochs' "$app" "${few[@]}" --device cuda:1 --epochs 2 \
    --save "$work/two" --log-dir "$work/gpu"
says 'the GPU is named' 'cuda:1, emulated GPU 1'
works 'one epoch' "$app" "${few[@]}" --device cuda --epochs 1 --save "$work/one"
works 'resumed for a second' "$app" --resume "$work/one" --epochs 2 --device cuda \
    --save "$work/one"
same 'resumed: the same bits' "$work/two" "$work/one"
works 'its pictures sent a batch at a time' "$app" "${few[@]}" --device cuda \
    --epochs 2 --streamed --save "$work/streamed" --log-dir "$work/streamed-log"
same 'streamed: the same bits' "$work/two" "$work/streamed"
cut -d, -f1-4,7- "$work/gpu/metrics.csv" >"$work/metrics"
cut -d, -f1-4,7- "$work/streamed-log/metrics.csv" | same 'streamed: the same metrics' "$work/metrics" -
works 'ResNet-18 on the CPU' "$app" "${few[@]}" --epochs 2 --log-dir "$work/cpu"
near 'ResNet-18: the same losses' "$work/gpu" "$work/cpu"

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
says 'steps are replayed' '^graph: 3 eager steps, 1 recorded, 6 replayed$'
same 'captured in fp16: the same bits' f16 f16-graph
fails 'a run in fp16 that is too short for its loss scale' 1 \
    'nothing was learned: .*all 1 steps .*--epochs' \
    "$app" "${few[@]}" --device cuda --epochs 1 --precision fp16 --graph
fails 'the same, not captured' 1 \
    'nothing was learned: .*all 1 steps .*--epochs' \
    "$app" "${few[@]}" --device cuda --epochs 1 --precision fp16
works '--profile and --trace on a GPU' "$app" "${few[@]}" --device cuda --epochs 1 \
    --profile --profile-limits 100,10 --trace "$work/trace.json"
says 'the table has products of a layer' '^matmul +fc \(Linear\) +fwd +[0-9]+ +[0-9]+\.[0-9]'
grep -q '"cuda:0"' "$work/trace.json"
tap $? 'the timeline has a lane of the GPU'

dp=("$app" "${few[@]}" --dp 2 --epochs 1)
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

two=("$app" --limit 4 --batch-size 2 --workers 1 --lr 0.0001 --device cuda --spawn 2 --epochs 2 --shard parameters)
works 'two GPUs with a window each' "${two[@]}" --log-dir shared
works "windows in the host's memory" "${two[@]}" --offload cpu --log-dir host
says 'it says so' "^the optimizer's state, gradients and values are cut into 2 windows"
near "the same losses with windows in the host's memory" shared host
done_testing
