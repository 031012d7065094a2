#!/usr/bin/env bash
# Lesson 1: PyTorch's losses and the article's output.
. "$(dirname "$0")/../help/tap.sh"
app=$apps/wine_single
golden=$PWD/tests/golden/wine_losses.txt
compare=$PWD/tests/help/compare_losses.py
ln -s "$PWD/data" "$work/data"
cd "$work" || exit 1 # checkpoints go here

works 'it runs' "$app"
cp out whole
says 'first sample: heading' '^Sample from dataset:$'
says 'first sample: data' '^Data: \[\[ 1\.6653, -0\.6084, '
says 'first sample: class' '^Target: 2$'
says 'epoch line' '^Epoch 0, Loss: 1\.0209$'
says 'last epoch line' '^Epoch 99, Loss: 0\.0136$'
says 'first checkpoint' '^Epoch 0 \| Model saved to model_0\.\.\.$'
says 'second checkpoint' '^Epoch 50 \| Model saved to model_50\.\.\.$'
says 'all test wines are right' '^Test: 36/36 right$'
test "$(echo ./*.safetensors)" = './model_0.safetensors ./model_50.safetensors'
tap $? 'two checkpoints'
works "the losses of 100 epochs are PyTorch's" python3 "$compare" whole "$golden" 0
cp model_50.safetensors one_50

for threads in 1 3; do
    OMP_NUM_THREADS=$threads works "$threads threads" "$app"
    same "$threads threads: the same output" whole out
    same "$threads threads: the same bits" one_50 model_50.safetensors
done
TANDEM_DEVICE=cpu:1 works 'another device' "$app"
same 'the same bits' one_50 model_50.safetensors

rm -- *.safetensors
works 'the options' "$app" --batch-size 64 5 2
test "$(echo ./*.safetensors)" = './model_0.safetensors ./model_2.safetensors ./model_4.safetensors'
tap $? 'so many checkpoints'
test "$(grep -c '^Epoch .*Loss' out)" -eq 5
tap $? 'and epochs' out
for wrong in '0' '5 0' '5 2 1' '--batch-size 0' '--batch-size' '--epochs 5'; do
    # shellcheck disable=SC2086
    fails "wrong options: $wrong" 64 '^usage: wine_single \[--batch-size N\]' "$app" $wrong
done

TANDEM_DEVICE=toaster fails 'a device that is not one' 1 \
    "^wine_single: TANDEM_DEVICE: 'toaster' is no device" "$app"
TANDEM_DEVICE=cpu:99 fails 'a device number too large' 1 "'cpu:99' is no device" "$app"
rm -- *.safetensors
mkdir model_0.safetensors
fails 'no place for the checkpoint' 1 'model_0\.safetensors' "$app" 1
"$app" 1 >out 2>&1
tail -n 1 out | grep -q '^wine_single: .*model_0\.safetensors'
tap $? 'an error comes behind what was printed before' out
rm data
rmdir model_0.safetensors
works 'from another folder: the data beside the program' "$app" 1
mkdir alone
cp "$app" alone
app=alone/wine_single
fails 'no data file' 1 '^wine_single: .*data/wine\.csv' "$app"
mkdir -p data/wine.csv
fails 'a folder in place of the data' 1 "tandem's source has the file" "$app"
rmdir data/wine.csv
printf 'a,b\n1,2\n' >data/wine.csv
fails 'data of another form' 1 'data/wine\.csv' "$app"
done_testing
