#!/usr/bin/env bash
# The ranks that tests/gpu/nccl.sh runs on a GPU, here on CPUs, or on the emulated GPU if this build has it.
. "$(dirname "$0")/../help/tap.sh"
worker=$PWD/${BUILD:-build/cc}/tests/worker_ddp
device=cpu
case ${BUILD:-} in *-emulated*) device=cuda:0 ;; esac
cd "$work" || exit 1

works "two ranks on $device" two_ranks "$worker" $device $device equal
says 'DDP equals the joined batch' 'rank 1 of 2 on .*: DDP: the joined batch within'
says 'and with PowerSGD' 'rank 0 of 2 on .*: PowerSGD: the CPU.s within'
says 'and sharded' 'rank 0 of 2 on .*: sharded: the weights without sharding within 0$'
says 'and with SyncBatchNorm' 'rank 0 of 2 on .*: with SyncBatchNorm: the joined batch within'
two_ranks "$worker" $device $device die >"$work/out" 2>&1 </dev/null
says 'a killed rank: the other is told, with its name' 'rank 0 was told: .*rank 1'
done_testing
