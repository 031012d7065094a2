#!/usr/bin/env bash
# Hosts and links that are not as usual: IPv6 alone, round trips of a second, links that are half-open,
# reset or flapping, a host that is cut off while real training runs with the default options. All in two
# network namespaces.
# run: waits
. "$(dirname "$0")/../help/tap.sh"
# shellcheck source=tests/help/netns.sh
. "$(dirname "$0")/../help/netns.sh"
unset OMP_NUM_THREADS RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
worker=$PWD/${BUILD:-build/cc}/tests/worker_launch
slow_link=$PWD/tests/comm/slow_link.py
slack=15 # seconds, for a busy machine
[ -z "${TANDEM_LONG:-}" ] || slack=2
cd "$work" || exit 1

works 'IPv6 alone: the loopback is ::1' on 0 ip addr del 127.0.0.1/8 dev lo
works 'IPv6 alone: two workers meet' timeout 60 ip netns exec "${hosts[0]}" "$apps/tdrun" --nproc-per-node 2 \
    "$worker" env meet
says 'IPv6 alone: at ::1' ' MASTER_ADDR=::1 '
ln -s "$OLDPWD/data" data
works 'IPv6 alone: so do the processes of td_spawn' timeout 60 ip netns exec "${hosts[0]}" \
    "$apps/wine_ddp_spawn" --nprocs 2 1
on 0 ip addr add 127.0.0.1/8 dev lo

pids=()
nodes() { # nodes ADDRESS ARGUMENTS...: a launcher on each host, in the background; output in node.0, node.1
    local node address=$1
    shift
    rm -f node.0 node.1 # await_line must not read those of the nodes before
    for node in 0 1; do
        on $node timeout 300 "$apps/tdrun" --nnodes 2 --node-rank $node --master-addr "$address" \
            --token-file token "$@" >node.$node 2>&1 </dev/null &
        pids[node]=$!
    done
}

both_end() { # both_end NAME PATTERN: both nodes end with an error in time, and say this
    local node took
    for node in 0 1; do
        ! wait "${pids[node]}"
        tap $? "$1: ends node $node" node.$node
        took=$(awk "BEGIN { print $EPOCHREALTIME - $cut }")
        echo "# after $took s" >>node.$node
        awk "BEGIN { exit !($took <= 10 + $slack) }" # 5 s until it is noticed, and 5 s
        tap $? "$1: within 5 s and the detection, and $slack s" node.$node
        grep -E '^# after' node.$node
        cp node.$node out
        says "$1: node $node says why" "tdrun: .*($2)"
    done
}

slow() { # slow DELAY LOSS: from now on
    [ -z "${forwarder:-}" ] || { kill "$forwarder" && wait "$forwarder"; } 2>/dev/null
    rm -f up
    python3 "$slow_link" "${hosts[@]}" "$1" "$2" fault >up 2>&1 &
    forwarder=$!
    for ((i = 0; i < 100; i++)); do
        grep -qs up up && return 0
        sleep 0.1
    done
    cat up >&2
    return 1
}

if [ ! -e /dev/net/tun ]; then
    echo '# skipped: slow links; there is no /dev/net/tun here'
else
    for trip in 200 1000; do
        works "a round trip of $trip ms" slow "$(awk "BEGIN { print $trip / 2000 }")" 0
        nodes 10.78.0.1 "$worker" env meet
        wait "${pids[0]}"
        tap $? "a round trip of $trip ms: two nodes meet" node.0
        wait "${pids[1]}"
        tap $? "a round trip of $trip ms: and end well" node.1
        cp node.1 out
        says "a round trip of $trip ms: with all ranks" '^met rank=1 world=2 '
    done
    for fault in to1 reset ${TANDEM_LONG:+to0 cut flap}; do
        name="a link that fails in training ($fault)"
        rm -f fault
        works "$name: begins" slow 0.01 0
        nodes 10.78.0.1 "$apps/wine_ddp_launch" 1000000
        await_line '^Epoch 5,' node.0
        tap $? "$name: two nodes train" node.0
        cut=$EPOCHREALTIME
        if [ $fault = flap ]; then # shorter than what counts as lost: the nodes go on
            for ((i = 0; i < 5; i++)); do
                echo cut >fault && sleep 1.5
                rm fault && sleep 1.5
            done
            before=$(grep -c '^Epoch ' node.0)
            sleep 2
            [ "$(grep -c '^Epoch ' node.0)" -gt "$before" ]
            tap $? "$name: they go on" node.0
            cut=$EPOCHREALTIME
        fi
        echo "${fault/flap/cut}" >fault
        both_end "$name" 'was lost|is gone|failed first'
    done
    kill "$forwarder"
fi

nodes 10.77.0.1 "$apps/cifar_resnet18" --limit 512 --batch-size 32 --epochs 1000 --print-every 1 --threads 1
await_line '^== step: \[ *2/' node.0
tap $? 'two nodes train' node.0
link down
cut=$EPOCHREALTIME
both_end 'a lost host' 'was lost|is gone'
cp node.0 out
says 'and node 0 names the other' 'was lost: no sign of life'
cp node.1 out
says 'and node 1 names the launcher' 'tdrun: the launcher at 10\.77\.0\.1:29500 is gone'
done_testing
