/*
 * Vectors of each instruction set, for code that is included once for each of them and names the
 * operations K(load), K(fma), ...: portable (the compiler's 16-byte vectors; on AArch64 with NEON's
 * fma), AVX2, AVX-512. load_n and store_n touch the first n lanes only; load_n makes the others 0.
 * Vectors of f32 of NEON, AVX2 and AVX-512 also have permute: lane i of the result is lane index[i]
 * of the vector.
 */
#pragma once

#include "tensor/cpu/isa.h"

#include <string.h>

#if TD_X86
#include <immintrin.h>
#elif TD_NEON
#include <arm_neon.h>
#endif

/* Small loops of known length must unroll completely, or the sums fall out of their registers.
 * Under a sanitizer speed does not matter, and clang would take minutes for the unrolled checks. */
#ifndef __has_feature
#define __has_feature(feature) 0
#endif
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TD_UNROLL
#elif defined(__clang__)
#define TD_UNROLL _Pragma("clang loop unroll(full)")
#else
#define TD_UNROLL _Pragma("GCC unroll 16")
#endif

#define OP static inline __attribute__((always_inline, unused))

/* Keeps a vector in a register: the compiler would rather read it again for every use. */
#if TD_X86
#define TD_KEEP(vector) __asm__("" : "+v"(vector))
#elif TD_NEON
#define TD_KEEP(vector) __asm__("" : "+w"(vector))
#else
#define TD_KEEP(vector) (void)(vector)
#endif

/* Operations that the compiler knows of every vector type. */
#define VECTOR_OPS(name, elem, vec, target)                                                        \
    OP target vec name##_load(const elem *p)                                                       \
    {                                                                                              \
        vec v;                                                                                     \
        memcpy(&v, p, sizeof v);                                                                   \
        return v;                                                                                  \
    }                                                                                              \
    OP target void name##_store(elem *p, vec v)                                                    \
    {                                                                                              \
        memcpy(p, &v, sizeof v);                                                                   \
    }                                                                                              \
    OP target vec name##_set1(elem x)                                                              \
    {                                                                                              \
        return x - (vec){ 0 };                                                                     \
    }

/* ---- portable ---- */

typedef float f32x4 __attribute__((vector_size(16)));
typedef double f64x2 __attribute__((vector_size(16)));

/* The others, but for fma, for a generic vector type. */
#define GENERIC_OPS(name, elem, vec, lanes)                                                        \
    VECTOR_OPS(name, elem, vec, )                                                                  \
    OP void name##_store_past(elem *p, vec v)                                                      \
    {                                                                                              \
        name##_store(p, v);                                                                        \
    }                                                                                              \
    OP vec name##_load_n(const elem *p, int n)                                                     \
    {                                                                                              \
        vec v = { 0 };                                                                             \
        for (int i = 0; i < (lanes); i++) {                                                        \
            if (i < n) {                                                                           \
                v[i] = p[i];                                                                       \
            }                                                                                      \
        }                                                                                          \
        return v;                                                                                  \
    }                                                                                              \
    /* Not inline: it is not in loops, but in many places, and has a branch for every lane. */     \
    static __attribute__((noinline, unused)) void name##_store_n(elem *p, vec v, int n)            \
    {                                                                                              \
        for (int i = 0; i < (lanes); i++) {                                                        \
            if (i < n) {                                                                           \
                p[i] = v[i];                                                                       \
            }                                                                                      \
        }                                                                                          \
    }

GENERIC_OPS(f32, float, f32x4, 4)
GENERIC_OPS(f64, double, f64x2, 2)

OP f32x4 f32_fma(f32x4 a, f32x4 b, f32x4 c)
{
#if TD_NEON
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
}

OP f64x2 f64_fma(f64x2 a, f64x2 b, f64x2 c)
{
#if TD_NEON
    return vfmaq_f64(c, a, b);
#else
    return a * b + c;
#endif
}

#if TD_NEON

/* An index is that of each of a vector's 16 bytes. */
typedef uint8x16_t f32_index;

OP uint8x16_t f32_load_index(const int32_t *p)
{
    uint32x4_t first = vmulq_n_u32(vreinterpretq_u32_s32(vld1q_s32(p)), 0x04040404);
    return vreinterpretq_u8_u32(vaddq_u32(first, vdupq_n_u32(0x03020100)));
}

OP uint8x16_t f32_add_index(uint8x16_t index, int n)
{
    return vaddq_u8(index, vdupq_n_u8((uint8_t)(4 * n)));
}

OP f32x4 f32_permute(f32x4 v, uint8x16_t index)
{
    return vreinterpretq_f32_u8(vqtbl1q_u8(vreinterpretq_u8_f32(v), index));
}

#endif

#if TD_X86

/* ---- AVX2 ---- */

VECTOR_OPS(avx2, float, __m256, TD_TARGET_AVX2)
typedef __m256i avx2_index;

/* As store, past the caches; p is a multiple of the vector's size. */
OP TD_TARGET_AVX2 void avx2_store_past(float *p, __m256 v)
{
    _mm256_stream_ps(p, v);
}

OP TD_TARGET_AVX2 __m256 avx2_fma(__m256 a, __m256 b, __m256 c)
{
    return _mm256_fmadd_ps(a, b, c);
}

OP TD_TARGET_AVX2 __m256i avx2_mask(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

OP TD_TARGET_AVX2 __m256 avx2_load_n(const float *p, int n)
{
    return _mm256_maskload_ps(p, avx2_mask(n));
}

OP TD_TARGET_AVX2 void avx2_store_n(float *p, __m256 v, int n)
{
    _mm256_maskstore_ps(p, avx2_mask(n), v);
}

OP TD_TARGET_AVX2 __m256i avx2_load_index(const int32_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

OP TD_TARGET_AVX2 __m256i avx2_add_index(__m256i index, int n)
{
    return _mm256_add_epi32(index, _mm256_set1_epi32(n));
}

OP TD_TARGET_AVX2 __m256 avx2_permute(__m256 v, __m256i index)
{
    return _mm256_permutevar8x32_ps(v, index);
}

/* ---- AVX-512 ---- */

VECTOR_OPS(avx512, float, __m512, TD_TARGET_AVX512)
typedef __m512i avx512_index;

OP TD_TARGET_AVX512 void avx512_store_past(float *p, __m512 v)
{
    _mm512_stream_ps(p, v);
}

OP TD_TARGET_AVX512 __m512 avx512_fma(__m512 a, __m512 b, __m512 c)
{
    return _mm512_fmadd_ps(a, b, c);
}

OP TD_TARGET_AVX512 __mmask16 avx512_mask(int n)
{
    return (__mmask16)((1u << n) - 1);
}

OP TD_TARGET_AVX512 __m512 avx512_load_n(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(avx512_mask(n), p);
}

OP TD_TARGET_AVX512 void avx512_store_n(float *p, __m512 v, int n)
{
    _mm512_mask_storeu_ps(p, avx512_mask(n), v);
}

OP TD_TARGET_AVX512 __m512i avx512_load_index(const int32_t *p)
{
    return _mm512_loadu_si512(p);
}

OP TD_TARGET_AVX512 __m512i avx512_add_index(__m512i index, int n)
{
    return _mm512_add_epi32(index, _mm512_set1_epi32(n));
}

OP TD_TARGET_AVX512 __m512 avx512_permute(__m512 v, __m512i index)
{
    return _mm512_permutexvar_ps(index, v);
}

#endif

#undef OP
