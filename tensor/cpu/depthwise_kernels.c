/* The kernels of convolutions with one channel a group, for each instruction set. */
#include "tensor/cpu/depthwise_kernels.h"

#include "tensor/cpu/vectors.h"

enum { DEPTHWISE_ROWS = 6 }; /* of a register block: a vector of each */

#define KERNELS "tensor/cpu/depthwise_kernel.inc"
#include "tensor/cpu/each_vectors.inc"

const td_depthwise_kernels *td_depthwise_kernels_for(td_dtype dtype)
{
    return dtype == TD_F64 ? &f64_depthwise_kernels : TD_OF_VECTORS(depthwise_kernels);
}
