#!/usr/bin/env bash
# --precision: mixed precision trains, is kept in checkpoints, resumes to the same bits, and works
# on several ranks and at every instruction set.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
few="--limit 96 --batch-size 32 --workers 1"
cd "$work" || exit 1
unset TANDEM_DATA # synthetic pictures

# The mean training loss of a log's steps FIRST to LAST. Only the first steps say how near bf16 is to
# fp32: later, at this rate, even another order of fp32's sums moves one step's loss by a tenth.
mean_loss() { # LOG FIRST LAST
    grep -v '^[0-9]*,,' "$1/metrics.csv" | cut -d, -f "1,$(column "$1" loss)" |
        awk -F, -v a="$2" -v b="$3" '$1 >= a && $1 <= b { sum += $2; n++ } END { print sum / n }'
}
column() { head -1 "$1/metrics.csv" | tr ',' '\n' | grep -n "$2" | head -1 | cut -d: -f1; }
# Whether two numbers are within a share of each other.
close_to() { awk -v a="$1" -v b="$2" -v s="$3" 'BEGIN { d = a - b; exit !(a > 0 && d * d <= s * s * b * b) }'; }

# shellcheck disable=SC2086
works 'three epochs in fp32' "$apps/cifar_resnet18" $few --epochs 3 --log-dir fp32
says 'the first lines say fp32' 'seed 0, fp32; '
# shellcheck disable=SC2086
works 'three epochs in bf16' "$apps/cifar_resnet18" $few --epochs 3 --precision bf16 --save whole --log-dir bf16
says 'the first lines say bf16' 'seed 0, bf16; '
close_to "$(mean_loss bf16 1 3)" "$(mean_loss fp32 1 3)" 0.05
tap $? "the first epoch's loss is fp32's within 5 %"
awk -v a="$(mean_loss bf16 1 3)" -v b="$(mean_loss bf16 7 9)" 'BEGIN { exit !(b > 0 && b < 0.97 * a) }'
tap $? 'the third epoch has less'
head -c 60000 whole | strings | grep -q '"dtype":"F32"' && ! head -c 60000 whole | strings | grep -q '"BF16"'
tap $? 'the checkpoint is f32'

# shellcheck disable=SC2086
works 'one epoch in bf16' "$apps/cifar_resnet18" $few --epochs 1 --precision bf16 --save part --threads 1
works 'resumed: the precision comes from the checkpoint' "$apps/cifar_resnet18" --resume part \
    --epochs 3 --save part --threads 3
says 'it says so' 'seed 0, bf16; '
same 'resumed: the same bits' whole part

# shellcheck disable=SC2086
works 'bf16x3' "$apps/cifar_resnet18" $few --epochs 1 --limit 32 --precision bf16x3
# shellcheck disable=SC2086
works 'winograd' "$apps/cifar_resnet18" $few --epochs 1 --limit 32 --winograd
says 'it says so' 'fp32 with winograd'
# shellcheck disable=SC2086
works 'two ranks in bf16' "$apps/cifar_resnet18" $few --spawn 2 --epochs 1 --precision bf16
fails 'a precision that is none' 64 'fp32' "$apps/cifar_resnet18" --precision fp8
fails 'a precision that the CPU does not have' 1 'use fp32, bf16' "$apps/cifar_resnet18" --precision fp16

for isa in portable avx2 avx512; do
    # shellcheck disable=SC2086
    works "bf16 with TANDEM_CPU_ISA=$isa" env TANDEM_CPU_ISA=$isa "$apps/cifar_resnet18" $few \
        --limit 32 --epochs 1 --precision bf16 --log-dir "isa_$isa"
    close_to "$(mean_loss "isa_$isa" 1 1)" "$(mean_loss isa_portable 1 1)" 0.02
    tap $? "the same loss up to bf16's rounding"
done
done_testing
