/* Chooses the table of loops for an element type and the instruction set. */
#include "tensor/cpu/loops_common.h"

/* One table a type, of an instruction set. */
#define PICK(isa) (dtype == TD_BF16 ? &td_loops_bf16_##isa : &td_loops_f32_##isa)

const td_loops *td_loops_of(td_dtype dtype)
{
#if TD_X86
    if (dtype == TD_F64) {
        return td_isa_current() >= TD_ISA_AVX2 ? &td_loops_f64_avx2 : &td_loops_f64_portable;
    }
    if (td_isa_current() >= TD_ISA_AVX512_BF16 && dtype == TD_BF16) {
        return &td_loops_bf16_avx512_bf16;
    }
    if (td_isa_current() >= TD_ISA_AVX512) {
        return PICK(avx512);
    }
    if (td_isa_current() == TD_ISA_AVX2) {
        return PICK(avx2);
    }
#endif
    return dtype == TD_F64 ? &td_loops_f64_portable : PICK(portable);
}
