#!/usr/bin/env bash
# The mpi backend: what is built on process groups and their collectives, as over shm and gloo, once
# for each number of ranks; lessons under mpirun; ranks that fail. (The library with MPI in it has no
# sanitizers anyway, and what is above it has them over gloo.)
# run: plain
. "$(dirname "$0")/../help/tap.sh"
build=$PWD/${BUILD:-build/cc}
export TANDEM_BACKEND=mpi
if [ ! -e "$build/libtandem-mpi.so" ] || ! command -v mpirun >/dev/null; then
    fails 'mpi, which is not here, says what to install' 1 'libopenmpi-dev' \
        "$apps/cifar_ddp_spawn" --limit 64
    done_testing
fi
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TANDEM_RUN_ID
# Open MPI leaves memory behind at its end, and its components have been unloaded by then, so that their
# frames have no names by which a list of suppressions could tell them: nothing is looked at here. What
# is ours in these programs is looked at over shm and gloo.
export ASAN_OPTIONS=detect_leaks=0
export OMP_NUM_THREADS=1

ranks() { # ranks N COMMAND...: by mpirun; what the ranks after 0 write to stdout is shown if the job fails
    local n=$1 rc
    shift
    rm -f "$work"/rank.*
    # shellcheck disable=SC2016
    timeout 300 mpirun --oversubscribe --bind-to none -n "$n" bash -c \
        '[ "$OMPI_COMM_WORLD_RANK" = 0 ] || exec >"$0.$OMPI_COMM_WORLD_RANK"; exec "$@"' "$work/rank" "$@"
    rc=$?
    [ $rc -eq 0 ] || tail -v -n 20 "$work"/rank.*
    return $rc
}

# Every call for so many ranks must have had its turn in one of the runs.
suite() { # suite PROGRAM N...
    local program=$1 n wanted=0
    shift
    : >"$work/calls"
    for n in "$@"; do
        export TANDEM_TEST_FOLDER=$work/$program.$n${OMPI_MCA_btl:-}
        mkdir "$TANDEM_TEST_FOLDER"
        works "$program over mpi, $n ranks${OMPI_MCA_btl:+, by $OMPI_MCA_btl}" ranks "$n" "$build/tests/$program"
        wanted=$(grep -c '^# procs: [0-9]* ranks' "$work/out")
        grep '^# procs: [0-9]* ranks run$' "$work/out" >>"$work/calls"
    done
    [ "$wanted" -gt 0 ] && [ "$(wc -l <"$work/calls")" -eq "$wanted" ]
    tap $? "$program: all $wanted calls had their turn"
}
suite test_dist_collectives 2 3 4 16
# As between hosts, where transfers end in another order than they began.
export OMPI_MCA_btl=self,tcp
suite test_dist_collectives 2 3 4 16
unset OMPI_MCA_btl
suite test_dist_ddp 2 3 4
suite test_dist_ddp_unused 2 3 4
suite test_dist_ddp_modes 1 2 3 4
suite test_dist_ddp_corners 2 3 4
suite test_dist_sync_bn 1 2 3 4

# ---- stages, slices and leaves: the fingerprints of all layouts of so many ranks are those over shm ----

fingerprints() { grep '^# layouts of' "$work/out"; }
works 'layouts over shm' env TANDEM_BACKEND=shm "$build/tests/test_dist_layouts"
fingerprints >"$work/layouts.shm"
[ "$(wc -l <"$work/layouts.shm")" -eq 4 ]
tap $? 'four models'
for n in 2 3 4; do
    mkdir "$work/layouts.$n"
    export TANDEM_TEST_FOLDER=$work/layouts.$n
    works "layouts over mpi, $n ranks" ranks "$n" "$build/tests/test_dist_layouts"
    fingerprints >"$work/layouts.mpi"
    [ -s "$work/layouts.mpi" ] && ! grep -vxFf "$work/layouts.shm" "$work/layouts.mpi"
    tap $? 'the same fingerprints'
done

# ---- a lesson ----

few="--limit 128 --batch-size 32 --epochs 1"
cd "$work" || exit 1
few_images
# shellcheck disable=SC2086
works 'a lesson under mpirun' ranks 2 "$apps/cifar_ddp_slurm" $few
mv cifar_ddp_slurm.safetensors mpi
# shellcheck disable=SC2086
works 'the same over shm' env TANDEM_BACKEND=shm "$apps/cifar_ddp_spawn" $few
mv cifar_ddp_spawn.safetensors shm
same 'the same bits' shm mpi
# shellcheck disable=SC2086
works 'by TCP' ranks 2 env OMPI_MCA_btl=self,tcp "$apps/cifar_ddp_slurm" $few
same 'the same bits' shm cifar_ddp_slurm.safetensors

# ---- what goes wrong ----

stray() { # processes of the worker that are still there
    pgrep -f "^$build/tests/worker_gloo .* $work/" | tr '\n' ' '
}

all_reduced() { [ "$(grep -cs '^reduced' "$work/log")" -eq 3 ]; }
start() { # start SECONDS FILE: three workers under mpirun, that reduce until FILE is there
    : >"$work/log" # or the lines of the run before would count
    mpirun --oversubscribe --bind-to none -n 3 "$build/tests/worker_gloo" "$1" "$2" \
        >"$work/log" 2>&1 </dev/null &
    mpirun=$!
    await all_reduced
    pid=$(pgrep -f "^$build/tests/worker_gloo .* $2$" | sed -n 2p)
    [ -n "$pid" ] || kill $mpirun # nothing would ever end it
}

ends() { # ends NAME SECONDS PATTERN: mpirun fails in that time, says PATTERN, and leaves nothing
    local rc begin=$EPOCHREALTIME
    wait $mpirun
    rc=$?
    awk "BEGIN { t = $EPOCHREALTIME - $begin; print \"# code $rc after\", t, \"s\"; exit t > $2 }" >>"$work/log"
    tap $((rc == 0 || $? != 0)) "$1: the job ends in time" "$work/log"
    grep -qE -- "$3" "$work/log"
    tap $? "$1: $3" "$work/log"
    for ((i = 0; i < 100; i++)); do # they may take a moment to go
        [ -n "$(stray)" ] || break
        sleep 0.1
    done
    test -z "$(stray)"
    tap $? "$1: no process is left"
}

start 20 "$work/never"
kill -KILL "$pid"
ends 'a killed rank' 15 'signal 9 \(Killed'
start 5 "$work/never" # the beginning, too, must not take longer
kill -STOP "$pid"
ends 'a stopped rank' 25 "timed out after [0-9.]+ s on rank .* its process, pid $pid, is stopped.*so this process ends"
start 20 "$work/stop"
touch "$work/stop"
wait $mpirun
tap $? 'a job that ends well' "$work/log"
fails 'ranks that mpirun has not started' 1 'mpirun -n' "$apps/cifar_ddp_spawn" --limit 64
mkdir "$work/alone"
cp "$apps/cifar_ddp_spawn" "$work/alone"
fails 'without the library' 1 'libopenmpi-dev' "$work/alone/cifar_ddp_spawn" --limit 64
done_testing
