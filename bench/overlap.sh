#!/usr/bin/env bash
# DDP's overlap where a wire is the limit: two ranks of one core each, in two network namespaces
# whose link is shaped. Needs root, iproute2, and two cores.
#
# usage: BUILD=build/cc RATE=2gbit bench/overlap.sh [arguments of bench_overlap]
set -euo pipefail
cd "$(dirname "$0")/.."
program=$PWD/${BUILD:-build/cc}/bench/bench_overlap
rate=${RATE:-2gbit}
id=$$
hosts=("tdo${id}a" "tdo${id}b")
clean() {
    for host in "${hosts[@]}"; do
        ip netns del "$host" 2>/dev/null || true
    done
}
trap clean EXIT
ip netns add "${hosts[0]}"
ip netns add "${hosts[1]}"
ip -n "${hosts[0]}" link add wire type veth peer name wire netns "${hosts[1]}"
for i in 0 1; do
    ip -n "${hosts[i]}" addr add "10.77.0.$((i + 1))/24" dev wire
    ip -n "${hosts[i]}" link set wire up
    ip -n "${hosts[i]}" link set lo up
    [ "$rate" = none ] ||
        tc -n "${hosts[i]}" qdisc replace dev wire root tbf rate "$rate" burst 128kb latency 20ms
done
for i in 1 0; do
    RANK=$i WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 TANDEM_BACKEND=${BACKEND:-gloo} \
        ip netns exec "${hosts[i]}" taskset -c "$i" "$program" "$@" &
    pids[i]=$!
done
wait "${pids[0]}"
wait "${pids[1]}"
