#!/usr/bin/env bash
# Two nodes: a launcher in each of two network namespaces trains over gloo. The link is cut: the
# ranks of both say so in time. It comes back: all start again from the last checkpoint, and the run
# ends with the bits of an undisturbed one. CIFAR-10 where TANDEM_DATA names it, else synthetic.
# run: plain
. "$(dirname "$0")/../help/tap.sh"
# shellcheck source=tests/help/netns.sh
. "$(dirname "$0")/../help/netns.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TANDEM_RUN_ID
export OMP_NUM_THREADS=1
timeout=4
slack=10 # seconds; promised is one, which a busy machine cannot show
[ -z "${TANDEM_LONG:-}" ] || slack=1
cd "$work" || exit 1
few_images

# cut_and_mend NAME PORT PATTERN COMMAND...: runs it on both nodes; once node 0 says PATTERN, the
# link is cut until both ranks have complained, and then it is whole again.
cut_and_mend() {
    local name=$1 port=$2 pattern=$3 node cut took
    shift 3
    rm -f node.0 node.1
    for node in 0 1; do
        on $node "$apps/tdrun" --nnodes 2 --node-rank $node --master-addr 10.77.0.1 \
            --master-port "$port" --max-restarts 5 "$@" --timeout $timeout >node.$node 2>&1 &
        pids[node]=$!
    done
    await_line "$pattern" node.0
    tap $? "$name: two nodes train" node.1
    link down
    cut=$EPOCHREALTIME
    for node in 0 1; do
        await_line "timed out after $timeout.0 s on rank $node: rank" node.$node
        took=$(awk "BEGIN { print $EPOCHREALTIME - $cut }")
        echo "# after $took s" >>node.$node
        awk "BEGIN { exit !($took <= $timeout + $slack) }"
        tap $? "$name: the cut link ends rank $node within the time-out and $slack s" node.$node
        grep -qE "rank $node: (rank $node has called it; rank $((1 - node)) has not|ranks 0-1 have called it, so .* link)" node.$node
        tap $? "$name: and it says which peer" node.$node
    done
    link up
    for node in 0 1; do
        wait "${pids[node]}"
        tap $? "$name: node $node ends well, once the link is whole" node.$node
    done
    cat node.0 node.1 >out
    says "$name: they have started again" 'all workers start again \(attempt 1; 1 of 5 restarts used\)'
    says "$name: from a checkpoint" '^resumed from .* after step '
}

pids=()
few=(--limit 256 --batch-size 32 --epochs 5 --print-every 1 --save-every-steps 2)
works 'CIFAR-10, undisturbed' "$apps/tdrun" --nproc-per-node 2 "$apps/cifar_resnet18" "${few[@]}" --save whole
grep '^== step' out | tail -n 1 >whole.loss
cut_and_mend CIFAR-10 29501 '^== step: \[  3/4\] \[1' "$apps/cifar_resnet18" "${few[@]}" \
    --save cut --auto-resume
grep '^== step' node.0 | tail -n 1 >cut.loss
same 'CIFAR-10: the same last loss and accuracy' whole.loss cut.loss
same 'CIFAR-10: the same bits as undisturbed' whole cut
done_testing
