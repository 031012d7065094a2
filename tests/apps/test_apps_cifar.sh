#!/usr/bin/env bash
# The main job on a few images: real ones where TANDEM_DATA names them, synthetic ones otherwise.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
app=$apps/cifar_resnet18
few="--limit 96 --batch-size 32 --workers 2"
unset LC_ALL
cd "$work" || exit 1 # away from data/cifar10, and Ctrl-C's default checkpoint goes here
few_images

# shellcheck disable=SC2086
works 'two epochs' "$app" $few --epochs 2 --save "$work/two" --log-dir "$work/log/deep"
says 'the heading' '^=======  Training  =======$'
says 'the step line' '^== step: \[  3/3\] \[1/2\] \| loss: [0-9]\.[0-9]{3} \| acc: [ 0-9]{2}\.[0-9]{3}%$'
says 'speed of an epoch' '^== epoch: \[2/2\] \| .* images/s'
says 'the checkpoint' '^== saved: .*/two$'
says 'the test' '^== test: 96 images \| loss: [0-9.]+ \| acc: [ 0-9]{2,3}\.[0-9]{3}%'
! grep -q "$(printf '[\r\033]')" "$work/out"
tap $? 'in a pipe: plain lines'

# shellcheck disable=SC2086
works 'a test after each epoch' "$app" $few --epochs 2 --test-every 1 --save "$work/tested"
says 'the first one' '^== test: \[1/2\] \| loss: [0-9.]+ \| acc: [ 0-9]{2,3}\.[0-9]{3}%$'
says 'the last one' '^== test: 96 images '
! grep -q 'test: \[2/2\]' "$work/out"
tap $? 'and is not made twice' "$work/out"
same 'the bits of a run with one test' "$work/two" "$work/tested"

# shellcheck disable=SC2086
works 'one epoch' "$app" $few --epochs 1 --save "$work/one" --threads 1 --log-dir "$work/logone"
# shellcheck disable=SC2086
works 'resumed for a second, other threads and workers' "$app" --resume "$work/one" --epochs 2 \
    --save "$work/one" --threads 3 --workers 0 --log-dir "$work/logone"
same 'resumed: the same bits' "$work/two" "$work/one"
for run in log/deep logone; do # the training steps, all columns but the speed
    grep -v '^[0-9]*,,' "$work/$run/metrics.csv" | cut -d, -f 1-5 >"$work/$(basename $run).cut"
done
same 'resumed: the same losses' "$work/deep.cut" "$work/logone.cut"

# With closed standard streams no file becomes one: what is printed gets into none.
# shellcheck disable=SC2086
"$app" $few --epochs 1 --save "$work/closed" --log-dir "$work/logclosed" --trace "$work/closed.json" <&- >&- 2>&-
tap $? 'closed streams: it works'
! grep -q '[=|]' "$work/logclosed/metrics.csv" && python3 -m json.tool "$work/closed.json" >/dev/null
tap $? 'closed streams: metrics and timeline hold nothing else' "$work/logclosed/metrics.csv"
works 'closed streams: the checkpoint is whole' "$app" --resume "$work/closed" --epochs 1 --save "$work/closed"

# predict needs nothing but the checkpoint: model, stem, size, normalisation and names are in it.
# shellcheck disable=SC2086
works 'the other stem, and the model alone' "$app" $few --epochs 1 --stem cifar --save "$work/small" --save-model "$work/alone"
says 'it says so' '^model saved: .*/alone$'
picture=$OLDPWD/tests/pictures/rgb.png
works "predict takes the run's checkpoint" "$apps/predict" "$work/small" "$picture"
says 'and knows the classes' '%  [a-z]+$'
cp "$work/out" "$work/by_run"
works 'predict takes the model alone' "$apps/predict" "$work/alone" "$picture"
same 'the same prediction' "$work/by_run" "$work/out"
! grep -aq '"optimizer\.\|"task"\|"random\.' "$work/alone" && grep -aq '"optimizer\.' "$work/small"
tap $? 'nothing of the run is in that file'
fails 'no place for the model' 1 'nowhere' "$app" --save-model "$work/nowhere/model"

rich="--accumulate 2 --label-smoothing 0.1 --clip-grad-norm 5 --ema 0.9"
# shellcheck disable=SC2086
works 'two epochs by another recipe' "$app" $few $rich --epochs 2 --save "$work/rich" --save-every 2 \
    --save-model "$work/averages"
# shellcheck disable=SC2086
works 'one epoch' "$app" $few $rich --epochs 1 --save "$work/rich1"
works 'resumed for a second, the recipe from the checkpoint' "$app" --resume "$work/rich1" --epochs 2 --save "$work/rich1"
same 'the same bits, averages as well' "$work/rich" "$work/rich1"
grep -aq '"ema.layer1.0.conv1.weight"' "$work/rich" && ! grep -aq '"ema.layer' "$work/two"
tap $? 'only that recipe has averages'
"$apps/predict" "$work/rich" "$picture" >"$work/by_run"
works "the model alone has the averages for weights" "$apps/predict" "$work/averages" "$picture"
same "as predict takes them from the run's checkpoint" "$work/by_run" "$work/out"

# A step of the optimizer is a whole one: with other groups of batches the run goes back to where one
# begins, and the means of the epoch so far stay.
few8="--limit 64 --batch-size 8 --epochs 1 --print-every 1"
# shellcheck disable=SC2086
works 'an epoch, saved before its end' "$app" $few8 --accumulate 2 --save "$work/mid" --save-every 0 \
    --save-every-steps 6 --log-dir "$work/log2"
# As an earlier version has written it: no correct_k, no best.
LC_ALL=C sed -i 's/"correct_k":/"correct_x":/; s/"best":/"bes_":/' "$work/mid"
works 'resumed with groups of four' "$app" --resume "$work/mid" --accumulate 4 --log-dir "$work/log4"
says 'it goes on where one begins' '^resumed from .* after step 4 of epoch 1$'
awk -F, 'FNR > 1 && $2 != "" && FILENAME ~ /log2/ && $1 == 6 { mean = $3 }
    FNR > 1 && $2 != "" && FILENAME ~ /log4/ { rows++; if ($1 == 5) d = $3 - (4 * mean + $2) / 5 }
    END { print rows " rows, mean " mean ", apart " d; exit !(rows == 4 && mean > 0 && d * d < 1e-6) }' \
    "$work/log2/metrics.csv" "$work/log4/metrics.csv" >"$work/out"
tap $? 'each step is logged once, with the mean of all' "$work/out"

# The run before was killed while it wrote its fourth row.
mkdir "$work/log5"
{ head -n 4 "$work/log2/metrics.csv"; printf '4,0.'; } >"$work/log5/metrics.csv"
works 'resumed behind half a row' "$app" --resume "$work/mid" --accumulate 4 --log-dir "$work/log5"
awk -F, 'NR == 1 { fields = NF } { print } NF != fields { bad = 1 } END { exit bad || NR < 8 }' \
    "$work/log5/metrics.csv" >"$work/out"
tap $? 'every row is whole' "$work/out"
# The weights are finite, and the test is not: running statistics of two batches of 4 and 2 images.
fails "a test's loss that is no number" 1 "the test's loss is -?nan over 6 images: .* a lower --lr" \
    "$app" --limit 6 --batch-size 4 --accumulate 2 --epochs 1 --lr 10 --seed 0 --workers 0 \
    --save-model "$work/nan"
test ! -e "$work/nan" && ! grep -q '== test' "$work/out"
tap $? 'it is not printed, and no model is saved' "$work/out"
"$app" --limit 6 --batch-size 4 --accumulate 2 --epochs 2 --test-every 1 --lr 10 --seed 0 --workers 0 >"$work/out" 2>&1
says 'after an epoch it is a warning' "^warning: after epoch 1 of 2 the test's loss is -?nan over 6 images"
# shellcheck disable=SC2086
works 'the CIFAR stem, with its summary' "$app" --stem cifar --limit 32 --batch-size 16 --epochs 1 --summary
says 'the summary' 'layer1\.0'
fails 'another stem than the checkpoint' 1 'trained with --stem imagenet' \
    "$app" --resume "$work/one" --stem cifar
fails 'other data than the checkpoint' 1 'trained with --limit 96' "$app" --resume "$work/one" --limit 64

mkdir "$work/empty"
fails 'a named folder without data' 1 "$work/empty" "$app" --data "$work/empty"
mkdir "$work/half"
for i in 1 2 3 4 5; do
    head -c 3073 /dev/zero >"$work/half/data_batch_$i.bin" # one image each
done
fails 'a training set without a test set' 1 'no CIFAR-10 in .*/half' "$app" --data "$work/half"
fails 'no such folder' 1 "$work/nowhere" "$app" --data "$work/nowhere"
fails 'no place for the checkpoint' 1 'nowhere' "$app" --save "$work/nowhere/model.safetensors"
fails 'a folder in place of the checkpoint' 1 'that is a folder' "$app" --save "$work/empty"

# Without data and without a named folder: synthetic pictures, and no doubt about it.
(
    unset TANDEM_DATA
    "$app" --limit 32 --batch-size 16 --epochs 1
) >"$work/out" 2>"$work/err" </dev/null
tap $? 'synthetic pictures' "$work/err"
says 'they are announced on stdout' 'NOT CIFAR-10'
says 'and at the end' '^== test: .*NOT CIFAR-10'
cp "$work/err" "$work/out"
says 'and on stderr, with what to do' '--download'

# A learning rate beyond reason: the run stops, and the checkpoint of before stays.
cp "$work/one" "$work/kept"
wild="--limit 256 --batch-size 8 --epochs 1 --lr 1e6"
# shellcheck disable=SC2086
fails 'a loss that is not finite' 1 '--debug-nan' "$app" $wild --save "$work/kept"
same 'the checkpoint is the old one' "$work/one" "$work/kept"
# No room for the checkpoint: a limit on files is like a full disk.
# shellcheck disable=SC2016,SC2086
fails 'a checkpoint that grows too large' 1 'ulimit -f.*unchanged' \
    bash -c 'ulimit -f 20000; exec "$@"' - "$app" $few --epochs 1 --save "$work/kept"
fails 'one that is written in the background' 1 'ulimit -f.*unchanged' \
    bash -c 'ulimit -f 20000; exec "$@"' - "$app" $few --epochs 1 --save "$work/kept" --save-async
fails 'the model, after the training' 1 'ulimit -f' \
    bash -c 'ulimit -f 20000; exec "$@"' - "$app" $few --epochs 1 --save-model "$work/large"
same 'the checkpoint is still the old one' "$work/one" "$work/kept"
# shellcheck disable=SC2016
fails 'no memory, which is no mistake of the program' 1 'out of (step )?memory|no memory (to|for)' \
    bash -c 'ulimit -v 400000; exec "$@"' - "$app" --limit 512 --batch-size 512 --epochs 1 --threads 1 --workers 0
! compgen -G "$work/kept.tmp*" >/dev/null
tap $? 'and no half of one is left'
# shellcheck disable=SC2086
fails '--debug-nan ends the run, and names the operation' 1 \
    '(norm|conv2d|linear|cross_entropy).* made NaN or infinity' "$app" $wild --debug-nan
done_testing
