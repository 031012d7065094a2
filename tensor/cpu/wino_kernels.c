/* Winograd's transforms, for each instruction set. */
#include "tensor/cpu/wino_kernels.h"

#include "tensor/cpu/vectors.h"

/* Unrolled, with a sanitizer's checks at every element, this takes the compiler half a minute. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#undef TD_UNROLL
#define TD_UNROLL
#endif

enum { TOGETHER = 16 }; /* vectors of a tile that are read together */

#define K(name) f32_##name
#define VEC f32x4
#define LANES 4
#define TARGET
#include "tensor/cpu/wino_kernel.inc"

#if TD_X86

#define K(name) avx2_##name
#define VEC __m256
#define LANES 8
#define TARGET TD_TARGET_AVX2
#include "tensor/cpu/wino_kernel.inc"

#define K(name) avx512_##name
#define VEC __m512
#define LANES 16
#define TARGET TD_TARGET_AVX512
#include "tensor/cpu/wino_kernel.inc"

#endif

const td_wino_kernels *td_wino_kernels_now(void)
{
#if TD_X86
    switch (td_isa_vectors()) {
    case TD_ISA_AVX512:
        return &avx512_wino_kernels;
    case TD_ISA_AVX2:
        return &avx2_wino_kernels;
    default:
        break;
    }
#endif
    return &f32_wino_kernels;
}
