#!/usr/bin/env bash
# Ten seeds in fp32 and in bf16, on 5,000 real images for three epochs: the test accuracies' means do not
# differ by more than chance. The pairs' differences have a mean and its standard error; Student's t of nine
# degrees of freedom passes 3.25 in one of a hundred cases. Equal seeds give equal bits, so that a machine
# says the same each time.
. "$(dirname "$0")/../help/tap.sh"
app=$apps/cifar_resnet18
needs_cifar
cd "$work" || exit 1
accuracy() { # accuracy SEED PRECISION
    works "seed $1, $2" "$app" --limit 5000 --epochs 3 --batch-size 64 --seed "$1" --precision "$2"
    reached=$(sed -n 's/^== test: .* acc:  *\([0-9.]*\)%.*/\1/p' "$work/out")
}
for seed in 0 1 2 3 4 5 6 7 8 9; do
    accuracy $seed fp32
    fp32=$reached
    accuracy $seed bf16
    echo "$fp32 $reached" >>pairs
done
read -r fp32 bf16 difference error < <(awk '
    { a += $1; b += $2; d += $2 - $1; square += ($2 - $1) ^ 2 }
    END { mean = d / NR; print a / NR, b / NR, mean, sqrt((square / NR - mean ^ 2) / (NR - 1)) }' pairs)
awk -v d="$difference" -v e="$error" -v a="$fp32" 'BEGIN { exit !(a > 25 && d * d <= (3.25 * e) ^ 2) }'
tap $? "fp32 $fp32 %, bf16 $bf16 %: they differ by $difference, give or take $error" pairs
done_testing
