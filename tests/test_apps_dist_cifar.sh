#!/usr/bin/env bash
# The lessons on CIFAR-10 by every way of starting: equal bits, resumed and by recomputation too.
# CIFAR-10 where TANDEM_DATA names it, synthetic pictures otherwise.
# run: plain
. "$(dirname "$0")/tap.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TANDEM_RUN_ID
export OMP_NUM_THREADS=1
cd "$work" || exit 1

# ---- the lessons ----

few="--limit 128 --batch-size 32 --epochs 2"
# shellcheck disable=SC2086
works 'two epochs' "$apps/cifar_ddp_spawn" $few --save two --save-model model
says 'rank 0 saves' '^\(rank: 0\)   == Saved: two$'
says 'rank 1 loads' '^\(rank: 1\)   == Loaded: two$'
for file in two model; do
    "$apps/predict" $file "$OLDPWD/tests/pictures/rgb.png" >$file.said 2>&1
done
test -s two.said && cmp two.said model.said && grep -qE '%  [a-z]+$' two.said
tap $? 'a wrapped model is saved under its own name' model.said
# shellcheck disable=SC2086
works 'one epoch' "$apps/cifar_ddp_spawn" $few --epochs 1 --save part --auto-resume
# shellcheck disable=SC2086
works 'the same, running blocks again' "$apps/cifar_ddp_spawn" $few --epochs 1 --save blocks --recompute block
same 'to the same bits' part blocks
works 'and on from there' "$apps/cifar_ddp_spawn" $few --save part --auto-resume
says 'it says so' '^resumed from part after step 0 of epoch 2$'
same 'the same bits' two part
# shellcheck disable=SC2086
works 'cifar_ddp_launch by tdrun' "$apps/tdrun" --nproc-per-node 2 "$apps/cifar_ddp_launch" $few --save launched
same 'the same bits' two launched
slurm="SLURM_JOB_ID=7 SLURM_NTASKS=2 SLURM_JOB_NODELIST=127.0.0.1 MASTER_PORT=$(free_port)"
app="$apps/cifar_ddp_slurm $few --save slurm"
together "cifar_ddp_slurm in Slurm's environment" "$slurm SLURM_PROCID=0 SLURM_LOCALID=0 $app" \
    "$slurm SLURM_PROCID=1 SLURM_LOCALID=1 $app"
says '.01 for each process' ', lr 0\.02,'
same 'the same bits' two slurm
fails 'cifar_ddp_launch without a launcher' 1 'RANK' "$apps/cifar_ddp_launch" --limit 64
fails 'cifar_ddp_spawn: hosts and no place to meet' 1 '--dist-url' "$apps/cifar_ddp_spawn" --nodes 2

# shellcheck disable=SC2086
works 'on one device' "$apps/cifar_dp" $few --devices 1 --save one
# shellcheck disable=SC2086
works 'cifar_resnet18' "$apps/cifar_resnet18" $few --save single
same 'is the same' one single
# shellcheck disable=SC2086
works 'cifar_single' "$apps/cifar_single" $few --save single5
same 'is the same, too' one single5

# ---- cifar_resnet18 by every way ----

main_job="$apps/cifar_resnet18 $few"
# shellcheck disable=SC2086
works 'cifar_resnet18 --spawn' $main_job --spawn 2 --save by_spawn
says 'it is tested' '^== test: 128 images \| loss: '
same 'the same bits as the lesson' two by_spawn
# shellcheck disable=SC2086
works 'cifar_resnet18 under tdrun' "$apps/tdrun" --nproc-per-node 2 $main_job --save by_tdrun
same 'the same bits' two by_tdrun
together "cifar_resnet18 in Slurm's environment" \
    "$slurm SLURM_STEP_NODELIST=127.0.0.1 SLURM_PROCID=0 SLURM_LOCALID=0 $main_job --save by_slurm" \
    "$slurm SLURM_STEP_NODELIST=127.0.0.1 SLURM_PROCID=1 SLURM_LOCALID=1 $main_job --save by_slurm"
same 'the same bits' two by_slurm
mpi="OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_PORT=$(free_port)"
together "cifar_resnet18 in mpirun's environment" \
    "$mpi OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0 $main_job --save by_mpi" \
    "$mpi OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1 $main_job --save by_mpi"
same 'the same bits' two by_mpi
# shellcheck disable=SC2086
works 'cifar_dp with a checkpoint' "$apps/cifar_dp" $few --save dp
# shellcheck disable=SC2086
works 'cifar_resnet18 --dp' $main_job --dp 2 --save by_dp
same 'the same bits as the lesson' dp by_dp
# shellcheck disable=SC2086
fails 'two ways at once' 1 'one way at a time' $main_job --dp 2 --spawn 2
# shellcheck disable=SC2086
fails 'and under a launcher' 1 'tdrun, srun or mpirun has started' env RANK=0 $main_job --spawn 2
done_testing
