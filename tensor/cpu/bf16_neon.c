/* The kernels of bf16 of AArch64: products of pairs (BFDOT), by the tiles of f32. */
#include "tensor/cpu/bf16_kernels.h"

#if TD_NEON

#include "tensor/f16.h"
#include "tensor/cpu/gemm_tiles.h"
#include "tensor/cpu/vectors.h"

enum { HALF = TD_BF16_BLOCK / 2 }; /* columns of a panel that have room in the registers */

/* One half of a block's panel; `skip`: its first element of B, a pair, in a row. */
typedef struct half_block {
    td_gemm_block g;
    int64_t skip;
} half_block;

static inline __attribute__((always_inline)) TD_TARGET_NEON_BF16 f32x4 bf16_fma(f32x4 a, f32x4 b,
                                                                                f32x4 sum)
{
    return vbfdotq_f32(sum, (bfloat16x8_t)a, (bfloat16x8_t)b);
}

#define bf16_load f32_load
#define bf16_load_n f32_load_n
#define bf16_store f32_store
#define bf16_store_n f32_store_n
#define bf16_store_past f32_store_past
#define bf16_set1 f32_set1
#define K(name) bf16_##name
#define ELEM float
#define VEC f32x4
#define LANES 4
#define TARGET TD_TARGET_NEON_BF16
#define INLINE static inline __attribute__((always_inline)) TARGET
#define MAX_VECS 4
#define FULL_ROWS 6
#define PAIRS 2
#define TERM_B(g, t) (const ELEM *)(g)->terms[t].b + ((const half_block *)(g))->skip
#include "tensor/cpu/gemm_tiles.inc"

/* Rows [row, row + rows) of a half in bf16, from their sums. */
static void store_half(const td_gemm_block *g, const float *sum, int64_t row, int rows)
{
    const float *bias = g->bias;
    for (int i = 0; i < rows; i++, sum += HALF) {
        td_bf16 *c = (td_bf16 *)((char *)g->c + g->c_row[row + i]);
        for (int j = 0; j < g->n; j++) {
            float value = bias ? sum[j] + bias[j] : sum[j];
            c[j] = td_f32_to_bf16(g->accumulate ? value + td_bf16_to_f32(c[j]) : value);
        }
    }
}

/* As the tiles store f32 only, sums of bf16 results are first put into a small matrix. */
static void round_half(const half_block *h)
{
    static const int64_t c_row[MOST_ROWS] = { 0, 64, 128, 192, 256, 320, 384, 448 };
    float sum[MOST_ROWS * HALF];
    half_block tile = *h;
    tile.g.c = sum;
    tile.g.c_row = c_row;
    tile.g.accumulate = tile.g.past = false;
    tile.g.bias = NULL;
    for (int64_t row = 0; row < h->g.m; row += tile.g.m) {
        tile.g.m = next_rows(h->g.m - row, FULL_ROWS);
        tile.g.a_row = h->g.a_row + row;
        bf16_block(&tile.g);
        store_half(&h->g, sum, row, (int)tile.g.m);
    }
}

static void neon_block(const td_gemm_block *g)
{
    int64_t bytes = g->dtype == TD_F32 ? 4 : 2;
    for (int first = 0; first < g->n; first += HALF) {
        half_block half = { *g, first };
        half.g.n = (int)td_min64(HALF, g->n - first);
        half.g.c = (char *)g->c + first * bytes;
        half.g.bias = g->bias ? (const float *)g->bias + first : NULL;
        if (g->dtype == TD_F32) {
            bf16_block(&half.g);
        } else {
            round_half(&half);
        }
    }
}

const td_gemm_kernels td_bf16_neon_kernels = {
    .panel = TD_BF16_BLOCK,
    .lanes = LANES,
    .rows = FULL_ROWS,
    .size = sizeof(td_bf16),
    .pairs = PAIRS,
    .block = neon_block,
};

#endif
