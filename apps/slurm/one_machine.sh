#!/usr/bin/env bash
# A Slurm cluster of two nodes, n1 and n2, on this machine, for as long as a command runs (without one, a shell):
#
#     apps/slurm/one_machine.sh srun --nodes 2 --ntasks 2 apps/cifar_ddp_slurm
#
# It needs Slurm (apt-get install slurm-wlm) and root, and neither systemd nor munge nor a database: one controller
# and two node daemons, with all their files in a folder of /tmp. They listen on the loopback only. Without munge
# whoever can connect there, which is every user of this machine, can run programs as root meanwhile: this is for a
# machine of your own. Tests source this file for its functions.
slurm_daemons=()

# Slurm's daemons and commands bind to the address of the machine's name: it is to be the loopback's.
slurm_on_loopback() { # slurm_on_loopback SCRIPT ARGUMENT...: where it is not, starts the script again, in a place where it is
    [ "$(hostname)" != localhost ] && [[ "$(getent ahostsv4 "$(hostname)")" != '127.0.0.1 '* ]] || return 0
    unshare --uts true || {
        echo "${1##*/}: a cluster that only this machine reaches has a name of its own, which a container may not give:" \
            "docker run --cap-add SYS_ADMIN" >&2
        exit 1
    }
    exec unshare --uts bash -c 'hostname localhost && exec bash "$@"' bash "$@"
}

slurm_conf() { # slurm_conf FOLDER FIRST-PORT: writes the cluster's files
    local host i dir=$1
    host=$(hostname -s)
    export SLURM_CONF=$dir/slurm.conf
    mkdir -p "$dir/state" "$dir/log" "$dir/run"
    cat >"$SLURM_CONF" <<C
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$2
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
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
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
        echo "NodeName=n$i NodeHostname=$host NodeAddr=127.0.0.1 Port=$(($2 + i)) CPUs=8" \
            "Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=4000" \
            "State=UNKNOWN" >>"$SLURM_CONF"
    done
    printf 'CgroupPlugin=cgroup/v1\n' >"$dir/cgroup.conf"
}

slurm_up() { # slurm_up FOLDER: daemons, as children of this script; until all nodes are idle, 60 s
    local i
    slurmctld -c -D >"$1/log/ctld.out" 2>&1 &
    slurm_daemons+=($!)
    for i in 1 2; do
        slurmd -D -N n$i >"$1/log/n$i.out" 2>&1 &
        slurm_daemons+=($!)
    done
    for ((i = 0; i < 600; i++)); do
        [ "$(sinfo -h -o '%T %D' 2>/dev/null)" = 'idle 2' ] && return 0
        sleep 0.1
    done
    tail -n 20 "$1"/log/* >&2
    return 1
}

slurm_down() { # slurm_down FOLDER: ends them, and removes the folder
    local i
    if [ ${#slurm_daemons[@]} -gt 0 ]; then
        # Jobs first: a step that cannot tell the controller of its end keeps its node's daemon.
        squeue -h -o %A 2>/dev/null | xargs -r scancel 2>/dev/null
        for ((i = 0; i < 150; i++)); do
            [ -n "$(squeue -h 2>/dev/null)" ] || break
            sleep 0.1
        done
        kill "${slurm_daemons[@]}" 2>/dev/null
        for ((i = 0; i < 100; i++)); do
            kill -0 "${slurm_daemons[@]}" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL "${slurm_daemons[@]}" 2>/dev/null
        wait "${slurm_daemons[@]}" 2>/dev/null
    fi
    rm -rf "$1"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    for tool in slurmctld slurmd srun sinfo; do
        command -v $tool >/dev/null || { echo "${0##*/}: $tool is not installed: apt-get install slurm-wlm" >&2; exit 1; }
    done
    [ "$(id -u)" = 0 ] || { echo "${0##*/}: Slurm's daemons run as root here: sudo $0 ..." >&2; exit 1; }
    slurm_on_loopback "$0" "$@"
    folder=$(mktemp -d)
    trap 'slurm_down "$folder"' EXIT
    chmod 755 "$folder" # tasks read it
    slurm_conf "$folder" $((20000 + $$ % 1000 * 3))
    slurm_up "$folder" || exit 1
    [ $# -gt 0 ] || { echo "sinfo, srun and sbatch know two nodes, n1 and n2; exit ends them"; set -- "${SHELL:-bash}"; }
    "$@"
fi
