#!/usr/bin/env bash
# tdrun --sim: programs whose ranks are threads with clocks. The fingerprints of processes, the same times in every run,
# and programs and options that cannot be simulated.
. "$(dirname "$0")/../help/tap.sh"
# shellcheck source=tests/help/train_net.sh
. "$(dirname "$0")/../help/train_net.sh"
unset TANDEM_TEXT
export OMP_NUM_THREADS=1
cat nn/*.c >"$work/text.txt"
cp -r data "$work/data" # lessons read data/wine.csv
cd "$work" || exit 1
few_images
tdrun=$apps/tdrun

fingerprint() { grep -o 'fingerprint.*' out; }

# ---- lessons ----

works 'same_bits in processes' "$apps/same_bits" --nprocs 3 1
hash=$(fingerprint)
works 'simulated' "$tdrun" --world 3 --sim --link 25GB/s,5us "$apps/same_bits" 1
says 'the same fingerprint' "$hash"
says 'the step' '^sim: a step takes [0-9.]+ ms: [0-9.]+ ms computing, and [0-9.]+ ms waiting .* a rank sends [0-9.]+ MB$'
grep '^sim:' out >expected
works 'again' "$tdrun" --world 3 --sim --link 25GB/s,5us "$apps/same_bits" 1
grep '^sim:' out >again
same 'the same times, to the digit' expected again
works 'a slower link' "$tdrun" --world 3 --sim --link 1GB/s,5us "$apps/same_bits" 1
! grep -q "$(sed -n 2p expected)" out
tap $? 'another time' out
says 'the same fingerprint there' "$hash"
works 'a lesson of 64 ranks' "$tdrun" --world 64 --sim --link 25GB/s,5us "$apps/wine_ddp_spawn" --batch-size 2 2
says 'of 64' '^sim: 64 ranks'
fails 'a rank dies' 1 'rank 1 has died, at 90 us' "$tdrun" --world 3 --sim --kill 1@90us "$apps/wine_ddp_spawn" 1

# ---- programs ----

short=(--limit 24 --batch-size 4 --workers 1 --lr 0.002 --epochs 1)
works 'cifar_resnet18 in processes' "$tdrun" --nproc-per-node 3 "$apps/cifar_resnet18" "${short[@]}"
hash=$(fingerprint)
works 'it writes the costs of kernels' "$apps/cifar_resnet18" "${short[@]}" --profile-kernels kernels
works 'simulated with them' "$tdrun" --world 3 --sim --kernels kernels --cores 2 "$apps/cifar_resnet18" "${short[@]}" --save run
says 'the same fingerprint' "$hash"
says 'by the file' '^sim: 3 ranks.*kernels: kernels$'
[ -s run ]
tap $? 'rank 0 has saved' out
few=(--data text.txt --preset 'gpt-nano layers=2 heads=2 width=32 context=32 dropout=0.1' --batch-size 2 --epochs 1 --epoch-steps 3)
for way in '--shard parameters' '--mesh dp=2,tp=2' '--mesh pp=2,dp=2 --micro 2'; do
    # shellcheck disable=SC2086
    works "gpt $way in processes" "$tdrun" --nproc-per-node 4 "$apps/gpt" "${few[@]}" $way
    last=$(grep -E 'loss|fingerprint' out | tail -n 1)
    # shellcheck disable=SC2086
    works 'simulated' "$tdrun" --world 4 --sim "$apps/gpt" "${few[@]}" $way
    says 'the same result' "$last"
done

# ---- what cannot be ----

fails 'ranks that td_spawn does not start' 1 'does not start them by td_spawn' "$tdrun" --world 2 --sim "$apps/wine_ddp_launch" 1
fails 'a profile' 1 'no --profile' "$tdrun" --world 2 --sim "$apps/cifar_resnet18" "${short[@]}" --profile
fails 'no number of ranks' 64 'give --world N' "$tdrun" --sim "$apps/same_bits"
fails 'processes' 64 'no number of processes' "$tdrun" --world 2 --on 1 --sim "$apps/same_bits"
fails 'a mesh' 64 'no number of processes' "$tdrun" --world 2 --mesh dp=2 --sim "$apps/same_bits"
fails 'workers that are replaced' 64 'no number of processes' "$tdrun" --world 2 --elastic 1:2 --sim "$apps/same_bits"
fails 'a link without --sim' 64 'go with --sim' "$tdrun" --world 2 --on 1 --link 1GB/s,1us "$apps/same_bits"
fails 'no such link' 1 "'fast' is not a link" "$tdrun" --world 2 --sim --link fast "$apps/same_bits"
fails 'no such file' 1 'none: No such file' "$tdrun" --world 2 --sim --kernels none "$apps/same_bits"
fails 'no such program' 1 'cannot start ./none' "$tdrun" --world 2 --sim ./none
done_testing
