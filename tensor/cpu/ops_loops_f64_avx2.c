/* The loops of f64 for AVX2 with FMA, and for what can do more. */
#include "tensor/cpu/loops_common.h"

#if TD_X86

#define TD_ISA avx2
#define TD_LOOP_TARGET TD_TARGET_AVX2
#define TD_HAS_FMA 1
#define TD_HAS_BF16 0

#define TD_LOOP_TYPE TD_LOOP_F64
#include "tensor/cpu/loops.inc"

#endif
