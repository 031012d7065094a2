# Sourced after tap.sh: a Slurm cluster of two nodes, n1 and n2, on this machine, in the folder $work/slurm
# (apps/slurm/one_machine.sh). Not a test itself.
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

# shellcheck source=apps/slurm/one_machine.sh
. apps/slurm/one_machine.sh
slurm_on_loopback "$0"
trap 'slurm_down "$work"' EXIT
chmod 755 "$work" # tasks read it
slurm_conf "$work/slurm" $((17000 + $$ % 1000 * 3))
