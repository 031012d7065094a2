/* The kernels of bf16: AVX-512's products of pairs, AMX's of tiles, and how sums are stored. */
#include "tensor/cpu/bf16_kernels.h"

#if TD_X86

#include "tensor/cpu/bf16_vectors.h"
#include "tensor/cpu/gemm_tiles.h"
#include "tensor/cpu/vectors.h"

#define OP TD_BF16_OP

enum { SIZE = TD_BF16_BLOCK };

/* ---- storing ---- */

/* Rows [row, row + rows) of the block, from their sums, 32 wide. */
TD_TARGET_AVX512_BF16 static void store_rows(const td_gemm_block *g, const float *sum, int64_t row,
                                             int rows)
{
    __mmask16 first = td_mask16(g->n), last = td_mask16(g->n - 16);
    __m512 bias0 = _mm512_setzero_ps(), bias1 = bias0;
    if (g->bias) {
        bias0 = _mm512_maskz_loadu_ps(first, g->bias);
        bias1 = _mm512_maskz_loadu_ps(last, (const float *)g->bias + 16);
    }
    for (int i = 0; i < rows; i++) {
        __m512 v0 = _mm512_add_ps(_mm512_loadu_ps(sum + i * SIZE), bias0);
        __m512 v1 = _mm512_add_ps(_mm512_loadu_ps(sum + i * SIZE + 16), bias1);
        void *c = (char *)g->c + g->c_row[row + i];
        if (g->dtype == TD_BF16) {
            __mmask32 mask = td_mask32(g->n);
            if (g->accumulate) {
                __m512i old = _mm512_maskz_loadu_epi16(mask, c);
                v0 = _mm512_add_ps(v0, td_widen_first(old));
                v1 = _mm512_add_ps(v1, td_widen_last(old));
            }
            _mm512_mask_storeu_epi16(c, mask, td_round(v0, v1));
        } else {
            float *to = c;
            if (g->accumulate) {
                v0 = _mm512_add_ps(v0, _mm512_maskz_loadu_ps(first, to));
                v1 = _mm512_add_ps(v1, _mm512_maskz_loadu_ps(last, to + 16));
            }
            _mm512_mask_storeu_ps(to, first, v0);
            _mm512_mask_storeu_ps(to + 16, last, v1);
        }
    }
}

/* ---- AVX-512: the tiles of f32, whose elements are pairs here; 8 rows by 32 columns ---- */

OP __m512 bf16_fma(__m512 a, __m512 b, __m512 sum)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

#define bf16_load avx512_load
#define bf16_load_n avx512_load_n
#define bf16_store avx512_store
#define bf16_store_n avx512_store_n
#define bf16_store_past avx512_store_past
#define bf16_set1 avx512_set1
#define K(name) bf16_##name
#define ELEM float
#define VEC __m512
#define LANES 16
#define TARGET TD_TARGET_AVX512_BF16
#define INLINE static inline __attribute__((always_inline)) TARGET
#define MAX_VECS 2
#define FULL_ROWS 8
#define PAIRS 2
#include "tensor/cpu/gemm_tiles.inc"

static TD_TARGET_AVX512_BF16 void vector_block(const td_gemm_block *g)
{
    if (g->dtype == TD_F32) {
        bf16_block(g);
        return;
    }
    static const int64_t c_row[MOST_ROWS] = { 0, 128, 256, 384, 512, 640, 768, 896 };
    _Alignas(64) float sum[MOST_ROWS * SIZE];
    td_gemm_block tile = *g;
    tile.c = sum;
    tile.c_row = c_row;
    tile.accumulate = false;
    tile.bias = NULL;
    for (int64_t row = 0; row < g->m; row += tile.m) {
        tile.m = next_rows(g->m - row, MOST_ROWS);
        tile.a_row = g->a_row + row;
        bf16_block(&tile);
        store_rows(g, sum, row, (int)tile.m);
    }
}

static const td_gemm_kernels vector_kernels = {
    .panel = SIZE,
    .lanes = 16,
    .rows = FULL_ROWS,
    .size = sizeof(td_bf16),
    .pairs = PAIRS,
    .block = vector_block,
};

/* ---- AMX: products of tiles of 16 x 32 and 32 x 16 ----
 * Tiles 0 to 3 are the sums, row by row; 4 and 5 are A's, 6 and 7 B's. */

enum { HALF = SIZE / 2 }; /* rows of a tile */

typedef struct tile_config {
    uint8_t palette, start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* What this thread's tiles are set to. */
static _Thread_local struct {
    int m, depth;
} tiles;

static TD_TARGET_AMX void configure(int m, int depth)
{
    if (tiles.m == m && tiles.depth == depth) {
        return;
    }
    tile_config config = { .palette = 1 };
    int first = m < HALF ? m : HALF;
    int second = m > HALF ? m - HALF : first; /* unused then */
    for (int i = 0; i < 8; i++) {
        bool is_a = i == 4 || i == 5, is_b = i >= 6, lower = i == 2 || i == 3 || i == 5;
        config.rows[i] = (uint8_t)(is_b ? depth / 2 : lower ? second : first);
        config.row_bytes[i] = (uint16_t)(is_a ? depth * 2 : 64);
    }
    _tile_loadconfig(&config);
    tiles.m = m;
    tiles.depth = depth;
}

/* Rows of A or C as tiles can read them: `step` bytes apart from the first one; 0: they are not. */
typedef struct lines {
    const int64_t *row;
    int count;
    int64_t step;
} lines;

static lines bf16_lines_of(const int64_t *row, int count)
{
    lines l = { row, count, count > 1 ? row[1] - row[0] : 64 };
    for (int i = 2; i < count; i++) {
        l.step = row[i] - row[i - 1] == l.step ? l.step : 0;
    }
    return l;
}

/* A block of at most 32 rows. */
typedef struct tile_block {
    const td_gemm_block *g;
    int64_t row;
    int depth;     /* of a step */
    lines a[2], c; /* c: if it is in the tiles as it is in memory */
} tile_block;

#define TILE_OP static inline __attribute__((always_inline)) TD_TARGET_AMX

/* Where a step of 16 rows begins; rows that are not in equal steps are brought together. */
TILE_OP const void *line_up(const lines *l, const char *a, int depth, char *room)
{
    if (l->step) {
        return a + l->row[0];
    }
    for (int i = 0; i < l->count; i++) {
        memcpy(room + (int64_t)i * 64, a + l->row[i], (size_t)depth * sizeof(td_bf16));
    }
    return room;
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

/* The tiles += the terms, step by step. */
TILE_OP void add_terms(const tile_block *t, bool two_rows, bool two_columns)
{
    _Alignas(64) char room[2][HALF * 64];
    const lines *upper = &t->a[0], *lower = &t->a[1];
    int64_t upper_step = upper->step ? upper->step : 64,
            lower_step = lower->step ? lower->step : 64;
    for (int i = 0; i < t->g->count; i++) {
        const char *a = t->g->terms[i].a;
        const td_bf16 *b = t->g->terms[i].b;
        for (int64_t k = t->g->terms[i].k; k > 0; k -= t->depth) {
            _tile_loadd(4, line_up(upper, a, t->depth, room[0]), upper_step);
            if (two_rows) {
                _tile_loadd(5, line_up(lower, a, t->depth, room[1]), lower_step);
            }
            _tile_loadd(6, b, 128);
            if (two_columns) {
                _tile_loadd(7, b + 32, 128);
            }
            multiply(two_rows, two_columns);
            a += t->depth * (int64_t)sizeof(td_bf16);
            b += t->depth * SIZE;
        }
    }
}

/* The sums to memory; `step` and `half` bytes from row to row and to row 16. */
TILE_OP void tiles_store(char *c, int64_t step, int64_t half, bool two_rows, bool two_columns)
{
    _tile_stored(0, c, step);
    if (two_columns) {
        _tile_stored(1, c + 64, step);
    }
    if (two_rows) {
        _tile_stored(2, c + half, step);
    }
    if (two_rows && two_columns) {
        _tile_stored(3, c + half + 64, step);
    }
}

TILE_OP void tile_case(const tile_block *t, bool two_rows, bool two_columns)
{
    const td_gemm_block *g = t->g;
    char *c = (char *)g->c + g->c_row[t->row];
    int64_t step = t->c.step, half = HALF * step;
    bool in_place = two_rows && two_columns && step != 0;
    if (in_place && g->accumulate) {
        _tile_loadd(0, c, step);
        _tile_loadd(1, c + 64, step);
        _tile_loadd(2, c + half, step);
        _tile_loadd(3, c + half + 64, step);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    add_terms(t, two_rows, two_columns);
    if (in_place) {
        tiles_store(c, step, half, true, true);
        return;
    }
    enum { ROW = SIZE * sizeof(float) };
    _Alignas(64) float result[SIZE * SIZE];
    tiles_store((char *)result, ROW, HALF * ROW, two_rows, two_columns);
    store_rows(g, result, t->row, t->a[0].count);
    if (two_rows) {
        store_rows(g, result + HALF * SIZE, t->row + HALF, t->a[1].count);
    }
}

static TD_TARGET_AMX void tiles_block(const td_gemm_block *g)
{
    tile_block t = { .g = g, .depth = g->count > 0 ? td_bf16_depth(g->terms[0].k) : 2 };
    for (t.row = 0; t.row < g->m; t.row += SIZE) {
        int m = (int)td_min64(SIZE, g->m - t.row);
        bool two_rows = m > HALF, two_columns = g->n > HALF;
        t.a[0] = bf16_lines_of(g->a_row + t.row, two_rows ? HALF : m);
        t.a[1] = two_rows ? bf16_lines_of(g->a_row + t.row + HALF, m - HALF) : t.a[0];
        bool plain = g->dtype == TD_F32 && !g->bias;
        t.c = plain && m == SIZE && g->n == SIZE ? bf16_lines_of(g->c_row + t.row, SIZE)
                                                 : (lines){ 0 };
        configure(m, t.depth);
        if (two_rows && two_columns) {
            tile_case(&t, true, true);
        } else if (two_rows) {
            tile_case(&t, true, false);
        } else if (two_columns) {
            tile_case(&t, false, true);
        } else {
            tile_case(&t, false, false);
        }
    }
}

static TD_TARGET_AMX void tiles_end(void)
{
    if (tiles.m) {
        _tile_release(); /* so that the system need not save them when threads change */
        tiles.m = 0;
    }
}

static const td_gemm_kernels tile_kernels = {
    .panel = SIZE,
    .lanes = 16,
    .rows = SIZE,
    .size = sizeof(td_bf16),
    .pairs = PAIRS,
    .block = tiles_block,
    .end = tiles_end,
};

#endif

const td_gemm_kernels *td_bf16_kernels_now(void)
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
#elif TD_NEON
    if (td_isa_current() == TD_ISA_NEON_BF16) {
        return &td_bf16_neon_kernels;
    }
#endif
    return NULL;
}

bool td_bf16_full_steps(void)
{
#if TD_X86
    return td_isa_current() == TD_ISA_AMX;
#else
    return false;
#endif
}

int td_bf16_depth(int64_t elements)
{
    int64_t least = td_divide_up(elements, TD_BF16_BLOCK);
    for (int64_t steps = least; steps > 0 && steps <= least + least / 3; steps++) {
        if (elements % (2 * steps) == 0) {
            return (int)(elements / steps);
        }
    }
    return 0;
}
