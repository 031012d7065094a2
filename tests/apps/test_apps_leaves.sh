#!/usr/bin/env bash
# --leaves: a run's checkpoint is the same file, byte for byte, on any number of processes, however they share the model,
# and if the run goes on on another number of them.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
# shellcheck source=tests/help/train_net.sh
. "$(dirname "$0")/../help/train_net.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TANDEM_RUN_ID TANDEM_TEXT
export OMP_NUM_THREADS=1
cat nn/*.c >"$work/text.txt"
cp -r data "$work/data" # the lesson reads data/wine.csv
cd "$work" || exit 1
few_images

# ---- the lesson ----

lesson=$apps/same_bits
works 'same_bits' "$lesson" 2
hash=$(grep -o 'model is [0-9a-f]*' out)
for ranks in '3' '8' '5 --zero 1' '3 --zero 2'; do
    # shellcheck disable=SC2086
    works "$ranks" "$lesson" --nprocs $ranks 2
    says 'the same fingerprint' "$hash"
done
works 'other leaves' "$lesson" --leaves 4 2
! grep -q "$hash" out
tap $? 'another hash' out
fails 'more ranks than leaves' 1 'there are 3 ranks and 2 leaves' "$lesson" --nprocs 3 --leaves 2

# ---- the programs ----

short=(--limit 56 --batch-size 4 --workers 1 --lr 0.002 --leaves 3 --clip-grad-norm 1)
cifar=$apps/cifar_resnet18
works 'cifar_resnet18 on one process, which it starts' "$cifar" "${short[@]}" --epochs 2 --ema 0.9 --save one
cp one expected.st
works 'on three' "$cifar" "${short[@]}" --spawn 3 --epochs 2 --ema 0.9 --save one
same 'the same file' expected.st one
works 'in windows' "$cifar" "${short[@]}" --spawn 2 --epochs 1 --ema 0.9 --shard gradients --save part --save-every-steps 2
works 'it goes on whole, on another number' "$cifar" --spawn 3 --epochs 2 --resume part --shard none --save one
same 'to the same file' expected.st one
fails 'more processes' 1 'there are 4 ranks and 3 leaves' "$cifar" "${short[@]}" --spawn 4 --epochs 1
fails 'with accumulation' 1 'leaves are the batches of a step; give more leaves' "$cifar" "${short[@]}" --accumulate 2
fails 'as a graph' 1 'which no graph can record' "$cifar" "${short[@]}" --graph
fails 'with a communication hook' 1 'rounds what a process sends' "$cifar" "${short[@]}" --comm-hook bf16

gpt=$apps/gpt
few=(--data text.txt --preset 'gpt-nano layers=2 heads=2 width=32 context=32 dropout=0.1' --batch-size 2 --leaves 4)
works 'gpt' "$gpt" "${few[@]}" --epochs 2 --epoch-steps 4 --save gpt.st
cp gpt.st expected.st
works 'on two processes' "$gpt" "${few[@]}" --epochs 2 --epoch-steps 4 --spawn 2 --save gpt.st
same 'the same file' expected.st gpt.st
works 'a checkpoint in mid-epoch' "$gpt" "${few[@]}" --epochs 1 --epoch-steps 4 --spawn 3 --save-every-steps 3 --save gpt.st
fails 'it takes a process' 1 'one is enough .--spawn 1' "$gpt" --data text.txt --resume gpt.st --epochs 2
works 'it goes on' "$gpt" --data text.txt --resume gpt.st --epochs 2 --spawn 1 --save one.st
works 'and on four' "$gpt" --data text.txt --resume gpt.st --epochs 2 --spawn 4 --save four.st
same 'to the same file' one.st four.st

# ---- virtual ranks: the weights of many, computed by few ----

tdrun=$apps/tdrun
few=(--data text.txt --preset 'gpt-nano layers=2 heads=2 width=32 context=32 dropout=0.1' --batch-size 2 --epochs 1 --epoch-steps 3)
works 'gpt on six ranks' "$tdrun" --nproc-per-node 6 "$gpt" "${few[@]}"
hash=$(grep -o 'fingerprint.*' out)
tap $((${#hash} < 20)) 'it prints a fingerprint' out
for on in 1 2 4; do
    works "6 virtual ranks on $on" "$tdrun" --world 6 --on $on "$gpt" "${few[@]}"
    says 'the fingerprint of real ones' "$hash"
done
fails 'a world without processes' 64 'on how many processes' "$tdrun" --world 6 "$gpt" "${few[@]}"
fails 'a program without leaves' 64 'unrecognized option .--leaves' "$tdrun" --world 6 --on 2 "$apps/wine_ddp_launch" 1
done_testing
