/* The loops for the instruction set that every processor of the compiler's target has. */
#include "tensor/cpu/loops_common.h"

#define TD_ISA portable
#define TD_LOOP_TARGET
#define TD_HAS_FMA TD_NEON
#define TD_HAS_BF16 0

#define TD_LOOP_TYPE TD_LOOP_F32
#include "tensor/cpu/loops.inc"
#undef TD_LOOP_TYPE

#define TD_LOOP_TYPE TD_LOOP_BF16
#include "tensor/cpu/loops.inc"
