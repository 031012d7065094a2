#!/usr/bin/env bash
# The tests of the CPU's kernels, run on CUDA's: the same references in double precision, odd shapes,
# strides, empty tensors; and everything twice, with the same bits. On the emulated GPU (make EMULATE=1
# test), or on the device in TANDEM_TEST_DEVICE.
. "$(dirname "$0")/../help/tap.sh"
build=${BUILD:-build/cc}
case $build in
*-emulated*) export TANDEM_TEST_DEVICE=${TANDEM_TEST_DEVICE:-cuda:0} ;;
esac
if [ -z "${TANDEM_TEST_DEVICE:-}" ]; then
    echo 1..1
    echo 'not ok 1 - kernels on a GPU # SKIP no GPU: make EMULATE=1 test'
    exit 0
fi
for kernels in elements special reduce tables softmax layer_norm batch_norm batch_norm_fused pool optim products; do
    works "kernels on $TANDEM_TEST_DEVICE: $kernels" "$build/tests/test_kernels_$kernels"
done
works "transformers' operations, composed" "$build/tests/test_attention"
case $build in
*-emulated*)
    TANDEM_EMULATED_REFUSES=bias works 'products, where the libraries add no bias' "$build/tests/test_kernels_products"
    ;;
esac
done_testing
