/* What the files of bf16 kernels share: vectors of 32 bf16. x86 only; each file that includes this
 * says for which instruction set it compiles, in TARGET. */
#pragma once

#include "tensor/cpu/isa.h"
#include "tensor/dtype.h"

#include <immintrin.h>

#define TD_BF16_OP static inline __attribute__((always_inline)) TD_TARGET_AVX512_BF16

/* A mask of the first n of 16 or 32 lanes; n may be too large or negative. */
TD_BF16_OP __mmask16 td_mask16(int64_t n)
{
    return n >= 16 ? (__mmask16)0xffff : n <= 0 ? (__mmask16)0 : (__mmask16)((1u << n) - 1);
}

TD_BF16_OP __mmask32 td_mask32(int64_t n)
{
    return n >= 32 ? ~(__mmask32)0 : n <= 0 ? (__mmask32)0 : (__mmask32)((1u << n) - 1);
}

/* The first and the last 16 of 32 bf16, as f32. */
TD_BF16_OP __m512 td_widen_first(__m512i v)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(v));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

TD_BF16_OP __m512 td_widen_last(__m512i v)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(v, 1));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

TD_BF16_OP __m512i td_round(__m512 first, __m512 last)
{
    return (__m512i)_mm512_cvtne2ps_pbh(last, first);
}

/* The first n of 32 elements as bf16, the others zero; *low: what rounding has left of f32. */
TD_BF16_OP __m512i td_load32(const void *from, td_dtype dtype, int64_t n, __m512i *low)
{
    if (dtype == TD_BF16) {
        *low = _mm512_setzero_si512();
        return _mm512_maskz_loadu_epi16(td_mask32(n), from);
    }
    const float *f = from;
    __m512 first = _mm512_maskz_loadu_ps(td_mask16(n), f);
    __m512 last = _mm512_maskz_loadu_ps(td_mask16(n - 16), f + 16);
    __m512i high = td_round(first, last);
    *low = td_round(_mm512_sub_ps(first, td_widen_first(high)),
                    _mm512_sub_ps(last, td_widen_last(high)));
    return high;
}
