#!/usr/bin/env bash
# Lessons and the main job in a Slurm cluster of two nodes (on this machine): srun and the batch files as the
# docs give them, gloo between nodes, a task that fails, and scancel.
# run: plain
# run: waits
. "$(dirname "$0")/../help/tap.sh"
# shellcheck source=tests/help/slurm_cluster.sh
. "$(dirname "$0")/../help/slurm_cluster.sh"
# shellcheck source=tests/help/train_net.sh
. "$(dirname "$0")/../help/train_net.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TANDEM_RUN_ID CI
repository=$PWD
few="--limit 256 --batch-size 64 --epochs 1"

# Where a user would stand: apps/ has the programs and the batch files.
mkdir -p "$work/here/apps"
ln -s "$apps"/* "$repository/apps/slurm" "$work/here/apps/"
ln -s "$repository/data" "$work/here/data"
cd "$work/here" || exit 1

works 'the cluster is up' slurm_up "$work/slurm"
export OMP_NUM_THREADS=1 PROCS_PER_NODE=1

job_ends_well() { # job_ends_well NAME FILE OPTIONS...: sbatch; its output goes to $work/out
    local name=$1 rc
    shift
    sbatch --wait --output="$work/job" "$@" >"$work/out" 2>&1
    rc=$?
    cat "$work/job" >>"$work/out"
    tap $rc "$name" "$work/out"
}

works 'wine by srun' srun --nodes 2 --ntasks 2 apps/wine_ddp_launch
says 'one task on each node' 'local rank: 0, global rank: 1'
mv model_50.safetensors srun_50
works 'wine, spawned' apps/wine_ddp_spawn
mv model_50.safetensors spawned_50
same 'the same bits' spawned_50 srun_50
job_ends_well 'apps/slurm/wine.sbatch' apps/slurm/wine.sbatch
same 'the same bits' spawned_50 model_50.safetensors

# shellcheck disable=SC2086
works 'CIFAR-10, spawned' apps/cifar_resnet18 --spawn 2 $few --save cifar_spawned --save-model model
# shellcheck disable=SC2086
job_ends_well 'apps/slurm/cifar.sbatch' --ntasks-per-node=1 --cpus-per-task=1 apps/slurm/cifar.sbatch \
    $few
says 'one task on each node' '^\[init\] == local rank: 0, global rank: 1 ==$'
test "$(weights_of model)" = "$(weights_of cifar_ddp_slurm.safetensors)"
tap $? 'the same weights: .01 for each process, too'
# shellcheck disable=SC2086
job_ends_well 'apps/slurm/cifar_tdrun.sbatch' --cpus-per-task=1 apps/slurm/cifar_tdrun.sbatch \
    $few --save cifar_tdrun --auto-resume
says 'a launcher on each node' 'local rank: 0, global rank: 1'
same 'the same bits' cifar_spawned cifar_tdrun
if [ -e "$apps/../libtandem-gloo.so" ]; then
    # shellcheck disable=SC2086
    works 'the main job by srun, over gloo' env TANDEM_BACKEND=gloo \
        srun --nodes 2 --ntasks 2 apps/cifar_resnet18 $few --save cifar_gloo
    says 'it is gloo' '^DDP, rank 0 of 2 \(gloo\)'
    same 'the same bits' cifar_spawned cifar_gloo
fi

# MPI in a Slurm job: srun itself is MPI's launcher, by PMIx, or mpirun is.
if [ -e "$apps/../libtandem-mpi.so" ]; then
    if srun --mpi=list 2>&1 | grep -q pmix; then
        # shellcheck disable=SC2086
        works 'the main job by srun --mpi=pmix' env TANDEM_BACKEND=mpi \
            srun --mpi=pmix --nodes 2 --ntasks 2 apps/cifar_resnet18 $few --save cifar_pmix
        says 'it is mpi' '^DDP, rank 0 of 2 \(mpi\)'
        same 'the same bits' cifar_spawned cifar_pmix
    else
        tap 0 'srun --mpi=pmix # SKIP this Slurm was built without PMIx'
    fi
    # shellcheck disable=SC2086
    works 'the main job by mpirun in an allocation' env TANDEM_BACKEND=mpi \
        salloc --nodes 2 --ntasks-per-node 1 mpirun apps/cifar_resnet18 $few --save cifar_mpirun
    says 'it is mpi' '^DDP, rank 0 of 2 \(mpi\)'
    same 'the same bits' cifar_spawned cifar_mpirun
    # shellcheck disable=SC2086
    fails 'srun without --mpi: what to do' 1 '^cifar_resnet18: mpi: rank [01]: this process was not started by .*srun --mpi=pmix' \
        env TANDEM_BACKEND=mpi srun --nodes 2 --ntasks 2 apps/cifar_resnet18 $few
fi

# The complete trainer, batch normalisation over both nodes.
make_folders photos
train_net=(apps/train_net --cfg "$repository/apps/tools/config/resnet18.yaml" MODEL.NUM_CLASSES 5 MODEL.SYNCBN True
    TRAIN.DATASET photos TRAIN.IM_SIZE 32 TRAIN.BATCH_SIZE 2 TRAIN.WORKERS 1 OPTIM.MAX_EPOCH 1 RNG_SEED 1
    TEST.DATASET photos TEST.IM_SIZE 32 TEST.CROP_SIZE 32)
works 'train_net by srun' srun --nodes 2 --ntasks 2 "${train_net[@]}" OUT_DIR by_srun
says 'two ranks' 'batch 2 on each of 2 ranks'
works 'train_net by tdrun' apps/tdrun --nproc-per-node 2 "${train_net[@]}" OUT_DIR by_tdrun
same 'the same bits' by_srun/checkpoints/ckpt_ep_001 by_tdrun/checkpoints/ckpt_ep_001

long="--limit 1024 --batch-size 8 --epochs 20 --print-every 1" # 64 steps an epoch: time for a signal
# A task that dies ends the job, at once and not with the code of success.
rm -f "$work/out" # or the lines of the run before would count
# shellcheck disable=SC2086
srun --nodes 2 --ntasks 2 --kill-on-bad-exit=1 --label apps/cifar_resnet18 $long >"$work/out" 2>&1 &
job=$!
await_line 'step: \[  2/64\]' "$work/out"
begin=$EPOCHREALTIME
kill -KILL "$(pgrep -n -f "^apps/cifar_resnet18 .*--print-every 1")"
wait $job
rc=$?
echo "# code $rc after $(awk "BEGIN { print $EPOCHREALTIME - $begin }") s" >>"$work/out"
awk "BEGIN { exit !($rc != 0 && $EPOCHREALTIME - $begin < 60) }"
tap $? 'a killed task ends the job' "$work/out"
says 'the other says which rank has died' 'rank [01] .*(has died|died|closed|lost)'

# scancel --signal=TERM, or the end of the job's time: a checkpoint is written.
rm -f "$work/out"
# shellcheck disable=SC2086
srun --nodes 2 --ntasks 2 --job-name cancelled apps/cifar_resnet18 $long --save cancelled >"$work/out" 2>&1 &
job=$!
await_line 'step: \[  2/64\]' "$work/out"
scancel --signal=TERM --name cancelled
wait $job
says 'TERM from Slurm: it stops with a checkpoint' 'stopped after step [0-9]+ of epoch 1; go on with --resume cancelled'
# shellcheck disable=SC2086
works 'and goes on' srun --nodes 2 --ntasks 2 apps/cifar_resnet18 --resume cancelled --epochs 1
says 'in mid-epoch' '^resumed from cancelled after step '

# A cluster for one command, on a machine whose name is nobody's address, and with no sockets but its own.
works 'a cluster for one command' env -u SLURM_CONF unshare --uts --net sh -c \
    'hostname elsewhere; ip link set lo up; ip addr add 10.78.0.9/32 dev lo; exec bash "$@"' sh \
    "$repository/apps/slurm/one_machine.sh" srun --nodes 2 --ntasks 2 sh -c 'echo "$SLURMD_NODENAME"; ss -Hltnp'
says '  on both nodes' '^n2$'
awk '/^LISTEN/ { sub(":.*", "", $4); split($6, name, "\""); print name[2], $4 }' "$work/out" | sort -u >"$work/listen"
printf '%s 127.0.0.1\n' slurmctld slurmd srun >"$work/wanted"
same '  which listens on the loopback only' "$work/wanted" "$work/listen"
fails 'a wrong option is told' 64 'unrecognized option' srun --ntasks 1 apps/cifar_ddp_slurm --nonsense
done_testing
