#!/usr/bin/env bash
# The lessons with several processes: what they print, PyTorch's losses, and, for wine, equal bits by
# every way of starting; figures and the trace of the main job (CIFAR-10's
# lessons are in test_apps_dist_cifar.sh).
# run: plain
. "$(dirname "$0")/../help/tap.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TANDEM_RUN_ID
export OMP_NUM_THREADS=1
golden=$PWD/tests/golden/wine_ddp2_losses.txt
compare=$PWD/tests/help/compare_losses.py
ln -s "$PWD/data" "$work/data"
cd "$work" || exit 1
few_images

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
    says "$1: scored with the padding" '^  rank 1: with the padding 6/10$'
    says "$1: scored once" '^  rank 1: each sample once 5/9$'
}
basics=$apps/group_basics
works 'group_basics, spawned' "$basics"
check_basics spawned '1\. spawned'
url=tcp://127.0.0.1:$(free_port)
together 'group_basics, by hand' "$basics 0 2 $url" "sleep 0.3; $basics 1 2 $url"
check_basics 'by hand' '1\. started by hand'
place="MASTER_ADDR=127.0.0.1 MASTER_PORT=$(free_port) WORLD_SIZE=2"
together 'group_basics, by the environment' "$place RANK=0 $basics" "$place RANK=1 $basics"
check_basics 'by the environment' '1\. launched'
test ! -e group_basics.safetensors
tap $? 'its file is gone'

works 'ring_allreduce' "$apps/ring_allreduce" 4 64
awk '/^round/ { round = $2 } /^  rank/ { for (i = 3; i <= NF; i++) sum[round] += $i == 1111; n = NF - 2 }
    END { exit !(n == 4 && sum[0] == 0 && sum[2] == 0 && sum[3] == 4 && sum[4] == 8 && sum[6] == 16) }' out
tap $? 'chunks are complete after 3 rounds, and with all ranks after 6' out
says 'the parameter server has 3 vectors to send' '^parameter server .* ms +192 +64 +64 +64$'
says 'in the ring each has 2(n-1)/n of one' '^ring .* ms +96 +96 +96 +96$'
says 'the backend itself' '^td_all_reduce .* ms'
works 'ring_allreduce, sizes that do not divide' "$apps/ring_allreduce" 3 1
works 'ring_allreduce, more ranks than it prints' "$apps/ring_allreduce" 7 1
says 'they send alike' '^ring .* ms( +2){7}$'
fails 'ring_allreduce: no ranks' 64 '^usage: ring_allreduce \[RANKS' "$apps/ring_allreduce" 0

# ---- wine ----

works 'wine_ddp_spawn' "$apps/wine_ddp_spawn"
cp out spawned
cp model_50.safetensors spawned_50
says 'rank 0 says hello' '^\[init\] == local rank: 0, global rank: 0 ==$'
says 'rank 1 says hello' '^\[init\] == local rank: 1, global rank: 1 ==$'
says 'the first sample' '^Target: 2$'
says 'the mean of both ranks' '^Epoch 0, Loss: 1\.0401$'
says 'the last' '^Epoch 99, Loss: 0\.0407$'
says 'the checkpoint' '^Epoch 50 \| Model saved to model_50\.\.\.$'
says 'all test wines are right' '^Test: 36/36 right$'
test "$(grep -c '^Epoch .*Loss' out)" -eq 100
tap $? 'one rank prints' out
works "the mean of both ranks' losses is PyTorch's" python3 "$compare" spawned "$golden" 0,1
no_hello() { grep -vE '^(\[init\]|tandem: waiting)' "$1"; }
no_hello spawned >spawned_losses
same_run() { # same_run WAY: what was printed and saved is what the spawned ranks print and save
    no_hello out | same "$1: the same output as spawned" - spawned_losses
    same "$1: the same bits as spawned" model_50.safetensors spawned_50
    rm -f model_50.safetensors
}
nodes="$apps/wine_ddp_multinode --nnodes 2 --procs-per-node 1 --master 127.0.0.1:$(free_port) --node-rank"
# The other node starts when the first one says that it waits.
waits='n=0; until grep -qs "tandem: waiting for rank" err.one || [ $((n += 1)) -gt 600 ]; do sleep 0.1; done'
together 'wine_ddp_multinode as two nodes' "$nodes 1 2>err.one; cat err.one >&2" "$waits; $nodes 0"
says 'who came first says for whom it waits' '^tandem: waiting for rank 0 at 127\.0\.0\.1:[0-9]+$'
says 'the second node has global rank 1' '^\[init\] == local rank: 0, global rank: 1 ==$'
same_run 'two nodes'
rm err.one
together 'the first node first' "$nodes 0 1 2>err.one; cat err.one >&2" "$waits; $nodes 1 1"
says 'it names the rank that is missing' '^tandem: waiting for ranks at 127\.0\.0\.1:[0-9]+: 1 joined \(0\), missing: 1$'
works 'wine_ddp_launch by tdrun' "$apps/tdrun" --nproc-per-node 2 "$apps/wine_ddp_launch"
same_run 'by tdrun'
works 'four processes, which pad their parts' "$apps/wine_ddp_spawn" --nprocs 4 --batch-size 16 2 1
says 'each test sample counts once' '^Test: [0-9]+/36 right$'
test "$(grep -c '^\[init\]' out)" -eq 4
tap $? 'four say hello' out
works 'more processes than test samples' "$apps/tdrun" --nproc-per-node 40 "$apps/wine_ddp_launch" 1 1
says 'each of the 36 counts once' '^Test: [0-9]+/36 right$'
fails 'a device that a rank does not have' 1 \
    "^wine_ddp_spawn: rank [01] .*TANDEM_DEVICE: 'toaster' is no device" \
    env TANDEM_DEVICE=toaster "$apps/wine_ddp_spawn"
fails 'wine_ddp_launch without a launcher' 1 'RANK.* \(tdrun sets them' "$apps/wine_ddp_launch"

# ---- CIFAR-10 ----

works 'cifar_resnet18 --spawn' "$apps/cifar_resnet18" --spawn 2 --limit 500 --epochs 3 --batch-size 50 \
    --lr 0.01 --trace t.json
says 'the heading' '^=======  Training  =======$'
says 'the last step' '^== step: \[  5/5\] \[3/3\] \| loss: [0-9]\.[0-9]{3} \| acc: [ 0-9]{2}\.[0-9]{3}%$'
says 'the figures' 'communication [0-9.]+ ms; the step is [0-9.]+ ms longer for it \(overlap [0-9]+ %\)'
sed -n 's/^== step: \[  5.*loss: \([0-9.]*\).*/\1/p' out | awk 'NR == 1 { first = $1 } END { exit !(NR == 3 && $1 < first) }'
tap $? 'it learns: the loss of the third epoch is lower than the first' out
works 'the trace is JSON' python3 -m json.tool t.json
works 'cifar_resnet18 --dp' "$apps/cifar_resnet18" --dp 2 --limit 128 --batch-size 32 --epochs 2 --threads 2
says 'its last step' '^== step: \[  4/4\] \[2/2\] \| loss: [0-9]\.[0-9]{3} '
done_testing
