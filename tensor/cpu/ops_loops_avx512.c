/* The loops for AVX-512. */
#include "tensor/cpu/loops_common.h"

#if TD_X86

#define TD_ISA avx512
#define TD_LOOP_TARGET TD_TARGET_AVX512
#define TD_HAS_FMA 1
#define TD_HAS_BF16 0

#define TD_LOOP_TYPE TD_LOOP_F32
#include "tensor/cpu/loops.inc"
#undef TD_LOOP_TYPE

#define TD_LOOP_TYPE TD_LOOP_BF16
#include "tensor/cpu/loops.inc"

#endif
