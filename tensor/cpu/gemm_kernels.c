/* The micro-kernels of matrix products, for each instruction set and element type. */
#include "tensor/cpu/gemm_kernels.h"

#include "tensor/cpu/bf16_kernels.h"
#include "tensor/cpu/gemm_tiles.h"
#include "tensor/cpu/vectors.h"

enum {
    GROUPED_SUMS = 8, /* vectors of sums of small groups, at a time */
    STRIDED_ROWS = 96,
};

/* Transposes 4 x 4 floats: `from` has columns `col` apart, `to` has rows `row` apart. */
static inline void transpose_4x4(float *to, int64_t row, const float *from, int64_t col)
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

#if TD_X86
/* The same for 8 x 8. */
static inline __attribute__((always_inline)) TD_TARGET_AVX2 void
transpose_8x8(float *to, int64_t row, const float *from, int64_t col)
{
    __m256 r[8], t[8];
    TD_UNROLL
    for (int i = 0; i < 8; i++) { /* columns i % 4 and i % 4 + 4, their first or second halves */
        const float *half = from + i % 4 * col + i / 4 * 4;
        r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(half)),
                                    _mm_loadu_ps(half + 4 * col), 1);
    }
    TD_UNROLL
    for (int i = 0; i < 8; i += 4) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
        t[i + 2] = _mm256_unpacklo_ps(r[i + 2], r[i + 3]);
        t[i + 3] = _mm256_unpackhi_ps(r[i + 2], r[i + 3]);
    }
    TD_UNROLL
    for (int i = 0; i < 8; i += 4) {
        _mm256_storeu_ps(to + i * row, _mm256_shuffle_ps(t[i], t[i + 2], 0x44));
        _mm256_storeu_ps(to + (i + 1) * row, _mm256_shuffle_ps(t[i], t[i + 2], 0xee));
        _mm256_storeu_ps(to + (i + 2) * row, _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44));
        _mm256_storeu_ps(to + (i + 3) * row, _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee));
    }
}
#endif

/* Defines packing of a k x n matrix of f32 with dense columns, `col` apart, into rows `panel`
 * apart. What is left beyond whole units is copied together with some of what is done already.
 */
#define PACK_COLUMNS(name, target, unit, transpose)                                                \
    static target void name(float *to, const float *from, int64_t panel, int64_t k, int64_t n,     \
                            int64_t col)                                                           \
    {                                                                                              \
        enum { WIDTH = 16 }; /* columns side by side: one cache line of a row of the panel */      \
        if (k < (unit) || n < (unit)) {                                                            \
            for (int64_t p = 0; p < k; p++) {                                                      \
                for (int64_t j = 0; j < n; j++) {                                                  \
                    to[p * panel + j] = from[p + j * col];                                         \
                }                                                                                  \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        for (int64_t j0 = 0; j0 < n; j0 += WIDTH) {                                                \
            int64_t end = td_min64(j0 + WIDTH, n);                                                 \
            for (int64_t p0 = 0; p0 < k; p0 += (unit)) {                                           \
                int64_t p = td_min64(p0, k - (unit));                                              \
                for (int64_t j1 = j0; j1 < end; j1 += (unit)) {                                    \
                    int64_t j = td_min64(j1, n - (unit));                                          \
                    transpose(to + p * panel + j, panel, from + j * col + p, col);                 \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }

PACK_COLUMNS(pack_columns, , 4, transpose_4x4)
#if TD_X86
PACK_COLUMNS(pack_columns_avx2, TD_TARGET_AVX2, 8, transpose_8x8)
#endif

#define KERNELS "tensor/cpu/gemm_kernel.inc"
#include "tensor/cpu/each_vectors.inc"

const td_gemm_kernels *td_gemm_kernels_for(td_dtype dtype)
{
    return dtype == TD_F64    ? &f64_kernels
           : dtype == TD_BF16 ? td_bf16_kernels_now()
                              : TD_OF_VECTORS(kernels);
}

void td_gemm_strided(const td_gemm_kernels *kernels, const td_gemm_block *block, int64_t a_row,
                     int64_t c_row)
{
    int64_t a_rows[STRIDED_ROWS], c_rows[STRIDED_ROWS], size = (int64_t)kernels->size;
    td_gemm_block part = *block;
    part.a_row = a_rows;
    part.c_row = c_rows;
    for (int64_t first = 0; first < block->m; first += part.m) {
        part.m = td_min64(STRIDED_ROWS, block->m - first);
        for (int64_t i = 0; i < part.m; i++) {
            a_rows[i] = (first + i) * a_row * size;
            c_rows[i] = (first + i) * c_row * size;
        }
        kernels->block(&part);
    }
}
