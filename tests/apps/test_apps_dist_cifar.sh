#!/usr/bin/env bash
# CIFAR-10 by every way of starting: the main job to the same bits, resumed and by recomputation too,
# and the lessons to its weights. CIFAR-10 where TANDEM_DATA names it, synthetic pictures otherwise.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TANDEM_RUN_ID
export OMP_NUM_THREADS=1
tools=$PWD/tests
cd "$work" || exit 1
few_images
few="--limit 128 --batch-size 32 --epochs 2"
main_job="$apps/cifar_resnet18 $few"
slurm="SLURM_JOB_ID=7 SLURM_NTASKS=2 SLURM_JOB_NODELIST=127.0.0.1 MASTER_PORT=$(free_port)"

# ---- the main job ----

# shellcheck disable=SC2086
works 'two epochs, spawned' $main_job --spawn 2 --save two --save-model model
says 'rank 0 saves' '^\(rank: 0\)   == Saved: two$'
says 'it is tested' '^== test: 128 images \| loss: '
says '.01 for each process' ', lr 0\.02,'
cp out spawned.txt
for file in two model; do
    "$apps/predict" $file "$tools/pictures/rgb.png" >$file.said 2>&1
done
test -s two.said && cmp two.said model.said && grep -qE '%  [a-z]+$' two.said
tap $? 'a wrapped model is saved under its own name' model.said
# shellcheck disable=SC2086
works 'one epoch' $main_job --spawn 2 --epochs 1 --save part --auto-resume
# shellcheck disable=SC2086
works 'the same, running blocks again' $main_job --spawn 2 --epochs 1 --save blocks --recompute block
same 'to the same bits' part blocks
# shellcheck disable=SC2086
works 'and on from there' $main_job --spawn 2 --save part --auto-resume
says 'it says so' '^resumed from part after step 0 of epoch 2$'
same 'the same bits' two part
# shellcheck disable=SC2086
works 'by tdrun' "$apps/tdrun" --nproc-per-node 2 $main_job --save by_tdrun
same 'the same bits' two by_tdrun
together "in Slurm's environment" \
    "$slurm SLURM_STEP_NODELIST=127.0.0.1 SLURM_PROCID=0 SLURM_LOCALID=0 $main_job --save by_slurm" \
    "$slurm SLURM_STEP_NODELIST=127.0.0.1 SLURM_PROCID=1 SLURM_LOCALID=1 $main_job --save by_slurm"
same 'the same bits' two by_slurm
mpi="OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_PORT=$(free_port)"
together "in mpirun's environment" \
    "$mpi OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0 $main_job --save by_mpi" \
    "$mpi OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1 $main_job --save by_mpi"
same 'the same bits' two by_mpi
# shellcheck disable=SC2086
works 'on one device' $main_job --save-model alone
cp out alone.txt
# shellcheck disable=SC2086
works '--dp' $main_job --dp 2 --save-model dp
cp out dp.txt
# shellcheck disable=SC2086
fails 'two ways at once' 1 'one way at a time' $main_job --dp 2 --spawn 2
# shellcheck disable=SC2086
fails 'and under a launcher' 1 'tdrun, srun or mpirun has started' env RANK=0 $main_job --spawn 2

# ---- the lessons ----

like() { # like LESSON HOW: the lesson's weights, steps and test are those of the main job's run HOW
    local model=$2
    [ "$2" != spawned ] || model=model
    grep -E '^== (step|test): ' out >"$1.steps"
    grep -E '^== (step|test): ' "$2.txt" | sed 's/ (synthetic, NOT CIFAR-10)$//' >"$2.steps"
    same "$1: prints the same numbers" "$2.steps" "$1.steps"
    test "$(python3 -I -S "$tools/help/weights.py" hash "$1.safetensors" 2>&1)" = \
        "$(python3 -I -S "$tools/help/weights.py" hash $model)"
    tap $? "$1: the same weights"
}
# shellcheck disable=SC2086
works 'cifar_single' "$apps/cifar_single" $few
says 'its heading' '^=======  Training  =======$'
says 'it says where the model is' '^== saved: cifar_single\.safetensors$'
like cifar_single alone
mv cifar_single.safetensors single
# shellcheck disable=SC2086
works 'cifar_dp on one device' "$apps/cifar_dp" $few --devices 1
same 'is the same' single cifar_dp.safetensors
# shellcheck disable=SC2086
works 'cifar_dp' "$apps/cifar_dp" $few
like cifar_dp dp
# shellcheck disable=SC2086
works 'cifar_ddp_spawn' "$apps/cifar_ddp_spawn" $few
says 'rank 1 says hello' '^\[init\] == local rank: 1, global rank: 1 ==$'
says 'rank 0 saves' '^\(rank: 0\)   == Saved: cifar_ddp_spawn\.safetensors$'
like cifar_ddp_spawn spawned
mv cifar_ddp_spawn.safetensors lesson
nodes="$apps/cifar_ddp_spawn $few --nodes 2 --ngpus_per_node 1 --dist-url tcp://127.0.0.1:$(free_port) --node_rank"
together 'cifar_ddp_spawn as two nodes' "$nodes 1" "$nodes 0"
says 'the second node has global rank 1' '^\[init\] == local rank: [01], global rank: 1 ==$'
like cifar_ddp_spawn spawned
# shellcheck disable=SC2086
works 'cifar_ddp_launch by tdrun' "$apps/tdrun" --nproc-per-node 2 "$apps/cifar_ddp_launch" $few
like cifar_ddp_launch spawned
app="$apps/cifar_ddp_slurm $few"
together "cifar_ddp_slurm in Slurm's environment" "$slurm SLURM_PROCID=0 SLURM_LOCALID=0 $app" \
    "$slurm SLURM_PROCID=1 SLURM_LOCALID=1 $app"
like cifar_ddp_slurm spawned # its learning rate, too, is .01 for each process
for name in launch slurm; do
    same "cifar_ddp_$name: the same file" lesson cifar_ddp_$name.safetensors
done
fails 'cifar_ddp_launch without a launcher' 1 'RANK' "$apps/cifar_ddp_launch" --limit 64
fails 'cifar_ddp_spawn: hosts and no place to meet' 64 '--dist-url' "$apps/cifar_ddp_spawn" --nodes 2
done_testing
