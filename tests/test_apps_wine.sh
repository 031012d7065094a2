#!/usr/bin/env bash
# Lesson 1 against PyTorch's losses and the article's output, and going on from its checkpoints.
. "$(dirname "$0")/tap.sh"
app=$apps/wine_single

works 'it runs' "$app" --seed 0 --log-dir "$work/log" --save "$work/one"
cp "$work/out" "$work/whole"
says 'first sample: heading' '^Sample from dataset:$'
says 'first sample: data' '^Data: '
says 'first sample: class' '^Target: 2$'
says 'epoch line' '^Epoch 0, Loss: 1\.0209$'
says 'last epoch line' '^Epoch 99, Loss: 0\.0136$'
says 'first checkpoint' '^Epoch 0 \| Model saved to model_0\.\.\.$'
says 'second checkpoint' '^Epoch 50 \| Model saved to model_50\.\.\.$'
says 'all test wines are right' '^Test: 36/36 right$'
test "$(ls "$work/one" | tr '\n' ' ')" = 'model_0.safetensors model_50.safetensors '
tap $? 'two checkpoints'

python3 - "$work/log/metrics.csv" tests/golden/wine_losses.txt >"$work/out" 2>&1 <<'P'
import csv, sys
ours = [float(r["epoch_loss"]) for r in csv.DictReader(open(sys.argv[1])) if r["epoch_loss"]]
theirs = [float(line) for line in open(sys.argv[2]) if not line.startswith("#")]
worst = max(abs(a - b) / b for a, b in zip(ours, theirs))
print("epochs:", len(ours), "largest relative difference:", worst)
sys.exit(not (len(ours) == len(theirs) == 100 and worst <= 5e-5))
P
tap $? 'the losses of 100 epochs are PyTorch'"'"'s within 5e-5' "$work/out"

works 'a profile' "$app" --epochs 2 --profile --profile-limits 100,10 --save "$work/profile"
says 'its limits' '^profile: 11 steps in .* limits: 100 GFLOP/s f32, 50 f64, 10\.0 GB/s$'
says 'a row of it' '^matmul +fc1 \(Linear\) +fwd +11 '
says 'and what lies outside' '^loader wait +1[0-9] '
works 'memory' "$app" --epochs 2 --memory-picture "$work/plan.svg" --save "$work/profile"
says 'the peak of a step' '^step memory: peak 0\.[01] MiB, in kernel [0-9]+ of [0-9]+ '
says 'what stays' '^memory: parameters 0\.0 MiB, gradients '
grep -q '</svg>' "$work/plan.svg"
tap $? 'a picture of it'
fails 'limits that are none' 1 'give two numbers' "$app" --profile --profile-limits 3

for threads in 1 3; do
    works "$threads threads, 2 workers" "$app" --threads $threads --workers 2 --save "$work/t$threads"
    same "$threads threads: the same bits" "$work/one/model_50.safetensors" \
        "$work/t$threads/model_50.safetensors"
done

# Going on from epoch 10 equals not having stopped.
works 'a run with more checkpoints' "$app" --save-every 10 --save "$work/ten" --log-dir "$work/log10"
works 'resumed' "$app" --resume "$work/ten/model_10.safetensors" --save-every 10 --save "$work/again" \
    --log-dir "$work/logagain"
same 'resumed: the same checkpoint at epoch 90' "$work/ten/model_90.safetensors" \
    "$work/again/model_90.safetensors"
tail -n 400 "$work/log10/metrics.csv" >"$work/a"
tail -n 400 "$work/logagain/metrics.csv" >"$work/b"
same 'resumed: the same losses' "$work/a" "$work/b"

# The log of a resumed run continues that of the run before.
works 'a short run' "$app" --epochs 20 --save-every 9 --save "$work/short" --log-dir "$work/logshort"
works 'resumed into its log' "$app" --epochs 100 --resume "$work/short/model_9.safetensors" \
    --save "$work/short" --log-dir "$work/logshort"
same 'the log is that of one run' "$work/log10/metrics.csv" "$work/logshort/metrics.csv"

fails 'no data file' 1 'nowhere\.csv' "$app" --data "$work/nowhere.csv"
printf 'a,b\n1,2\n' >"$work/bad.csv"
fails 'data of another form' 1 'bad\.csv' "$app" --data "$work/bad.csv"
fails 'another seed than the checkpoint' 1 'trained with --seed 0' \
    "$app" --resume "$work/ten/model_10.safetensors" --seed 1
fails 'no such checkpoint' 1 'no\.safetensors' "$app" --resume "$work/no.safetensors"
head -c 1000 "$work/ten/model_10.safetensors" >"$work/cut.safetensors"
fails 'a checkpoint cut off' 1 'cut\.safetensors' "$app" --resume "$work/cut.safetensors"
fails 'a checkpoint folder that cannot be' 1 'not a folder' "$app" --save "$work/bad.csv"
done_testing
