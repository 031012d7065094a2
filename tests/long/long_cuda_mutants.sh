#!/usr/bin/env bash
# Planted faults in CUDA's code are noticed on the emulated GPU, and the unchanged code passes with
# other chances (TANDEM_EMULATE_SEED). Only in the emulated build's make test-long.
. "$(dirname "$0")/../help/tap.sh"
[[ ${BUILD:-build/cc} == *-emulated* ]] || skip_all 'planted faults in CUDA code' 'make EMULATE=1 test-long'
works 'planted faults are noticed' bash tests/cuda/mutants.sh
grep -v '^ok' "$work/out"
for seed in 2 3 4 5 6 7 8; do
    export TANDEM_EMULATE_SEED=$seed TANDEM_TEST_DEVICE=cuda:0
    for test in cuda_captured cuda_halves cuda_loader cuda_memory cuda_ops cuda_shard cuda_train \
        kernels_{batch_norm,elements,layer_norm,optim,pool,reduce,softmax,special,tables}; do
        works "seed $seed: $test" "$BUILD/tests/test_$test"
    done
done
done_testing
