# Sourced after tap.sh: a Slurm cluster of two nodes, n1 and n2, on this machine: one controller and
# two node daemons, in the folder $work/slurm, without systemd, munge or a database. Not a test itself.
no_cluster() { # no_cluster REASON: where tests must run, that is a failure
    [ -n "${CI:-}" ] || skip_all 'a cluster of two Slurm nodes' "$1"
    echo 1..1
    echo "not ok 1 - a cluster of two Slurm nodes: $1"
    exit 1
}

for tool in slurmctld slurmd srun sbatch scontrol sinfo; do
    command -v $tool >/dev/null || no_cluster "$tool is not installed: make deps test"
done
[ "$(id -u)" = 0 ] || no_cluster 'its daemons run as root here, and this is not root'

export SLURM_CONF=$work/slurm/slurm.conf
slurm_daemons=()

slurm_down() {
    [ ${#slurm_daemons[@]} -eq 0 ] || kill "${slurm_daemons[@]}" 2>/dev/null
    wait "${slurm_daemons[@]}" 2>/dev/null
    rm -rf "$work"
}
trap slurm_down EXIT

slurm_conf() { # slurm_conf FIRST-PORT
    local host dir=$work/slurm i
    host=$(hostname -s)
    mkdir -p "$dir/state" "$dir/log" "$dir/run"
    chmod 755 "$work" # tasks read it
    cat >"$SLURM_CONF" <<C
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$1
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$dir/state
TmpFS=$dir/tmp.%n
SlurmdSpoolDir=$dir/spool.%n
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd.%n.pid
SlurmctldLogFile=$dir/log/slurmctld
SlurmdLogFile=$dir/log/slurmd.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
KillWait=5
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
C
    for i in 1 2; do
        mkdir -p "$dir/spool.n$i" "$dir/tmp.n$i" # PMIx: one for each node
        echo "NodeName=n$i NodeHostname=$host NodeAddr=127.0.0.1 Port=$(($1 + i)) CPUs=8" \
            "Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=4000" \
            "State=UNKNOWN" >>"$SLURM_CONF"
    done
    printf 'CgroupPlugin=cgroup/v1\n' >"$dir/cgroup.conf"
}

slurm_up() { # daemons in the foreground, as children of this script; until all nodes are idle, 60 s
    local i
    slurmctld -c -D >"$work/slurm/log/ctld.out" 2>&1 &
    slurm_daemons+=($!)
    for i in 1 2; do
        slurmd -D -N n$i >"$work/slurm/log/n$i.out" 2>&1 &
        slurm_daemons+=($!)
    done
    for ((i = 0; i < 600; i++)); do
        [ "$(sinfo -h -o '%T %D' 2>/dev/null)" = 'idle 2' ] && return 0
        sleep 0.1
    done
    tail -n 20 "$work"/slurm/log/* >&2
    return 1
}

slurm_conf $((17000 + $$ % 1000 * 3))
