#!/usr/bin/env bash
# Two hosts, as far as their networks know: two network namespaces with one link between them. Ranks
# meet and reduce across it; the link is cut, and both ranks say so in time.
. "$(dirname "$0")/../help/tap.sh"
build=$PWD/${BUILD:-build/cc}
worker=$build/tests/worker_gloo
timeout=3
slack=10 # seconds; promised is one, which a busy machine cannot show
[ -z "${TANDEM_LONG:-}" ] || slack=1
. "$(dirname "$0")/../help/netns.sh"

start() { # start NAME [TIMEOUT]: a rank on each host, in the background; output in $work/NAME.RANK
    local rank
    for rank in 0 1; do
        RANK=$rank WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 TANDEM_BACKEND=gloo \
            on "$rank" "$worker" "${2:-20}" "$work/$1.stop" \
            >"$work/$1.$rank" 2>&1 </dev/null &
        pids[rank]=$!
    done
}

reduced() { # reduced NAME: both ranks have, within 30 s
    local i
    for ((i = 0; i < 300; i++)); do
        grep -qs reduced "$work/$1.0" && grep -qs reduced "$work/$1.1" && return 0
        sleep 0.1
    done
    cat "$work/$1.0" "$work/$1.1" >&2
    return 1
}

pids=()
start whole
works 'ranks of two hosts meet and reduce' reduced whole
touch "$work/whole.stop"
wait "${pids[0]}" && wait "${pids[1]}"
tap $? 'and end well' "$work/whole.1"

# Less than libgloo waits for, more than TCP needs to send again.
start flap
works 'again' reduced flap
link down
sleep 1
link up
sleep 1
touch "$work/flap.stop"
wait "${pids[0]}" && wait "${pids[1]}"
tap $? 'a link that comes back after a second' "$work/flap.1"

start cut $timeout
works 'and again' reduced cut
link down
cut=$EPOCHREALTIME
for rank in 0 1; do
    wait "${pids[rank]}"
    code=$?
    cat "$work/cut.$rank" >"$work/out"
    awk "BEGIN { t = $EPOCHREALTIME - $cut; print \"# code $code after\", t, \"s\"; exit t > $timeout + $slack }" \
        >>"$work/out" && [ $code -eq 7 ]
    tap $? "a cut link ends rank $rank soon after the time-out" "$work/out"
    says "rank $rank names the other" "rank $((1 - rank)) has not: its last was all_reduce number|ranks 0-1 have called it, so .* link"
done
done_testing
