#!/usr/bin/env bash
# Virtual ranks: 64 on 1, 2 and 7 processes are 64 real ones. The simulator's clock and this machine's: a step of ResNet-18
# on 2 and 4 processes takes what the clock says, within 15 %, with the kernels' costs of one process and the link of a
# measured all-reduce. Times of a shared machine: the best of a few tries.
. "$(dirname "$0")/../help/tap.sh"
# shellcheck source=tests/help/train_net.sh
. "$(dirname "$0")/../help/train_net.sh"
unset TANDEM_TEXT
export OMP_NUM_THREADS=1
cat nn/*.c >"$work/text.txt"
cd "$work" || exit 1
tdrun=$apps/tdrun

few=(--data text.txt --preset 'gpt-nano layers=2 heads=2 width=32 context=32 dropout=0.1' --batch-size 2 --epochs 1 --epoch-steps 3)
works 'gpt on 64 ranks' "$tdrun" --nproc-per-node 64 "$apps/gpt" "${few[@]}"
hash=$(grep -o 'fingerprint.*' out)
for on in 1 2 7; do
    works "64 virtual ranks on $on" "$tdrun" --world 64 --on $on "$apps/gpt" "${few[@]}"
    says 'the fingerprint of real ones' "$hash"
done
works '64 simulated ranks' "$tdrun" --world 64 --sim "$apps/gpt" "${few[@]}"
says 'the fingerprint of real ones' "$hash"

# ---- the clock ----

# The real step: images a second of the last epoch, of which the first has warmed up.
cores=$(nproc)
batch=64 steps=12
measured() { # measured RANKS: ms a step
    "$tdrun" --nproc-per-node "$1" "$apps/cifar_resnet18" --limit $((batch * steps * $1)) --batch-size $batch --workers 1 \
        --epochs 3 --lr 0.001 --save-every 0 2>&1 | tee out |
        awk -v b=$((batch * $1)) '/== epoch:/ { for (i = 1; i < NF; i++) if ($(i + 1) ~ /^images\/s/) rate = $i } END { print 1e3 * b / rate }'
}
clock() { # clock RANKS: ms a step
    "$tdrun" --world "$1" --sim --kernels kernels --cores "$cores" --link "$link" "$apps/cifar_resnet18" \
        --limit $((batch * 3 * $1)) --batch-size $batch --workers 1 --epochs 1 --lr 0.001 --save-every 0 2>&1 | tee out |
        sed -n 's/^sim: a step takes \([0-9.]*\) ms.*/\1/p'
}
link=${SIM_LINK:-4GB/s,20us} # of shared memory, about: SIM_LINK has what a machine's is
works 'the costs of kernels' "$apps/cifar_resnet18" --limit $((batch * steps)) --batch-size $batch --workers 1 --epochs 2 \
    --lr 0.001 --save-every 0 --profile-kernels kernels
for ranks in 2 4; do
    for try in 1 2 3 4; do
        real=$(measured $ranks) simulated=$(clock $ranks)
        echo "# $ranks ranks, try $try: measured $real ms a step, on the clock $simulated"
        awk "BEGIN { r = $simulated / $real; exit !(r > 0.85 && r < 1.15) }" && break
    done
    awk "BEGIN { r = $simulated / $real; exit !(r > 0.85 && r < 1.15) }"
    tap $? "$ranks ranks: the clock is within 15 % of the measured step" out
done
done_testing
