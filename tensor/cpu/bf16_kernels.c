/* The kernels of bf16: AVX-512's products of pairs, AMX's of tiles, and how sums are stored. */
#include "tensor/cpu/bf16_kernels.h"

#include <string.h>

#if TD_X86

#include "tensor/cpu/bf16_vectors.h"

#define OP TD_BF16_OP

enum { SIZE = TD_BF16_BLOCK };

/* ---- storing ---- */

/* sums[n] += v, the first n lanes. */
OP void add_to(double *sums, int n, __m512 v)
{
    __mmask8 first = (__mmask8)td_mask16(n), last = (__mmask8)(td_mask16(n) >> 8);
    __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
    __m512d b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
    _mm512_mask_storeu_pd(sums, first, _mm512_add_pd(_mm512_maskz_loadu_pd(first, sums), a));
    _mm512_mask_storeu_pd(sums + 8, last, _mm512_add_pd(_mm512_maskz_loadu_pd(last, sums + 8), b));
}

/* Rows [row, row + rows) of the sums, 32 wide, to C. The few rows' columns are added up in f32,
 * which is nearly exact for them: bf16 has 8 bits. */
OP void store_rows(const td_bf16_block *b, const float *sum, int row, int rows, char *c,
                   td_dtype dtype, bool stats)
{
    __mmask16 first = td_mask16(b->n), last = td_mask16(b->n - 16);
    __m512 zero = _mm512_setzero_ps(), bias0 = zero, bias1 = zero;
    __m512 total0 = zero, total1 = zero, square0 = zero, square1 = zero;
    if (b->bias) {
        bias0 = _mm512_maskz_loadu_ps(first, b->bias);
        bias1 = _mm512_maskz_loadu_ps(last, b->bias + 16);
    }
    for (int i = row; i < row + rows; i++) {
        __m512 v0 = _mm512_add_ps(_mm512_loadu_ps(sum + i * SIZE), bias0);
        __m512 v1 = _mm512_add_ps(_mm512_loadu_ps(sum + i * SIZE + 16), bias1);
        if (dtype == TD_BF16) {
            td_bf16 *to = (td_bf16 *)c + (i - row) * b->c_row;
            __mmask32 mask = td_mask32(b->n);
            if (b->accumulate) {
                __m512i old = _mm512_maskz_loadu_epi16(mask, to);
                v0 = _mm512_add_ps(v0, td_widen_first(old));
                v1 = _mm512_add_ps(v1, td_widen_last(old));
            }
            __m512i rounded = td_round(v0, v1);
            _mm512_mask_storeu_epi16(to, mask, rounded);
            if (stats) {
                v0 = td_widen_first(rounded);
                v1 = td_widen_last(rounded);
            }
        } else {
            float *to = (float *)c + (i - row) * b->c_row;
            if (b->accumulate) {
                v0 = _mm512_add_ps(v0, _mm512_maskz_loadu_ps(first, to));
                v1 = _mm512_add_ps(v1, _mm512_maskz_loadu_ps(last, to + 16));
            }
            _mm512_mask_storeu_ps(to, first, v0);
            _mm512_mask_storeu_ps(to + 16, last, v1);
        }
        if (stats) {
            total0 = _mm512_add_ps(total0, v0);
            total1 = _mm512_add_ps(total1, v1);
            square0 = _mm512_fmadd_ps(v0, v0, square0);
            square1 = _mm512_fmadd_ps(v1, v1, square1);
        }
    }
    if (stats) {
        add_to(b->sums, b->n, total0);
        add_to(b->sums + 16, b->n - 16, total1);
        add_to(b->squares, b->n, square0);
        add_to(b->squares + 16, b->n - 16, square1);
    }
}

OP void store_half(const td_bf16_block *b, const float *sum, int row, char *c)
{
    int rows = b->m - row < TD_BF16_HALF ? b->m - row : TD_BF16_HALF;
    if (b->dtype == TD_BF16 && b->sums) {
        store_rows(b, sum, row, rows, c, TD_BF16, true);
    } else if (b->dtype == TD_BF16) {
        store_rows(b, sum, row, rows, c, TD_BF16, false);
    } else {
        store_rows(b, sum, row, rows, c, TD_F32, b->sums != NULL);
    }
}

TD_TARGET_AVX512_BF16 static void store(const td_bf16_block *b, const float *sum)
{
    store_half(b, sum, 0, b->c);
    if (b->m > TD_BF16_HALF) {
        store_half(b, sum, TD_BF16_HALF,
                   (char *)b->c + b->c_half * (int64_t)td_dtype_size(b->dtype));
    }
}

/* ---- AVX-512: products of pairs, 8 rows by 32 columns in registers ---- */

enum { ROWS = 8 };

OP __m512 dot(__m512 sum, int32_t a, __m512i b)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(a), (__m512bh)b);
}

/* sum[rows][32] += a (rows x steps*depth) b. */
OP void add_products(const td_bf16_block *block, const td_bf16 *a, const td_bf16 *b, int64_t steps,
                     int rows, __m512 sum[ROWS][2])
{
    for (int64_t s = 0; s < steps; s++) {
        for (int p = 0; p < block->depth / 2; p++) {
            __m512i b0 = _mm512_loadu_si512(b + p * 64), b1 = _mm512_loadu_si512(b + p * 64 + 32);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                int32_t pair;
                memcpy(&pair, a + i * block->a_row + p * 2, sizeof pair);
                sum[i][0] = dot(sum[i][0], pair, b0);
                sum[i][1] = dot(sum[i][1], pair, b1);
            }
        }
        a += block->a_step;
        b += block->depth * SIZE;
    }
}

/* Rows [row, row + rows) of the block. */
OP void vector_rows(const td_bf16_block *block, int row, int rows, float *result)
{
    __m512 sum[ROWS][2];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    }
    int64_t from = row < TD_BF16_HALF ? row * block->a_row
                                      : block->a_half + (row - TD_BF16_HALF) * block->a_row;
    for (int t = 0; t < block->count; t++) {
        const td_bf16_term *term = &block->terms[t];
        const td_bf16 *a = term->a + from, *b = term->b;
        if (block->split) {
            add_products(block, a + block->a_low, b, term->steps, rows, sum);
            add_products(block, a, b + block->b_low, term->steps, rows, sum);
        }
        add_products(block, a, b, term->steps, rows, sum);
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        _mm512_storeu_ps(result + (row + i) * SIZE, sum[i][0]);
        _mm512_storeu_ps(result + (row + i) * SIZE + 16, sum[i][1]);
    }
}

/* One of its own for each number of rows, so that their sums stay in registers. */
TD_TARGET_AVX512_BF16 static void vector_part(const td_bf16_block *block, int row, int rows,
                                              float *result)
{
    switch (rows) {
#define PART(n)                                                                                    \
    case n:                                                                                        \
        vector_rows(block, row, n, result);                                                        \
        break
        PART(1);
        PART(2);
        PART(3);
        PART(4);
        PART(5);
        PART(6);
        PART(7);
        PART(8);
#undef PART
    default:
        break;
    }
}

/* Each half of the rows in two like parts, 9 rows as 5 and 4: a part of few rows waits for its own
 * sums. */
TD_TARGET_AVX512_BF16 static void vector_block(const td_bf16_block *block, td_bf16_tiles *tiles)
{
    (void)tiles;
    _Alignas(64) float result[SIZE * SIZE];
    for (int half = 0; half < block->m; half += TD_BF16_HALF) {
        int left = block->m - half < TD_BF16_HALF ? block->m - half : TD_BF16_HALF;
        int first = left > ROWS ? (left + 1) / 2 : left;
        vector_part(block, half, first, result);
        if (left > first) {
            vector_part(block, half + first, left - first, result);
        }
    }
    store(block, result);
}

static void vector_end(td_bf16_tiles *tiles)
{
    (void)tiles;
}

static const td_bf16_kernels vector_kernels = { .end = vector_end, .block = vector_block };

/* ---- AMX: products of tiles of 16 x 32 and 32 x 16 ----
 * Tiles 0 to 3 are the sums, row by row; 4 and 5 are A's, 6 and 7 B's. */

typedef struct tile_config {
    uint8_t palette, start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

static TD_TARGET_AMX void configure(int m, int depth)
{
    tile_config config = { .palette = 1 };
    int first = m < TD_BF16_HALF ? m : TD_BF16_HALF;
    int second = m > TD_BF16_HALF ? m - TD_BF16_HALF : first; /* unused then */
    for (int i = 0; i < 8; i++) {
        bool is_a = i == 4 || i == 5, is_b = i >= 6, lower = i == 2 || i == 3 || i == 5;
        config.rows[i] = (uint8_t)(is_b ? depth / 2 : lower ? second : first);
        config.row_bytes[i] = (uint16_t)(is_a ? depth * 2 : 64);
    }
    _tile_loadconfig(&config);
}

#define TILE_OP static inline __attribute__((always_inline)) TD_TARGET_AMX

/* The tiles += one step of A times one of B. */
TILE_OP void load_a(const td_bf16 *a, const td_bf16_block *block, bool two_rows)
{
    _tile_loadd(4, a, block->a_row * 2);
    if (two_rows) {
        _tile_loadd(5, a + block->a_half, block->a_row * 2);
    }
}

TILE_OP void load_b(const td_bf16 *b, bool two_columns)
{
    _tile_loadd(6, b, 128);
    if (two_columns) {
        _tile_loadd(7, b + 32, 128);
    }
}

TILE_OP void multiply(bool two_rows, bool two_columns)
{
    _tile_dpbf16ps(0, 4, 6);
    if (two_columns) {
        _tile_dpbf16ps(1, 4, 7);
    }
    if (two_rows) {
        _tile_dpbf16ps(2, 5, 6);
    }
    if (two_rows && two_columns) {
        _tile_dpbf16ps(3, 5, 7);
    }
}

TILE_OP void tile_terms(const td_bf16_block *block, bool two_rows, bool two_columns, bool split)
{
    for (int t = 0; t < block->count; t++) {
        const td_bf16 *a = block->terms[t].a, *b = block->terms[t].b;
        for (int64_t s = block->terms[t].steps; s > 0; s--) {
            if (split) {
                load_b(b, two_columns);
                load_a(a + block->a_low, block, two_rows);
                multiply(two_rows, two_columns);
                load_a(a, block, two_rows);
                multiply(two_rows, two_columns);
                load_b(b + block->b_low, two_columns);
                multiply(two_rows, two_columns);
            } else {
                load_a(a, block, two_rows);
                load_b(b, two_columns);
                multiply(two_rows, two_columns);
            }
            a += block->a_step;
            b += block->depth * SIZE;
        }
    }
}

/* The sums to or from memory; `row` floats from row to row. */
TILE_OP void tiles_store(float *c, int64_t row, int64_t half, bool two_rows, bool two_columns)
{
    _tile_stored(0, c, row * 4);
    if (two_columns) {
        _tile_stored(1, c + 16, row * 4);
    }
    if (two_rows) {
        _tile_stored(2, c + half, row * 4);
    }
    if (two_rows && two_columns) {
        _tile_stored(3, c + half + 16, row * 4);
    }
}

TILE_OP void tiles_load(const float *c, int64_t row, int64_t half)
{
    _tile_loadd(0, c, row * 4);
    _tile_loadd(1, c + 16, row * 4);
    _tile_loadd(2, c + half, row * 4);
    _tile_loadd(3, c + half + 16, row * 4);
}

TILE_OP void tile_case(const td_bf16_block *block, bool two_rows, bool two_columns)
{
    bool in_place = two_rows && two_columns && block->n == SIZE && block->dtype == TD_F32 &&
                    !block->bias && !block->sums;
    if (in_place && block->accumulate) {
        tiles_load(block->c, block->c_row, block->c_half);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    if (block->split) {
        tile_terms(block, two_rows, two_columns, true);
    } else {
        tile_terms(block, two_rows, two_columns, false);
    }
    if (in_place) {
        tiles_store(block->c, block->c_row, block->c_half, true, true);
        return;
    }
    _Alignas(64) float result[SIZE * SIZE];
    tiles_store(result, SIZE, TD_BF16_HALF * SIZE, two_rows, two_columns);
    store(block, result);
}

static TD_TARGET_AMX void tile_block(const td_bf16_block *block, td_bf16_tiles *tiles)
{
    if (tiles->m != block->m || tiles->depth != block->depth) {
        tiles->m = block->m;
        tiles->depth = block->depth;
        configure(block->m, block->depth);
    }
    if (block->m > TD_BF16_HALF) {
        if (block->n > TD_BF16_HALF) {
            tile_case(block, true, true);
        } else {
            tile_case(block, true, false);
        }
    } else if (block->n > TD_BF16_HALF) {
        tile_case(block, false, true);
    } else {
        tile_case(block, false, false);
    }
}

static TD_TARGET_AMX void tile_end(td_bf16_tiles *tiles)
{
    if (tiles->m) {
        _tile_release(); /* so that the system need not save them when threads change */
    }
}

static const td_bf16_kernels tile_kernels = { .end = tile_end,
                                              .block = tile_block,
                                              .full_steps = true };

#endif

const td_bf16_kernels *td_bf16_kernels_now(void)
{
#if TD_X86
    switch (td_isa_current()) {
    case TD_ISA_AMX:
        return &tile_kernels;
    case TD_ISA_AVX512_BF16:
        return &vector_kernels;
    default:
        break;
    }
#endif
    return NULL;
}
