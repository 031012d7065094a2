/* The loops of f64, which is for checking: small code before fast code (the Makefile says -O2), and
 * none for AVX-512. */
#include "tensor/cpu/loops_common.h"

#define TD_ISA portable
#define TD_LOOP_TARGET
#define TD_HAS_FMA TD_NEON
#define TD_HAS_BF16 0

#define TD_LOOP_TYPE TD_LOOP_F64
#include "tensor/cpu/loops.inc"
