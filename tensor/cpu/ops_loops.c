#include "tensor/cpu/isa.h"
#include "tensor/cpu/loops.h"
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

const double td_quarter_turns[14][3] = {
    { 0x1.45f306e000000p-1, -0x1.b1bbead000000p-32, -0x1.80f62a0b82b2dp-62 },
    { 0x1.7cc1b72000000p+1, 0x1.c882a54000000p-29, -0x1.ec54170565912p-63 },
    { 0x1.836e4e4000000p+0, 0x1.054a7f1000000p-30, -0x1.8a82e0acb223fp-60 },
    { 0x1.b727221000000p+1, -0x1.5ac07b1000000p-29, -0x1.4170565911f92p-59 },
    { 0x1.27220a9000000p+1, 0x1.3f84eb0000000p-29, -0x1.70565911f924fp-59 },
    { 0x1.220a950000000p+1, -0x1.ec54170000000p-31, -0x1.596447e493ad5p-61 },
    { 0x1.529fc27000000p-4, 0x1.5f47d4d000000p-34, 0x1.bb81b6c52b328p-65 },
    { 0x1.29fc275000000p+0, 0x1.f47d4d3000000p-30, 0x1.dc0db6295993cp-60 },
    { 0x1.fc2757d000000p+0, 0x1.f534ddc000000p-32, 0x1.b6c52b3278872p-65 },
    { 0x1.3abe8fb000000p-3, -0x1.96447e5000000p-33, 0x1.b14acc9e21c82p-63 },
    { 0x1.abe8faa000000p+1, -0x1.6447e49000000p-29, -0x1.d6a66c3bc6fbep-60 },
    { 0x1.e8fa9a7000000p+1, -0x1.1f924eb000000p-31, -0x1.4cd8778df7c03p-61 },
    { 0x1.f534ddc000000p+0, 0x1.b6c52b3000000p-33, 0x1.3c439041fe516p-64 },
    { 0x1.34ddc0e000000p+0, -0x1.275a99b000000p-30, -0x1.de37df00d74e3p-63 }
};
