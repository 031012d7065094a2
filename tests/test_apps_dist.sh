#!/usr/bin/env bash
# The lessons with several processes: what they print, PyTorch's losses, and, for wine, equal bits by
# every way of starting (CIFAR-10's are in test_apps_dist_cifar.sh).
. "$(dirname "$0")/tap.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TANDEM_RUN_ID
export OMP_NUM_THREADS=1
golden=$PWD/tests/golden/wine_ddp2_losses.txt
wine_data="--data $PWD/data/wine.csv"
cd "$work" || exit 1

# ---- the group ----

check_basics() { # check_basics HOW HEADING
    says "$1: how they have met" "^$2"
    says "$1: rank 1 of 2" '^  rank 1: of 2, local rank 1 of 2, backend [a-z]+$'
    says "$1: epoch 0 of the sampler on rank 0" '^  rank 0: epoch 0 \[8, 2, 7, 4, 6\]$'
    says "$1: and on rank 1, padded with the first" '^  rank 1: epoch 0 \[0, 3, 1, 5, 8\]$'
    says "$1: epoch 1 has another order" '^  rank 0: epoch 1 \[4, 6, 7, 8, 1\]$'
    says "$1: saved" '^\(rank: 0\)   == Saved: '
    test "$(sed -n 's/.*== Loaded; sum of the weights: //p' out | sort -u | wc -l)" -eq 1
    tap $? "$1: rank 0's weights on both"
    says "$1: all_gather on rank 0" '^  rank 0: all_gather +\[1, 2, 3, 4\]$'
    says "$1: all_gather on rank 1" '^  rank 1: all_gather +\[1, 2, 3, 4\]$'
    says "$1: all_reduce on rank 0" '^  rank 0: all_reduce sum \[4, 6\]$'
    says "$1: all_reduce on rank 1" '^  rank 1: all_reduce sum \[4, 6\]$'
    says "$1: all gathered" '^  rank 1: all gathered +\[1, 1, 1, 1, 1, 0, 0, 0, 0, 1\]$'
    says "$1: scored once" '^  with the padding 6/10, each sample once 5/9$'
}
basics=$apps/group_basics
works 'group_basics, spawned' "$basics"
check_basics spawned '4\. spawned'
by_hand="$basics --init tcp://127.0.0.1:$(free_port) --world-size 2 --rank"
together 'group_basics, by hand' "$by_hand 0" "sleep 0.3; $by_hand 1"
check_basics 'by hand' '1\. started by hand'
place="MASTER_ADDR=127.0.0.1 MASTER_PORT=$(free_port) WORLD_SIZE=2"
together 'group_basics, by the environment' "$place RANK=0 $basics" "$place RANK=1 $basics"
check_basics 'by the environment' '5\. launched'
test ! -e group_basics.safetensors
tap $? 'its file is gone'

works 'ring_allreduce' "$apps/ring_allreduce" --nprocs 4 --kib 64 --rounds 2
says 'the parameter server has 3 vectors to send' '^parameter server .* ms +192 +64 +64 +64$'
says 'in the ring each has 2(n-1)/n of one' '^ring .* ms +96 +96 +96 +96$'
says 'the backend itself' '^td_all_reduce .* ms'
works 'ring_allreduce, sizes that do not divide' "$apps/ring_allreduce" --nprocs 3 --kib 1 --rounds 2

# ---- wine ----

compare_losses() { # compare_losses NAME LOG FIRST-COLUMN: both ranks' losses are PyTorch's
    python3 - "$2" "$golden" "$3" >out 2>&1 <<'P'
import csv, sys
log, golden, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
rows = [line.split() for line in open(golden) if not line.startswith("#")]
worst = 0
for rank in 0, 1:
    table = csv.DictReader(open(f"{log}/rank{rank}/metrics.csv"))
    steps = [float(r["loss"]) for r in table]
    ours = [sum(steps[i:i + 3]) / 3 for i in range(0, len(steps), 3)]
    theirs = [float(row[first + rank]) for row in rows]
    assert len(ours) == len(theirs) == 100, (len(ours), len(theirs))
    worst = max([worst] + [abs(a - b) / b for a, b in zip(ours, theirs)])
print("largest relative difference:", worst)
sys.exit(worst > 5e-5)
P
    tap $? "$1" out
}

# shellcheck disable=SC2086
works 'wine_ddp_spawn' "$apps/wine_ddp_spawn" $wine_data --save spawned --log-dir log
says 'rank 0 says hello' '^\[init\] == local rank: 0, global rank: 0 ==$'
says 'rank 1 says hello' '^\[init\] == local rank: 1, global rank: 1 ==$'
says 'the first sample' '^Target: 2$'
says 'the mean of both ranks' '^Epoch 0, Loss: 1\.0401$'
says 'the checkpoint' '^Epoch 50 \| Model saved to model_50\.\.\.$'
says 'all test wines are right' '^Test: 36/36 right$'
test "$(grep -c '^Epoch .*Loss' out)" -eq 100
tap $? 'one rank prints' out
compare_losses "both ranks' losses are PyTorch's within 5e-5" log 0
# shellcheck disable=SC2086
works 'without set_epoch' "$apps/wine_ddp_spawn" $wine_data --save unset --log-dir unset --no-set-epoch --shard
says "--shard: rank 0's own loss" '^Epoch 0, Loss: 1\.0361$'
compare_losses "without set_epoch, too" unset 2
# shellcheck disable=SC2086
works 'going on from epoch 50' "$apps/wine_ddp_spawn" $wine_data --save again --save-every 99 \
    --resume spawned/model_50.safetensors
# shellcheck disable=SC2086
works 'without a stop' "$apps/wine_ddp_spawn" $wine_data --save whole --save-every 99
same 'the same bits' again/model_99.safetensors whole/model_99.safetensors
nodes="$apps/wine_ddp_multinode $wine_data --nodes 2 --procs-per-node 1 --save nodes \
    --dist-url tcp://127.0.0.1:$(free_port) --node-rank"
together 'wine_ddp_multinode as two nodes' "$nodes 1" "$nodes 0"
says 'the second node has global rank 1' 'global rank: 1 ==$'
same 'the same bits as spawned' spawned/model_50.safetensors nodes/model_50.safetensors
# shellcheck disable=SC2086
works 'wine_ddp_launch by tdrun' "$apps/tdrun" --nproc-per-node 2 "$apps/wine_ddp_launch" $wine_data --save launch
same 'the same bits as spawned' spawned/model_50.safetensors launch/model_50.safetensors

# ---- CIFAR-10 ----

works 'cifar_ddp_spawn' "$apps/cifar_ddp_spawn" --limit 500 --epochs 3 --batch-size 50 --lr 0.01 --trace t.json
says 'the heading' '^=======  Training  =======$'
says 'the last step' '^== step: \[  5/5\] \[3/3\] \| loss: [0-9]\.[0-9]{3} \| acc: [ 0-9]{2}\.[0-9]{3}%$'
says 'the figures' 'communication [0-9.]+ ms; the step is [0-9.]+ ms longer for it \(overlap [0-9]+ %\)'
sed -n 's/^== step: \[  5.*loss: \([0-9.]*\).*/\1/p' out | awk 'NR == 1 { first = $1 } END { exit !(NR == 3 && $1 < first) }'
tap $? 'it learns: the loss of the third epoch is lower than the first' out
works 'the trace is JSON' python3 -m json.tool t.json
works 'cifar_dp' "$apps/cifar_dp" --limit 128 --batch-size 32 --epochs 2 --threads 2
says 'its last step' '^== step: \[  4/4\] \[2/2\] \| loss: [0-9]\.[0-9]{3} '
done_testing
