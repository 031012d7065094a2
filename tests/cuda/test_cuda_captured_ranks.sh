#!/usr/bin/env bash
# Captured steps of two ranks with DDP by NCCL, here on emulated GPUs with an emulated NCCL (make
# EMULATE=1 test): to the bit what they are eagerly; all ranks or none; a killed rank ends the other.
. "$(dirname "$0")/../help/tap.sh"
if [[ ${BUILD:-build/cc} != *-emulated* ]]; then
    echo 1..1
    echo 'not ok 1 - captured steps of several ranks # SKIP make EMULATE=1 test'
    exit 0
fi
worker=$PWD/$BUILD/tests/worker_captured
ddp=$PWD/$BUILD/tests/worker_ddp
cd "$work" || exit 1
export TANDEM_NCCL=emulated

ranks() { # ranks WORKER MODE: a GPU each
    two_ranks "$1" cuda:0 cuda:1 "$2"
}

works 'two ranks by NCCL, not captured' ranks "$ddp" equal
says 'DDP equals the joined batch' 'rank 1 of 2 on cuda:1: DDP: the joined batch within'
says 'and with SyncBatchNorm' 'rank 0 of 2 on .*: with SyncBatchNorm: the joined batch within'
says 'and sharded' 'rank 1 of 2 on cuda:1: sharded: the weights without sharding within 0$'
ranks "$ddp" die >"$work/out" 2>&1 </dev/null
says 'a killed rank: the other is told, with its name' 'rank 0 was told: .*rank 1'
TANDEM_EMULATE_NCCL=notices ranks "$ddp" die >"$work/out" 2>&1 </dev/null
says 'also where NCCL fails first, which names no rank' \
    'rank 0 was told: .*remote process exited.*; .*rank 1'

works 'two ranks, captured' ranks "$worker" equal
says 'the same bits, with buffers' 'rank 0 of 2: pictures, the same bits: 6 eager, 1 recorded, 9 replayed$'
says 'and with Dropout and averages' 'rank 1 of 2: vectors, the same bits: 6 eager, 1 recorded, 9 replayed$'
says 'and where gradients are added up' 'rank 1 of 2: sums, the same bits: 9 eager, 2 recorded, 5 replayed$'
says 'and where they are clipped' 'rank 1 of 2: clipped, the same bits: 6 eager, 1 recorded, 9 replayed$'
says 'and where sums are clipped' 'rank 0 of 2: clipped sums, the same bits: 9 eager, 2 recorded, 5 replayed$'
says 'and where each cuts its own pictures' "rank 0 of 2: a loader's pictures, the same bits: 6 eager, 1 recorded, 9 replayed$"
says 'and in fp16 with its loss scaler' 'rank 1 of 2: scaled, the same bits: 6 eager, 1 recorded, 9 replayed$'
says 'and where the optimizer is sharded' 'rank 1 of 2: sharded, the same bits: 6 eager, 1 recorded, 9 replayed$'
says 'and gradients, too' 'rank 1 of 2: gradients sharded, the same bits: 6 eager, 1 recorded, 9 replayed$'
says 'and values, too' 'rank 1 of 2: values sharded, the same bits: 6 eager, 1 recorded, 9 replayed$'
says 'and as bf16 on the wire' 'rank 1 of 2: bf16 on the wire, the same bits: 6 eager, 1 recorded, 9 replayed$'
says 'not with windows on the CPU' \
    "rank 0 of 2: offloaded, the same bits: 16 eager, 0 recorded, 0 replayed; .*windows are offloaded"
says 'nor with replicas' \
    'rank 0 of 2: replicas, the same bits: 16 eager, 0 recorded, 0 replayed; .*a mesh with replicas'
for seed in 1 ${TANDEM_LONG:+2 3 4 5 6}; do
    TANDEM_EMULATE_ORDER=$seed works "whatever runs first ($seed)" ranks "$worker" equal
done
works 'a rank that cannot be captured' ranks "$worker" refuse
says 'says why' 'rank 1 of 2: pictures, the same bits: 16 eager, 0 recorded, 0 replayed; .*td_item'
says 'and the others do as it does' \
    'rank 0 of 2: pictures, the same bits: 16 eager, 0 recorded, 0 replayed; .*rank 1 does its step eagerly'
ranks "$worker" die >"$work/out" 2>&1 </dev/null
says 'a rank is killed between replays: the other is told, with its name' 'rank 0 was told: .*rank 1'
says 'there were replays' 'rank 0: [1-9][0-9]* replayed'

export TANDEM_DEVICE_BACKEND=staged
works 'by way of the host' ranks "$worker" few
says 'steps are as ever, and it is said why' \
    'rank 0 of 2: pictures, the same bits: 16 eager, 0 recorded, 0 replayed; .*goes by way of the host'
done_testing
