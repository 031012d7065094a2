/* The kernels of convolutions with one channel a group, for each instruction set. */
#include "tensor/cpu/depthwise_kernels.h"

#include "tensor/cpu/vectors.h"

enum { DEPTHWISE_ROWS = 6 }; /* of a register block: a vector of each */

#define K(name) f32_##name
#define ELEM float
#define VEC f32x4
#define LANES 4
#define TARGET
#include "tensor/cpu/depthwise_kernel.inc"

#define K(name) f64_##name
#define ELEM double
#define VEC f64x2
#define LANES 2
#define TARGET
#include "tensor/cpu/depthwise_kernel.inc"

#if TD_X86

#define K(name) avx2_##name
#define ELEM float
#define VEC __m256
#define LANES 8
#define TARGET TD_TARGET_AVX2
#include "tensor/cpu/depthwise_kernel.inc"

#define K(name) avx512_##name
#define ELEM float
#define VEC __m512
#define LANES 16
#define TARGET TD_TARGET_AVX512
#include "tensor/cpu/depthwise_kernel.inc"

#endif

const td_depthwise_kernels *td_depthwise_kernels_for(td_dtype dtype)
{
    if (dtype == TD_F64) {
        return &f64_depthwise_kernels;
    }
#if TD_X86
    switch (td_isa_vectors()) {
    case TD_ISA_AVX512:
        return &avx512_depthwise_kernels;
    case TD_ISA_AVX2:
        return &avx2_depthwise_kernels;
    default:
        break;
    }
#endif
    return &f32_depthwise_kernels;
}
