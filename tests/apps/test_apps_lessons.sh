#!/usr/bin/env bash
# Lessons from 18 on: on other numbers of processes, with other options, and what they refuse. What their pages show:
# tests/project/test_tutorial.sh.
. "$(dirname "$0")/../help/tap.sh"
export OMP_NUM_THREADS=1
repository=$PWD
cp -r --parents data/wine.csv "$work"
cd "$work" || exit 1

# ---- 18: DDP by hand ----

for how in '1' '3 4' '5 1024'; do
    # shellcheck disable=SC2086
    works "ddp_by_hand $how" "$apps/ddp_by_hand" $how
    says 'the bits of td_ddp' '^three ways on [135]: the same bits$'
done
grep -A 100 '^buckets' out | grep -c 'message' >messages
echo 1 >one
same 'all gradients fit into one bucket' one messages
fails 'more processes than it has room for' 64 "PROCESSES: 9 is out of range" "$apps/ddp_by_hand" 9

# ---- 19: checkpoints ----

works 'checkpoints: undisturbed' "$apps/checkpoints" --epochs 4
tail -n 1 out >undisturbed
for stop in 1 2 5 9 15 19; do # in an epoch, at its end, and in the last one
    rm -f run.safetensors
    works "saves after step $stop, and stops" "$apps/checkpoints" --epochs 4 --save-every $stop --stop $stop run.safetensors
    works 'goes on' "$apps/checkpoints" --epochs 4 --seed 7 run.safetensors
    tail -n 1 out >resumed
    same 'the undisturbed run' undisturbed resumed
done
for load in weights optimizer; do
    rm -f run.safetensors
    works 'stops' "$apps/checkpoints" --epochs 4 --stop 9 run.safetensors
    works "goes on with $load" "$apps/checkpoints" --epochs 4 --load $load run.safetensors
    says 'begins the epoch again' '^epoch 1, batch 0, step  6:'
    ! cmp -s <(tail -n 1 out) undisturbed
    tap $? 'another run'
done
fails 'no such part' 64 "--load: 'alles' is not all" "$apps/checkpoints" --load alles
fails 'a file that is none' 1 'wine.csv' "$apps/checkpoints" data/wine.csv

# ---- 20: mixed precision ----

works 'mixed_precision' "$apps/mixed_precision"
mv out best
works 'mixed_precision with portable kernels' env TANDEM_CPU_ISA=portable "$apps/mixed_precision"
same 'prints the same' best out
fails 'an argument' 64 'weights' "$apps/mixed_precision" weights

# ---- 21: schedules ----

works 'schedules' "$apps/schedules" drawn.svg
python3 -c 'import sys, xml.etree.ElementTree as t; t.parse(sys.argv[1])' drawn.svg
tap $? 'its picture is XML'
fails 'a picture that cannot be written' 1 'schedules: .*nowhere/drawn.svg' "$apps/schedules" nowhere/drawn.svg

# ---- 22: debugging ----

works 'debugging: NaN' "$apps/debugging" nan
says 'all batches after the first' '^batch 5: loss -?nan'
line=$(grep -n 'td_log(' "$repository/apps/debugging.c" | cut -d : -f 1)
fails 'debugging: NaN is found' 134 "debugging\.c:$line: log: the result .* contains NaN or infinity" "$apps/debugging" nan find
fails 'debugging: the rank that hangs is named' 1 \
    'all_reduce number 12 .* rank 0 has called it; rank 1 has not: its last was all_reduce number 11 ' "$apps/debugging" hang
works 'debugging: a slow step' "$apps/debugging" slow trace.json
head -n 5 out | tail -n 1 | grep -qE '^matmul +[24] \(Linear\)'
tap $? 'the wide layer is first' out
works 'a page of it' "$apps/report" trace.json -o slow.html
grep -q 'limits the step' slow.html
tap $? 'says what limits the step'
fails 'debugging: no such fault' 64 'name a fault' "$apps/debugging" slower

# ---- 23: fine-tuning ----

python3 - torchvision.safetensors <<'END'
# What torchvision.models.resnet18().state_dict() has: 1,000 classes, and counters of BatchNorms.
import array, json, random, struct, sys
random.seed(0)
shapes = {"conv1.weight": [64, 3, 7, 7], "fc.weight": [1000, 512], "fc.bias": [1000]}
norms = {"bn1": 64}
for layer, width in enumerate((64, 128, 256, 512), 1):
    for block in range(2):
        name, before = f"layer{layer}.{block}", width if block or layer == 1 else width // 2
        shapes[name + ".conv1.weight"] = [width, before, 3, 3]
        shapes[name + ".conv2.weight"] = [width, width, 3, 3]
        norms |= {name + ".bn1": width, name + ".bn2": width}
        if before != width:
            shapes[name + ".downsample.0.weight"] = [width, before, 1, 1]
            norms[name + ".downsample.1"] = width
header, data = {}, b""
def put(name, dtype, shape, values):
    global data
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
    data += values
for name, shape in shapes.items():
    count = 1
    for n in shape:
        count *= n
    scale = (2 / (count / shape[0])) ** 0.5
    row = [random.gauss(0, scale) for _ in range(4096)]
    put(name, "F32", shape, array.array("f", (row * (count // 4096 + 1))[:count]).tobytes())
for name, width in norms.items():
    for part, value in (("weight", 1), ("bias", 0), ("running_mean", 0), ("running_var", 1)):
        put(f"{name}.{part}", "F32", [width], array.array("f", [value] * width).tobytes())
    put(name + ".num_batches_tracked", "I64", [], struct.pack("<q", 7))
head = json.dumps(header).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(head)) + head + data)
END
if shortened; then # the first of four ways takes this long
    works 'fine_tuning from a checkpoint with names and shapes of torchvision: 20 seconds' \
        bash -c '(ulimit -S -t 20; "$1" torchvision.safetensors); [ $? -eq 152 ] || [ $? -eq 0 ]' - "$apps/fine_tuning"
else
    works 'fine_tuning from a checkpoint with names and shapes of torchvision' "$apps/fine_tuning" torchvision.safetensors
    ! grep -q 'training one' out
    tap $? 'trains none itself' out
    [ "$(grep -c 'learns' out)" -eq 4 ]
    tap $? 'in four ways' out
fi
fails 'a file that is none' 1 'wine.csv' "$apps/fine_tuning" data/wine.csv
works 'a checkpoint of another network' "$apps/checkpoints" --epochs 1 other.safetensors
fails 'says what does not fit' 1 "does not fit; nothing was loaded" "$apps/fine_tuning" other.safetensors

done_testing
