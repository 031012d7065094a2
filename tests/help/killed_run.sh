# Sourced after tap.sh by tests of runs that go on from their latest checkpoint. Not a test itself.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TANDEM_RUN_ID
export OMP_NUM_THREADS=1
RANDOM=${SEED:=$$}

lines() { grep -acs "$1" disturbed; }

# killed_run KILLS LEAST RANKS STEP PROGRAM ARGUMENT...: tdrun with these arguments, whose output goes to the file
# `disturbed`. KILLS times one of the RANKS processes of PROGRAM is killed (SIGKILL) at random: one to five lines like STEP
# after the last start, and then at any moment of a step. The run ends well, after at least LEAST new starts; $made: how many.
killed_run() {
    local kills=$1 least=$2 count=$3 step=$4 program=$5 launcher ranks wanted n
    : >disturbed # it is read at once
    "$apps/tdrun" --nproc-per-node "$count" --max-restarts "$kills" "${@:6}" >>disturbed 2>&1 &
    launcher=$!
    for ((n = 1; n <= kills; n++)); do
        wanted=$(($(lines "$step") + 1 + RANDOM % 5))
        while [ "$(lines "$step")" -lt $wanted ] && kill -0 $launcher 2>/dev/null; do
            sleep 0.01
        done
        sleep "0.0$((RANDOM % 10))"
        mapfile -t ranks < <(pgrep -P $launcher -f "^$program") # not the launcher's guard
        [ ${#ranks[@]} -eq "$count" ] || break # it is over, or ends just now
        kill -KILL "${ranks[RANDOM % count]}"
        while [ "$(lines 'all workers start again')" -lt $n ] && kill -0 $launcher 2>/dev/null; do
            sleep 0.01
        done
    done
    wait $launcher
    tap $? "killed again and again, it ends well (SEED=$SEED)" disturbed
    made=$(lines 'all workers start again')
    test "$made" -ge "$least"
    tap $? "it was started again at least $least times of $kills (was $made)" disturbed
}
