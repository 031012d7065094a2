/*
 * The instructions for bf16 that not every processor with AVX-512 has, AVX512-BF16's and AMX's, by
 * plain AVX-512: in make EMULATE=1 the CPU's sources are compiled with this file before each, and
 * tensor/cpu/isa.c believes in them, so that the levels avx512_bf16 and amx are tested on any such
 * machine. They round as the real ones are described: to nearest even, denormals are zeros on both
 * sides, MXCSR is not looked at, and sums are taken in the described order; the bits have not been
 * compared with a real machine's.
 *
 * Of the tiles it is checked what faults on a real machine (the palette, shapes that do not fit, a
 * tile that is not configured), and more: a tile that was not written since its configuration must
 * not be read. Whoever breaks a rule is told which, and the program aborts. What tiles read and
 * write goes through memcpy, where sanitizers see it.
 */
#pragma once

#include "tensor/cpu/isa.h"

#if TD_X86

#include <immintrin.h>
#include <stddef.h>

#define TD_EMULATED_OP static inline __attribute__((always_inline, unused)) TD_TARGET_AVX512

/* Denormals as zeros of their sign. */
TD_EMULATED_OP __m512 td_emulated_flush(__m512 v)
{
    __m512i bits = _mm512_castps_si512(v);
    __mmask16 tiny = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
    bits = _mm512_mask_and_epi32(bits, tiny, bits, _mm512_set1_epi32((int)0x80000000u));
    return _mm512_castsi512_ps(bits);
}

/* sum + a b of f32 that hold bf16, rounded once. */
TD_EMULATED_OP __m512 td_emulated_add(__m512 sum, __m512 a, __m512 b)
{
    sum = _mm512_fmadd_ps(td_emulated_flush(a), td_emulated_flush(b), td_emulated_flush(sum));
    return td_emulated_flush(sum);
}

/* Elements 0, 2, ... and 1, 3, ... of 32 bf16. */
TD_EMULATED_OP __m512 td_emulated_even(__m512i pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}

TD_EMULATED_OP __m512 td_emulated_odd(__m512i pairs)
{
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u)));
}

/* VDPBF16PS: the odd elements come first. */
TD_EMULATED_OP __m512 td_emulated_dpbf16(__m512 sum, __m512bh a, __m512bh b)
{
    __m512i left = (__m512i)a, right = (__m512i)b;
    sum = td_emulated_add(sum, td_emulated_odd(left), td_emulated_odd(right));
    return td_emulated_add(sum, td_emulated_even(left), td_emulated_even(right));
}

/* f32 rounded to bf16, in the lower half of each lane. NaNs stay NaNs, made quiet. */
TD_EMULATED_OP __m512i td_emulated_round(__m512 v)
{
    __m512i bits = _mm512_castps_si512(td_emulated_flush(v));
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    __m512i rounded = _mm512_add_epi32(bits, up);
    __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
    return _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16);
}

/* VCVTNEPS2BF16 and VCVTNE2PS2BF16; the second operand of the latter is its lower half. */
TD_EMULATED_OP __m256bh td_emulated_narrow(__m512 v)
{
    return (__m256bh)_mm512_cvtepi32_epi16(td_emulated_round(v));
}

TD_EMULATED_OP __m512bh td_emulated_narrow2(__m512 high, __m512 low)
{
    __m512i both = _mm512_castsi256_si512(_mm512_cvtepi32_epi16(td_emulated_round(low)));
    return (__m512bh)_mm512_inserti64x4(both, _mm512_cvtepi32_epi16(td_emulated_round(high)), 1);
}

#undef _mm512_dpbf16_ps
#undef _mm512_cvtneps_pbh
#undef _mm512_cvtne2ps_pbh
#define _mm512_dpbf16_ps td_emulated_dpbf16
#define _mm512_cvtneps_pbh td_emulated_narrow
#define _mm512_cvtne2ps_pbh td_emulated_narrow2

/* ---- tiles; their state is the calling thread's ---- */

void td_emulated_tile_loadconfig(const void *config);
void td_emulated_tile_release(void);
void td_emulated_tile_zero(int tile);
void td_emulated_tile_loadd(int tile, const void *from, ptrdiff_t stride);
void td_emulated_tile_stored(int tile, void *to, ptrdiff_t stride);
void td_emulated_tile_dpbf16ps(int sum, int a, int b);

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig td_emulated_tile_loadconfig
#define _tile_release td_emulated_tile_release
#define _tile_zero td_emulated_tile_zero
#define _tile_loadd td_emulated_tile_loadd
#define _tile_stream_loadd td_emulated_tile_loadd
#define _tile_stored td_emulated_tile_stored
#define _tile_dpbf16ps td_emulated_tile_dpbf16ps

#endif
