#!/usr/bin/env bash
# --profile and --memory-picture of the main job: what the tables say.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
unset TANDEM_DATA # synthetic pictures
few=(--limit 64 --batch-size 32 --epochs 2)
cd "$work" || exit 1

works 'a profile' "$apps/cifar_resnet18" "${few[@]}" --profile --profile-limits 100,10
says 'its limits' '^profile: [1-9][0-9]* steps in .* limits: 100 GFLOP/s f32, 50 f64, 10\.0 GB/s$'
says 'a row of it' '^matmul +fc \(Linear\) +fwd +[1-9]'
says 'and what lies outside' '^loader wait +[1-9]'
works 'memory' "$apps/cifar_resnet18" "${few[@]}" --memory-picture plan.svg
says 'the peak of a step' '^step memory: peak [0-9.]+ MiB, in kernel [0-9]+ of [0-9]+ '
says 'what stays' '^memory: parameters 42\.7 MiB, gradients '
grep -q '</svg>' plan.svg
tap $? 'a picture of it'
awk '/#ccc/ { grid = NR } /<title>/ && !box { box = NR } END { exit !(grid && grid < box) }' plan.svg
tap $? 'whose grid lies behind the blocks'
fails 'a picture without a place' 1 'none/plan.svg cannot be written: the folder none: ' \
    "$apps/cifar_resnet18" "${few[@]}" --memory-picture none/plan.svg
! grep -q Training "$work/out"
tap $? 'it is refused before the run' "$work/out"
fails 'a picture on a full disk' 1 '/dev/full.*(No space|written)' "$apps/cifar_resnet18" "${few[@]}" \
    --memory-picture /dev/full
fails 'a run that is refused' 1 'no CIFAR-10' "$apps/cifar_resnet18" --data none --memory --profile
! grep -qE '^(profile|memory|step memory):' "$work/out"
tap $? 'it has no report' "$work/out"
fails 'limits that are none' 1 'give two numbers' "$apps/cifar_resnet18" --profile --profile-limits 3
done_testing
