#!/usr/bin/env bash
# --shard: the weights of a run without it, in each program; a stopped run goes on with another number
# of processes, another way of sharding, or without.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
# shellcheck source=tests/help/train_net.sh
. "$(dirname "$0")/../help/train_net.sh"
export OMP_NUM_THREADS=1
short=(--limit 64 --batch-size 16 --workers 1 --lr 0.002 --ema 0.9)
app=$apps/cifar_resnet18
cd "$work" || exit 1
few_images

# same_tensors NAME FILE FILE: all that a checkpoint has behind its header, optimizer state included.
same_tensors() {
    tail -c +$((9 + $(od -An -t u8 -N 8 "$2"))) "$2" >one.tensors
    tail -c +$((9 + $(od -An -t u8 -N 8 "$3"))) "$3" >other.tensors
    same "$1" one.tensors other.tensors
}

# The lesson counts the bytes: the table's sum is the formula's.
works 'shard_memory' "$apps/shard_memory" 2
awk '/^(none|optimizer|gradients|gathered|parameters) / { rows++; good += $6 == $7; same += $9 == loss || rows == 1
        loss = $9; less += $6 < all || rows == 1; all = $6; wire[$1] = $8 }
    END { n = wire["none"]; sent = n == 24.31 && wire["optimizer"] == 36.46 && wire["gradients"] == n
          exit !(rows == 5 && good == 5 && same == 5 && less == 5 && sent && wire["gathered"] < 1.5 * n &&
              wire["gathered"] > 1.4 * n && wire["parameters"] == 12.18) }' out
tap $? 'bytes are those of the formula, those on the wire are as many, and the losses are equal' out
fails 'shard_memory: another word' 64 '^usage: shard_memory' "$apps/shard_memory" 2 all
fails 'shard_memory: too many' 64 '^usage: shard_memory \[PROCESSES' "$apps/shard_memory" 65

works 'without sharding' "$app" "${short[@]}" --spawn 2 --epochs 2 --save plain
works 'sharded' "$app" "${short[@]}" --spawn 2 --epochs 2 --shard optimizer --save sharded
says 'it says so' "^the optimizer's state is cut into 2 windows: [0-9.]+ MiB a process\$"
same_tensors 'the same weights, averages and state' plain sharded
works 'saved while training goes on' "$app" "${short[@]}" --spawn 2 --epochs 2 --shard optimizer --save later \
    --save-every-steps 1 --save-async
tap "$(($(grep -c 'Saved: later' out) != 4))" 'every save is told'
same_tensors 'to the same weights and state' sharded later
works 'without sharding' "$app" "${short[@]}" --spawn 2 --epochs 2 --save later --save-async
same_tensors 'the same' plain later
fails 'a folder that is not there' 1 'none/there cannot be written: the folder none: ' "$app" "${short[@]}" --spawn 2 --epochs 1 --save none/there --save-async
# A loss that is not finite, while a checkpoint is written.
for way in '--shard optimizer' '--comm-hook bf16'; do
    # shellcheck disable=SC2086
    fails "a failure while $way saves" 1 'try a lower --lr' "$app" --spawn 2 $way --limit 256 --batch-size 8 \
        --epochs 1 --lr 1e6 --save wild --save-every-steps 2 --save-async
    ! compgen -G 'wild.tmp*' >/dev/null
    tap $? 'no temporary file is left'
done
works 'one epoch' "$app" "${short[@]}" --spawn 2 --epochs 1 --shard optimizer --save part
cp part again
works 'and on' "$app" --spawn 2 --epochs 2 --resume part --save part
says 'sharded, too' "^the optimizer's state is cut into 2 windows"
same 'to the same file' sharded part
works 'without sharding from there' "$app" --spawn 2 --epochs 2 --shard none --resume again --save other
same_tensors 'to the same weights and state' plain other
for way in gradients parameters; do
    works "$way: another way from there" "$app" --spawn 2 --epochs 2 --shard $way --resume again --save other
    says 'it says so' "^the optimizer's state.* and .* are cut into 2 windows: [0-9.]+ MiB a process\$"
    same_tensors "$way: to the same weights, averages and state" plain other
done
works 'two replicas of two windows' "$app" --spawn 4 --mesh rep=2,dp=2 --epochs 2 --resume again --shard parameters --save other
says 'it says so' "cut into 2 windows in each of 2 replicas: [0-9.]+ MiB a process\$"
fails 'a mesh for more processes' 1 "the mesh 'rep=2,dp=2' is for 4 ranks, not for 2" \
    "$app" "${short[@]}" --spawn 2 --mesh rep=2,dp=2
fails 'a pipeline' 1 'the mesh has pp=2 and tp=1, and cifar_resnet18 neither cuts its model into stages' \
    "$app" "${short[@]}" --spawn 2 --mesh pp=2
fails 'a mesh of one process' 1 "the mesh 'dp=2' is for 2 ranks, not for 1" "$app" "${short[@]}" --mesh dp=2
fails 'no mesh' 64 "--mesh: 'dp' is not one of DIM=N,..." "$app" --mesh dp
works 'with three processes' "$app" --spawn 3 --epochs 2 --resume again --save other
says 'in three windows' "^the optimizer's state is cut into 3 windows"
works 'one process' "$app" --limit 32 --batch-size 32 --epochs 1 --shard optimizer
says 'nothing is shared' '^--shard: there is one process, and nothing is shared$'
fails 'files of nobody' 1 'offload is for processes with --shard parameters' "$app" --limit 32 --offload .
fails 'bf16 for nobody' 1 'wire is for processes with --shard parameters' "$app" --limit 32 --wire bf16
fails 'the host of a CPU' 1 "offload 'cpu' is for models on GPUs" "$app" "${short[@]}" --spawn 2 --shard parameters --offload cpu
works 'parameters, in bf16' "$app" "${short[@]}" --spawn 2 --epochs 2 --precision bf16 --shard parameters --save wide
works 'parameters that travel as bf16' "$app" "${short[@]}" --spawn 2 --epochs 2 --precision bf16 --shard parameters --wire bf16 --save narrow
same_tensors 'under bf16 arithmetic the same weights and state' wide narrow
fails 'another word' 64 "'all' is not one of none\|optimizer\|gradients\|parameters" "$app" --shard all

# The trainer.
make_folders data
net=("$apps/tdrun" --nproc-per-node 2 "$apps/train_net" --cfg "$repository/apps/tools/config/efficientnet_b0.yaml"
    MODEL.NUM_CLASSES 5 TRAIN.DATASET data TRAIN.IM_SIZE 32 TRAIN.BATCH_SIZE 2 TRAIN.WORKERS 1 TRAIN.MIN_AREA 0.5
    RNG_SEED 1 TEST.DATASET data TEST.IM_SIZE 32 TEST.CROP_SIZE 32 OPTIM.MAX_EPOCH 2 OPTIM.BASE_LR 0.02
    OPTIM.LR_POLICY steps MODEL.SYNCBN True)
works 'train_net' "${net[@]}" OUT_DIR plain_exp
works 'train_net, sharded' "${net[@]}" --shard optimizer OUT_DIR exp
says 'it says so' "^the optimizer's state is cut into 2 windows"
same_tensors 'the same weights and state' plain_exp/checkpoints/ckpt_ep_002 exp/checkpoints/ckpt_ep_002
works 'train_net, parameters in files' "${net[@]}" --shard parameters --offload . OUT_DIR whole_exp
same_tensors 'the same weights and state' plain_exp/checkpoints/ckpt_ep_002 whole_exp/checkpoints/ckpt_ep_002
mkdir -p again_exp/checkpoints
mv exp/checkpoints/ckpt_ep_001 again_exp/checkpoints
works 'the second epoch again' "${net[@]}" OUT_DIR again_exp
says 'sharded, too' "^the optimizer's state is cut into 2 windows"
same 'the same bits' exp/checkpoints/ckpt_ep_002 again_exp/checkpoints/ckpt_ep_002
done_testing
