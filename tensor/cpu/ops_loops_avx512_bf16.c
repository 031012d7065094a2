/* The loops of bf16 for AVX-512 with its instruction that rounds to bf16. */
#include "tensor/cpu/loops_common.h"

#if TD_X86

#define TD_ISA avx512_bf16
#define TD_LOOP_TARGET TD_TARGET_AVX512_BF16
#define TD_HAS_FMA 1
#define TD_HAS_BF16 1

#define TD_LOOP_TYPE TD_LOOP_BF16
#include "tensor/cpu/loops.inc"

#endif
