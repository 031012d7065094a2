#!/usr/bin/env bash
# Fifty steps over bad links: round trips up to a second, with and without loss. Two nodes start and
# train, or both end in time and say which peer was lost.
. "$(dirname "$0")/../help/tap.sh"
# shellcheck source=tests/help/netns.sh
. "$(dirname "$0")/../help/netns.sh"
unset OMP_NUM_THREADS RANK WORLD_SIZE MASTER_ADDR MASTER_PORT
slow_link=$PWD/tests/comm/slow_link.py
[ -e /dev/net/tun ] || skip_all 'slow links' 'there is no /dev/net/tun here'
cd "$work" || exit 1
ln -s "$OLDPWD/data" data
pids=()
for trip in 0 50 200 1000; do
    for loss in 0 0.05; do
        name="a round trip of $trip ms, loss $loss"
        rm -f up
        python3 "$slow_link" "${hosts[@]}" "$(awk "BEGIN { print $trip / 2000 }")" $loss fault >up 2>&1 &
        forwarder=$!
        for ((i = 0; i < 100; i++)); do
            grep -qs up up && break
            sleep 0.1
        done
        begin=$SECONDS
        for node in 0 1; do
            on $node timeout 900 "$apps/tdrun" --nnodes 2 --node-rank $node --master-addr 10.78.0.1 \
                --token-file token "$apps/wine_ddp_launch" --batch-size 128 50 >node.$node 2>&1 </dev/null &
            pids[node]=$!
        done
        for node in 0 1; do
            wait "${pids[node]}"
            code=$?
            echo "# node $node: code $code after $((SECONDS - begin)) s" | tee -a node.$node
            [ $code -eq 0 ] || { [ $code -ne 124 ] && grep -qE 'tdrun: .*(lost|gone|failed first)' node.$node; }
            tap $? "$name: node $node trains, or says why not" node.$node
        done
        kill "$forwarder"
        wait "$forwarder" 2>/dev/null
    done
done
done_testing
