#include "tensor/isa.h"
#include "tensor/cpu/loops.h"

const td_loops *td_loops_of(td_dtype dtype)
{
    bool wide = dtype == TD_F64;
    switch (td_isa_current()) {
#if TD_X86
    case TD_ISA_AVX512:
        return wide ? &td_loops_f64_avx512 : &td_loops_f32_avx512;
    case TD_ISA_AVX2:
        return wide ? &td_loops_f64_avx2 : &td_loops_f32_avx2;
#endif
    default:
        return wide ? &td_loops_f64_portable : &td_loops_f32_portable;
    }
}
