#!/usr/bin/env bash
# --comm-hook with several processes: what travels, that it trains, and that a stopped
# run goes on to the same bits, PowerSGD's memory included.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
# shellcheck source=tests/help/train_net.sh
. "$(dirname "$0")/../help/train_net.sh"
export OMP_NUM_THREADS=1
short=(--spawn 2 --limit 128 --batch-size 16 --workers 1 --epochs 3 --lr 0.002)
app=$apps/cifar_resnet18
tdrun=("$apps/tdrun" --nproc-per-node 2)
cd "$work" || exit 1
few_images

# The loss of an epoch, as its last line has it.
loss_of() { sed -n "s|^== step: \[ *4/4\] \[$1/3\] . loss: \([0-9.]*\) .*|\1|p" out; }

for hook in none bf16 fp16 powersgd:2:3; do
    works "$hook" "$app" "${short[@]}" --comm-hook $hook --save $hook
    # Twelve steps with random crops: plain gradients learn, and a hook's losses stay near theirs. bf16 and fp16
    # round gradients to 9 and 11 bits, of which twelve steps make up to 0.13, PowerSGD of rank 2 up to 0.20.
    losses=$(for epoch in 1 2 3; do loss_of $epoch; done | xargs)
    [ $hook = none ] && plain=$losses
    echo "$losses $plain" | awk '{ for (i = 1; i <= 3; i++) apart = apart || ($i - $(i + 3)) ^ 2 > 0.25 ^ 2
        exit NF != 6 || apart || $6 >= $4 }'
    tap $? "$hook: it learns ($losses; plain: $plain)" out
    if [ $hook = none ]; then
        ! grep -q 'gradients travel' out
        tap $? 'none: and says nothing of it' out
        continue
    fi
    says "$hook: it says what travels" "^gradients travel as (${hook%%:*}|PowerSGD's factors of rank 2 after 3 plain steps)\$"
    ! cmp -s none $hook
    tap $? "$hook: not the bits of plain gradients"
    # One of three epochs, and the rest, started in another way: the options come from the checkpoint.
    works "$hook: one epoch" "$app" "${short[@]}" --comm-hook $hook --epochs 1 --save part
    works "$hook: and on from there, by tdrun" "${tdrun[@]}" "$app" --epochs 3 --resume part --save part
    same "$hook: to the same bits" $hook part
done

# What PowerSGD remembers is that of its rank; otherwise it begins again.
from=powersgd:2:3
works 'three processes go on' "$app" --spawn 3 --epochs 4 --resume $from --save other
! grep -q 'begins again' out
tap $? 'with what two remembered' out
works 'another rank goes on' "$app" --spawn 2 --comm-hook powersgd:1:3 --epochs 4 --resume $from --save other
says 'it begins again' '^PowerSGD begins again'
works 'without a hook' "$app" --spawn 2 --comm-hook none --epochs 4 --resume $from --save other
! grep -q PowerSGD out
tap $? 'nothing is said' out
works 'too few steps' "$app" "${short[@]}" --comm-hook powersgd --epochs 1 --save other
says 'it says so' 'after 1000 plain steps, and this run has only 4: see --comm-hook powersgd:RANK:START$'
for wrong in bf powersgd: powersgd:0 powersgd:1:2:3 powersgd:x powersgd:99999999999999999999; do
    fails "--comm-hook $wrong" 64 "'$wrong' is not one of none\|bf16\|fp16\|powersgd" "$app" --comm-hook $wrong
done

# Ctrl-C in mid-epoch, under the launcher, when PowerSGD has begun.
if ! no_terminal; then
    $terminal '== step: \[  1/4\] \[2/3\]' 1 "${tdrun[@]}" "$app" --limit 128 --batch-size 16 --workers 1 --epochs 3 \
        --lr 0.002 --print-every 1 --comm-hook $from --save stopped >out 2>&1
    test $? -eq 130
    tap $? 'Ctrl-C' out
    works 'it goes on' "${tdrun[@]}" "$app" --resume stopped --save stopped
    says 'from where it was' '^resumed from stopped after step [1-3] of epoch 2$'
    same 'to the same bits' $from stopped
fi
works 'one process' "$app" --limit 32 --batch-size 32 --epochs 1 --comm-hook bf16
says 'nothing travels' '^--comm-hook: there is one process, and no gradients travel$'

# The trainer, whose command goes on by itself.
make_folders data
net=("${tdrun[@]}" "$apps/train_net" --cfg "$repository/apps/tools/config/efficientnet_b0.yaml" MODEL.NUM_CLASSES 5
    TRAIN.DATASET data TRAIN.IM_SIZE 32 TRAIN.BATCH_SIZE 2 TRAIN.WORKERS 1 TRAIN.MIN_AREA 0.5 RNG_SEED 1
    TEST.DATASET data TEST.IM_SIZE 32 TEST.CROP_SIZE 32 OPTIM.MAX_EPOCH 2 OPTIM.BASE_LR 0.02
    OPTIM.LR_POLICY steps MODEL.SYNCBN True)
works 'train_net' "${net[@]}" --comm-hook $from OUT_DIR exp
says 'PowerSGD' '^gradients travel as PowerSGD'
mkdir -p again/checkpoints
mv exp/checkpoints/ckpt_ep_001 again/checkpoints
works 'the second epoch again' "${net[@]}" OUT_DIR again
says 'with it' '^gradients travel as PowerSGD'
same 'the same bits' exp/checkpoints/ckpt_ep_002 again/checkpoints/ckpt_ep_002
done_testing
