#include "tensor/cpu/gemm_kernels.h"

#include <string.h>

#if TD_X86
#include <immintrin.h>
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
#define TD_UNROLL _Pragma("GCC unroll 8")
#endif

enum { TILE_ROWS = 6 }; /* rows of a register block */

#define OP static inline __attribute__((always_inline))

/* ---- portable: the compiler's 16-byte vectors ---- */

typedef float f32x4 __attribute__((vector_size(16)));
typedef double f64x2 __attribute__((vector_size(16)));

/* Defines the six vector operations of gemm_kernel.inc for a generic vector type. */
#define GENERIC_OPS(name, elem, vec, lanes)                                                        \
    OP vec name##_load(const elem *p)                                                              \
    {                                                                                              \
        vec v;                                                                                     \
        memcpy(&v, p, sizeof v);                                                                   \
        return v;                                                                                  \
    }                                                                                              \
    OP void name##_store(elem *p, vec v)                                                           \
    {                                                                                              \
        memcpy(p, &v, sizeof v);                                                                   \
    }                                                                                              \
    OP vec name##_set1(elem x)                                                                     \
    {                                                                                              \
        return x - (vec){ 0 };                                                                     \
    }                                                                                              \
    OP vec name##_fma(vec a, vec b, vec c)                                                         \
    {                                                                                              \
        return a * b + c;                                                                          \
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
    OP void name##_store_n(elem *p, vec v, int n)                                                  \
    {                                                                                              \
        for (int i = 0; i < (lanes); i++) {                                                        \
            if (i < n) {                                                                           \
                p[i] = v[i];                                                                       \
            }                                                                                      \
        }                                                                                          \
    }

GENERIC_OPS(f32, float, f32x4, 4)
GENERIC_OPS(f64, double, f64x2, 2)

/* Transposes 4 x 4 floats: `from` has columns `col` apart, `to` has rows `row` apart. */
OP void transpose_4x4(float *to, int64_t row, const float *from, int64_t col)
{
    f32x4 a = f32_load(from), b = f32_load(from + col);
    f32x4 c = f32_load(from + 2 * col), d = f32_load(from + 3 * col);
    f32x4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    f32x4 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    f32x4 cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    f32x4 cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    f32_store(to, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
    f32_store(to + row, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
    f32_store(to + 2 * row, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
    f32_store(to + 3 * row, __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
}

/* A k x n matrix of f32 with dense columns, `col` apart, into rows `panel` apart. */
static void pack_columns(float *to, const float *from, int64_t panel, int64_t k, int64_t n,
                         int64_t col)
{
    enum { WIDTH = 16 }; /* columns side by side: one cache line of a row of the panel */
    int64_t k4 = k / 4 * 4, n4 = n / 4 * 4;
    for (int64_t j0 = 0; j0 < n4; j0 += WIDTH) {
        int64_t end = td_min64(j0 + WIDTH, n4);
        for (int64_t p = 0; p < k4; p += 4) {
            for (int64_t j = j0; j < end; j += 4) {
                transpose_4x4(to + p * panel + j, panel, from + j * col + p, col);
            }
        }
    }
    for (int64_t p = 0; p < k; p++) {
        for (int64_t j = p < k4 ? n4 : 0; j < n; j++) {
            to[p * panel + j] = from[p + j * col];
        }
    }
}

#define K(name) f32_##name
#define ELEM float
#define VEC f32x4
#define LANES 4
#define TARGET
#define MAX_VECS 2
#include "tensor/cpu/gemm_kernel.inc"

#define K(name) f64_##name
#define ELEM double
#define VEC f64x2
#define LANES 2
#define TARGET
#define MAX_VECS 2
#include "tensor/cpu/gemm_kernel.inc"

#if TD_X86

/* ---- AVX2: 6 x 16 ---- */

OP TD_TARGET_AVX2 __m256 avx2_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

OP TD_TARGET_AVX2 void avx2_store(float *p, __m256 v)
{
    _mm256_storeu_ps(p, v);
}

OP TD_TARGET_AVX2 __m256 avx2_set1(float x)
{
    return _mm256_set1_ps(x);
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

#define K(name) avx2_##name
#define ELEM float
#define VEC __m256
#define LANES 8
#define TARGET TD_TARGET_AVX2
#define MAX_VECS 2
#include "tensor/cpu/gemm_kernel.inc"

/* ---- AVX-512: 6 x 64 ---- */

OP TD_TARGET_AVX512 __m512 avx512_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

OP TD_TARGET_AVX512 void avx512_store(float *p, __m512 v)
{
    _mm512_storeu_ps(p, v);
}

OP TD_TARGET_AVX512 __m512 avx512_set1(float x)
{
    return _mm512_set1_ps(x);
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

#define K(name) avx512_##name
#define ELEM float
#define VEC __m512
#define LANES 16
#define TARGET TD_TARGET_AVX512
#define MAX_VECS 4
#include "tensor/cpu/gemm_kernel.inc"

#endif

const td_gemm_kernels *td_gemm_kernels_for(td_dtype dtype)
{
    if (dtype == TD_F64) {
        return &f64_kernels;
    }
#if TD_X86
    switch (td_isa_current()) {
    case TD_ISA_AVX512:
        return &avx512_kernels;
    case TD_ISA_AVX2:
        return &avx2_kernels;
    case TD_ISA_PORTABLE:
        break;
    }
#endif
    return &f32_kernels;
}
