/* Winograd's transforms, for each instruction set. */
#include "tensor/cpu/wino_kernels.h"

#include "tensor/cpu/vectors.h"

/* Unrolled, with a sanitizer's checks at every element, this takes the compiler half a minute. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#undef TD_UNROLL
#define TD_UNROLL
#endif

enum { TOGETHER = 16 }; /* vectors of a tile that are read together */

#define FLOATS_ALONE
#define KERNELS "tensor/cpu/wino_kernel.inc"
#include "tensor/cpu/each_vectors.inc"

const td_wino_kernels *td_wino_kernels_now(void)
{
    return TD_OF_VECTORS(wino_kernels);
}
