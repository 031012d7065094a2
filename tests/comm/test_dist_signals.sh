#!/usr/bin/env bash
# Signals to tdrun as terminals and batch systems send them, and what it must not wait for or kill.
# run: waits
. "$(dirname "$0")/../help/tap.sh"
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
tdrun=$apps/tdrun
set -m # each launcher is a job of its own, with the usual signals
trap 'kill -KILL $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT
ulimit -c 0 # SIGXCPU and SIGQUIT would dump cores
cd "$work" || exit 1

lines() { [ "$(wc -l <"$1")" -ge "$2" ]; }
state_is() { [[ $(sed 's/.*) //; s/ .*//' "/proc/$1/stat") == $2 ]]; } # state_is PID PATTERN
# is_stopped PID: in time. In a shell of its own, as a job that stops ends its shell's loops.
is_stopped() { (await state_is "$1" T); }
has_ended() { [ ! -e "/proc/$1" ] || state_is "$1" '[ZX]'; }

start() { # start OPTIONS... SCRIPT: two workers that run it, in an empty folder; $launcher
    rm -rf job
    mkdir job
    # shellcheck disable=SC2016
    (cd job && exec "$tdrun" --nproc-per-node 2 "${@:1:$#-1}" sh -c "${*: -1}") >out 2>&1 &
    launcher=$!
    await lines job/up 2
}
code_is() { # code_is NAME CODE: of the launcher
    await has_ended $launcher # wait would also return for one that was stopped
    wait "$launcher" 2>/dev/null
    local rc=$?
    echo "# code $rc, wanted $2" >>out
    [ $rc -eq "$2" ]
    tap $? "$1: code $2" out
}

# ---- each signal reaches the workers, and the exit code says which it was ----

for signal in TERM INT HUP QUIT USR1 USR2 XCPU; do
    start "trap 'echo $signal >>told; exit 0' $signal; echo >>up; while :; do sleep 0.02; done"
    kill -$signal $launcher
    code_is "SIG$signal" $((128 + $(kill -l $signal)))
    lines job/told 2
    tap $? "SIG$signal: both workers were told" out
    grep -q "was stopped by SIG$signal" out
    tap $? "SIG$signal: it says so" out
done
start 'echo >>up; while :; do sleep 0.02; done'
kill -USR1 $launcher
code_is 'workers that do not handle a warning' 138
saves='trap "" TERM; trap "echo >>told; sleep 1; echo >>saved; exit 0" SIGNALS; echo >>up; while :; do sleep 0.02; done'
start --grace 0.1 "${saves/SIGNALS/USR1}"
kill -USR1 $launcher
code_is 'a warning, and workers that need longer than the grace period' 138
lines job/saved 2
tap $? 'they may end what they do' out
start --grace 0.1 'trap "echo >>told" USR1; trap "" TERM; echo >>up; while :; do sleep 0.02; done'
kill -USR1 $launcher
await lines job/told 2
kill -TERM $launcher
code_is 'a warning, then SIGTERM: its grace period counts' 138

# ---- the same request more than once ----

start "${saves/SIGNALS/HUP}"
kill -HUP $launcher # by the shell
await lines job/told 2
kill -HUP $launcher # and by the system, when the shell has ended
code_is 'SIGHUP twice, as from a closed terminal' 129
lines job/saved 2
tap $? 'workers save' out
start 'trap "" INT TERM; trap "echo >>told; sleep 1; echo >>saved; exit 0" USR2; echo >>up; while :; do sleep 0.02; done'
kill -USR2 $launcher
await lines job/told 2
kill -INT $launcher
code_is 'one signal after another (LSF): SIGUSR2, SIGINT' 140
lines job/saved 2
tap $? 'the second one does not kill' out
start --grace 600 'trap "echo >>told" INT; echo >>up; while :; do sleep 0.02; done'
kill -INT $launcher
await lines job/told 2
kill -INT $launcher
code_is 'Ctrl-C twice: at once' 130

# ---- Ctrl-Z and fg ----

start 'echo $$ >pid.$RANK; echo >>count; echo >>up; for i in $(seq 99); do sleep 0.02; echo >>count; done'
kill -TSTP $launcher
is_stopped $launcher
tap $? 'SIGTSTP stops tdrun' out
is_stopped "$(cat job/pid.0)" && is_stopped "$(cat job/pid.1)"
tap $? 'and its workers' out
before=$(wc -l <job/count)
sleep 0.5
[ "$(wc -l <job/count)" -eq "$before" ]
tap $? 'none of them goes on'
kill -CONT $launcher
code_is 'SIGCONT: they go on to the end' 0
[ "$(wc -l <job/count)" -eq 200 ]
tap $? 'all of it'
start 'echo >>up; while :; do sleep 0.02; done'
kill -TSTP $launcher
is_stopped $launcher
kill -TERM $launcher
kill -CONT $launcher
code_is 'SIGTERM while all is stopped' 143

# ---- what is not the launcher's ----

# `helper & exec tdrun`, as job scripts and the entry points of containers do.
cat >script <<'END'
(trap '' TERM; while sleep 0.02; do echo >>alive; done) &
echo $! >helper
exec "$1" --max-restarts 1 sh -c '[ "$TANDEM_RESTART_COUNT" = 1 ] || exit 3'
END
works 'a helper that was there before tdrun' bash script "$tdrun"
helper=$(cat helper)
before=$(wc -l <alive)
await lines alive $((before + 3))
tap $? 'lives on after a restart and the end'
kill -KILL "$helper"

# ---- a console that nobody reads ----

mkfifo console
exec 9<>console
dd if=/dev/zero bs=4096 count=16 status=none >&9 # all that a pipe takes
timeout 60 "$tdrun" --nproc-per-node 2 --max-restarts 1 sh -c \
    'echo >>started.$RANK; [ "$RANK" = 0 ] || exit 3; exec sleep 60' >&9 2>&9
rc=$?
[ $rc -eq 3 ]
tap $? "a full pipe as stdout and stderr: the launcher ends (code $rc)"
lines started.1 2
tap $? 'and it has restarted the workers before'
exec 9>&-

done_testing
