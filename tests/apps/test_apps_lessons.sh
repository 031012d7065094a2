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

done_testing
