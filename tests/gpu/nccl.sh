#!/usr/bin/env bash
# NCCL between two ranks on ONE GPU: DDP equals the joined batch, all ranks' weights are equal, a killed
# rank is named. The ranks take turns on the GPU, some milliseconds each, so a rank has a minute. NCCL refuses two ranks on a GPU of one host; as hosts it counts NCCL_HOSTID, so each
# rank names one of its own, and they talk over loopback sockets. For correctness, never for speed.
#
#     tests/gpu/nccl.sh [BUILD]        needs a GPU, libnccl.so.2, and make tests
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${1:-build/cc}
export NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 \
    NCCL_MNNVL_ENABLE=0 NCCL_RAS_ENABLE=0 NCCL_MAX_CTAS=2 NCCL_ALGO=Ring NCCL_PROTO=Simple
checks=0 failures=0
# The ranks end with this script, also when that is ended.
trap 'kill $(jobs -p) 2>/dev/null' EXIT
trap 'exit 130' INT TERM HUP

for worker in worker_ddp worker_captured; do
    "$build/tests/$worker" >/dev/null 2>&1
    if [ $? -ge 126 ]; then
        echo "$build/tests/$worker does not start here: make $build/tests/$worker"
        exit 77
    fi
done
if [ -x "$build/tests/gpu/check" ] && ! why=$("$build/tests/gpu/check" --device cuda:0 info /dev/null 2>&1); then
    echo "$why" | tail -n 1
    exit 77
fi

ranks() { # ranks SIZE BACKEND MODE [WORKER]: each rank on cuda:0, on a host of its own; fails if one does
    local size=$1 backend=$2 mode=$3 worker=${4:-worker_ddp} folder pids=() rc=0
    folder=$(mktemp -d)
    for ((r = 0; r < size; r++)); do
        MEET=file://$folder/meet RANK=$r WORLD_SIZE=$size NCCL_HOSTID=r$r TANDEM_BACKEND=$backend \
            timeout --foreground --kill-after=2 60 "$build/tests/$worker" cuda:0 "$mode" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || rc=1
    done
    rm -rf "$folder"
    return $rc
}

check() { # check RC NAME
    checks=$((checks + 1))
    if [ "$1" -eq 0 ]; then echo "ok - $2"; else
        echo "not ok - $2"
        failures=$((failures + 1))
    fi
}

ranks 1 nccl equal
check $? 'one rank'
ranks 2 nccl equal
check $? 'two ranks on one GPU by NCCL: the joined batch, equal weights, SyncBatchNorm'
TANDEM_DEVICE_BACKEND=staged ranks 2 shm equal
check $? 'two ranks by way of the host'

out=$(mktemp)
begin=$(date +%s)
ranks 2 nccl die >"$out" 2>&1
seconds=$(($(date +%s) - begin))
grep -q 'rank 0 was told: ' "$out"
check $? 'a killed rank: the other is told'
[ $seconds -le 75 ]
check $? "and within seconds ($seconds, start and end of both ranks included)"
tail -n 5 "$out" | sed 's/^/    /'
ranks 2 nccl few worker_captured >"$out" 2>&1
check $? 'two ranks in captured steps: the same bits as without'
grep -q '[1-9][0-9]* replayed$' "$out"
check $? 'and steps were replayed'
cat "$out"
ranks 2 nccl die worker_captured >"$out" 2>&1
grep -q 'rank 0 was told: .*rank 1' "$out"
check $? 'a rank is killed between replays: the other is told, with its name'
rm -f "$out"
echo "$((checks - failures)) of $checks right: two ranks on one GPU"
exit $((failures > 0))
