#!/usr/bin/env bash
# The ranks that tests/gpu/nccl.sh runs on a GPU, here on CPUs, or on the emulated GPU if this build has it.
. "$(dirname "$0")/tap.sh"
worker=$PWD/${BUILD:-build/cc}/tests/worker_ddp
device=cpu
case ${BUILD:-} in *-emulated*) device=cuda:0 ;; esac
cd "$work" || exit 1

ranks() { # ranks MODE: two of them; fails if one does
    local pids=() rc=0
    for r in 0 1; do
        MEET=file://$work/meet.$1 RANK=$r WORLD_SIZE=2 "$worker" $device "$1" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || rc=1
    done
    return $rc
}
works "two ranks on $device" ranks equal
says 'DDP equals the joined batch' 'rank 1 of 2 on .*: DDP: the joined batch within'
says 'and with PowerSGD' 'rank 0 of 2 on .*: PowerSGD: the CPU.s within'
says 'and with SyncBatchNorm' 'rank 0 of 2 on .*: with SyncBatchNorm: the joined batch within'
ranks die >"$work/out" 2>&1 </dev/null
says 'a killed rank: the other is told, with its name' 'rank 0 was told: .*rank 1'
done_testing
