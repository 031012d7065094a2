/* The micro-kernels of matrix products, for each instruction set and element type. */
#include "tensor/cpu/gemm_kernels.h"

#include "tensor/cpu/bf16_kernels.h"
#include "tensor/cpu/gemm_tiles.h"
#include "tensor/kernels/kernel_types.h"
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
/* Elements [at, at + 4) of an array and [other, other + 4), as f32. */
static inline __attribute__((always_inline)) TD_TARGET_AVX2 __m256 load_halves(const void *from,
                                                                               int64_t at,
                                                                               int64_t other,
                                                                               const bool bf16)
{
    if (bf16) {
        const td_bf16 *x = from;
        __m128i low = _mm_loadl_epi64((const __m128i *)(x + at));
        __m128i high = _mm_loadl_epi64((const __m128i *)(x + other));
        __m256i wide = _mm256_cvtepu16_epi32(_mm_unpacklo_epi64(low, high));
        return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
    }
    const float *x = from;
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(x + at)),
                                _mm_loadu_ps(x + other), 1);
}

/* to[i] = elements at + i of eight columns, which are `col` apart. */
static inline __attribute__((always_inline)) TD_TARGET_AVX2 void
load_turned_8x8(__m256 to[8], const void *from, int64_t at, int64_t col, const bool bf16)
{
    __m256 r[8], t[8];
    TD_UNROLL
    for (int i = 0; i < 8; i++) { /* columns i % 4 and i % 4 + 4, their first or second halves */
        int64_t half = at + i % 4 * col + i / 4 * 4;
        r[i] = load_halves(from, half, half + 4 * col, bf16);
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
        to[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        to[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        to[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        to[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
}

/* As transpose_4x4, for 8 x 8. */
static inline __attribute__((always_inline)) TD_TARGET_AVX2 void
transpose_8x8(float *to, int64_t row, const float *from, int64_t col)
{
    __m256 rows[8];
    load_turned_8x8(rows, from, 0, col, false);
    TD_UNROLL
    for (int i = 0; i < 8; i++) {
        _mm256_storeu_ps(to + i * row, rows[i]);
    }
}

/* 8 `tiles` columns of the product, from column j on: B is transposed in registers. */
static inline __attribute__((always_inline)) TD_TARGET_AVX2 void
few_columns(const td_few_rows *g, int64_t j, const int rows, const int tiles, const bool bf16)
{
    __m256 sum[TD_FEW_ROWS][2];
    TD_UNROLL
    for (int i = 0; i < rows * tiles; i++) {
        sum[i / tiles][i % tiles] = _mm256_setzero_ps();
    }
    for (int64_t p = 0; p < g->k; p += 8) {
        const float *a = g->a + p * g->a_col;
        TD_UNROLL
        for (int t = 0; t < tiles; t++) {
            __m256 b[8];
            load_turned_8x8(b, g->b, (j + 8 * t) * g->b_row + p, g->b_row, bf16);
            TD_UNROLL
            for (int i = 0; i < 8; i++) {
                TD_UNROLL
                for (int r = 0; r < rows; r++) {
                    __m256 x = _mm256_set1_ps(a[r * g->a_row + i * g->a_col]);
                    sum[r][t] = _mm256_fmadd_ps(x, b[i], sum[r][t]);
                }
            }
        }
    }
    TD_UNROLL
    for (int i = 0; i < rows * tiles; i++) {
        float *c = g->c + i / tiles * g->c_row + j + 8 * (i % tiles);
        _mm256_storeu_ps(c, sum[i / tiles][i % tiles]);
    }
}

/* The last columns are computed together with some of what is done already. */
static inline __attribute__((always_inline)) TD_TARGET_AVX2 void
few_turned_strip(const td_few_rows *g, const int rows, const bool bf16)
{
    const int tiles = rows == 1 ? 2 : 1;
    int64_t j = 0;
    for (; j + 8 * tiles <= g->n; j += 8 * tiles) {
        few_columns(g, j, rows, tiles, bf16);
    }
    for (; j < g->n; j += 8) {
        few_columns(g, td_min64(j, g->n - 8), rows, 1, bf16);
    }
}

#define FEW_TURNED(rows)                                                                           \
    static __attribute__((noinline)) TD_TARGET_AVX2 void few_turned_##rows(const td_few_rows *g)   \
    {                                                                                              \
        if (g->bf16) {                                                                             \
            few_turned_strip(g, rows, true);                                                       \
        } else {                                                                                   \
            few_turned_strip(g, rows, false);                                                      \
        }                                                                                          \
    }
FEW_TURNED(1)
FEW_TURNED(2)
FEW_TURNED(3)
FEW_TURNED(4)
FEW_TURNED(5)
FEW_TURNED(6)
FEW_TURNED(7)
FEW_TURNED(8)

static void few_turned(const td_few_rows *g)
{
    static void (*const of_rows[TD_FEW_ROWS])(const td_few_rows *) = {
        few_turned_1, few_turned_2, few_turned_3, few_turned_4,
        few_turned_5, few_turned_6, few_turned_7, few_turned_8,
    };
    of_rows[g->m - 1](g);
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
