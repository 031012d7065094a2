#include "tensor/cpu/gemm.h"

#include "tensor/cpu/gemm_kernels.h"

enum {
    /* Columns of A that are summed in registers before C is touched: a panel of B of this height
     * (32 KB) stays in the first-level cache while the rows of A pass by. */
    BLOCK_K = 128,
    BLOCK_M = 96, /* rows of C in a task */
    PACK_K = 512, /* rows of B in a packing task */
    /* B is used where it lies if its rows are dense and fewer rows of A than this pass by: packing
     * would cost more than it saves. */
    PACK_MIN_M = 192,
    /* With so few rows of A that packing a B whose columns are dense would cost more than the
     * product, the product is turned over: C^T = B^T A^T, and A is packed instead. */
    TURN_MAX_M = 32,
};

/* One product cut into tasks. */
typedef struct plan {
    const td_gemm_desc *desc;
    const td_gemm_kernels *kernels;
    /* [batch of B][panel][k][panel width], or NULL: B is used where it lies. Turned over: [batch of
     * A][k][panel width]. */
    char *packed;
    int64_t panels;
    int64_t row_blocks;
    int64_t pack_blocks;
    td_turns turns; /* of one matrix */
} plan;

static bool is_turned(const td_gemm_desc *d, const td_gemm_kernels *kernels)
{
    return d->b_col != 1 && d->b_row == 1 && d->m <= TURN_MAX_M && d->m <= kernels->panel &&
           d->n > 2 * d->m && d->m > 0 && d->k > 0 && d->batch > 0;
}

static bool needs_packing(const td_gemm_desc *d, const td_gemm_kernels *kernels)
{
    if (d->m == 0 || d->n == 0 || d->k == 0 || d->batch == 0) {
        return false;
    }
    if (d->b_col != 1 && d->n > 1) {
        return true;
    }
    bool dense = d->b_row <= kernels->panel;
    return !dense && d->m >= PACK_MIN_M;
}

static int64_t packed_matrices(const td_gemm_desc *d)
{
    return d->b_batch == 0 ? 1 : d->batch;
}

size_t td_gemm_workspace(const td_gemm_desc *desc)
{
    const td_gemm_kernels *kernels = td_gemm_kernels_for(desc->dtype);
    if (is_turned(desc, kernels)) {
        int64_t matrices = desc->a_batch == 0 ? 1 : desc->batch;
        return (size_t)(matrices * desc->k * kernels->panel) * kernels->size;
    }
    if (!needs_packing(desc, kernels)) {
        return 0;
    }
    int64_t columns = td_divide_up(desc->n, kernels->panel) * kernels->panel;
    return (size_t)(packed_matrices(desc) * columns * desc->k) * kernels->size;
}

static void pack_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    const td_gemm_desc *d = p->desc;
    int64_t width = p->kernels->panel;
    int64_t k0 = task % p->pack_blocks * PACK_K;
    int64_t panel = task / p->pack_blocks % p->panels;
    int64_t matrix = task / p->pack_blocks / p->panels;
    int64_t to = ((matrix * p->panels + panel) * d->k + k0) * width;
    int64_t from = matrix * d->b_batch + k0 * d->b_row + panel * width * d->b_col;
    p->kernels->pack(p->packed + to * (int64_t)p->kernels->size,
                     (const char *)d->b + from * (int64_t)p->kernels->size,
                     td_min64(PACK_K, d->k - k0), td_min64(width, d->n - panel * width), d->b_row,
                     d->b_col);
}

static void multiply_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    const td_gemm_desc *d = p->desc;
    int64_t size = (int64_t)p->kernels->size, width = p->kernels->panel;
    int64_t of_matrix = p->row_blocks * p->panels, matrix = task / of_matrix, row_block, panel;
    td_turn(&p->turns, task % of_matrix, &row_block, &panel);
    int64_t m0 = row_block * BLOCK_M, j0 = panel * width;

    const char *a = (const char *)d->a + (matrix * d->a_batch + m0 * d->a_row) * size;
    const char *b = (const char *)d->b + (matrix * d->b_batch + j0) * size;
    int64_t b_row = d->b_row;
    if (p->packed) {
        int64_t packed_matrix = d->b_batch == 0 ? 0 : matrix;
        b = p->packed + (packed_matrix * p->panels + panel) * d->k * width * size;
        b_row = width;
    }
    td_gemm_term term;
    td_gemm_block block = {
        .terms = &term,
        .a_col = d->a_col,
        .b_row = b_row,
        .c = (char *)d->c + (matrix * d->c_batch + m0 * d->c_row + j0) * size,
        .m = td_min64(BLOCK_M, d->m - m0),
        .n = (int)td_min64(width, d->n - j0),
        .accumulate = d->accumulate,
    };
    int64_t k0 = 0;
    do { /* once even for k = 0: C is written, and the bias added, in any case */
        term.a = a + k0 * d->a_col * size;
        term.b = b + k0 * b_row * size;
        term.k = td_min64(BLOCK_K, d->k - k0);
        block.count = d->k > 0;
        k0 += BLOCK_K;
        if (k0 >= d->k && d->bias) {
            block.bias = (const char *)d->bias + j0 * size;
        }
        td_gemm_strided(p->kernels, &block, d->a_row, d->c_row);
        block.accumulate = true;
    } while (k0 < d->k);
}

/* ---- turned over ---- */

/* Copies rows [first, first + count) of C^T, `m` wide and dense, from C, or to C with the bias. */
#define TURN(name, elem)                                                                           \
    static void name##_in(elem *restrict t, const elem *restrict c, int64_t c_row, int64_t m,      \
                          int64_t count)                                                           \
    {                                                                                              \
        for (int64_t i = 0; i < m; i++) {                                                          \
            for (int64_t j = 0; j < count; j++) {                                                  \
                t[j * m + i] = c[i * c_row + j];                                                   \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    static void name##_out(elem *restrict c, const elem *restrict t, const elem *bias,             \
                           int64_t c_row, int64_t m, int64_t count)                                \
    {                                                                                              \
        for (int64_t i = 0; i < m; i++) {                                                          \
            for (int64_t j = 0; j < count; j++) {                                                  \
                c[i * c_row + j] = bias ? t[j * m + i] + bias[j] : t[j * m + i];                   \
            }                                                                                      \
        }                                                                                          \
    }

TURN(turn_f32, float)
TURN(turn_f64, double)

static void pack_turned_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    const td_gemm_desc *d = p->desc;
    int64_t k0 = task % p->pack_blocks * PACK_K, matrix = task / p->pack_blocks;
    int64_t to = (matrix * d->k + k0) * p->kernels->panel;
    int64_t from = matrix * d->a_batch + k0 * d->a_col;
    p->kernels->pack(p->packed + to * (int64_t)p->kernels->size,
                     (const char *)d->a + from * (int64_t)p->kernels->size,
                     td_min64(PACK_K, d->k - k0), d->m, d->a_col, d->a_row);
}

static void multiply_turned_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    const td_gemm_desc *d = p->desc;
    int64_t size = (int64_t)p->kernels->size, width = p->kernels->panel;
    int64_t j0 = task % p->row_blocks * BLOCK_M, matrix = task / p->row_blocks;
    int64_t rows = td_min64(BLOCK_M, d->n - j0);
    char *c = (char *)d->c + (matrix * d->c_batch + j0) * size;
    const char *bias = d->bias ? (const char *)d->bias + j0 * size : NULL;
    const char *rows_of_b = (const char *)d->b + (matrix * d->b_batch + j0 * d->b_col) * size;
    const char *packed = p->packed + (d->a_batch == 0 ? 0 : matrix) * d->k * width * size;
    _Alignas(64) double turned[BLOCK_M * TURN_MAX_M];
    td_gemm_term term;
    td_gemm_block block = {
        .terms = &term,
        .count = 1,
        .a_col = d->b_row,
        .b_row = width,
        .c = turned,
        .m = rows,
        .n = (int)d->m,
        .accumulate = d->accumulate,
    };
    if (d->accumulate && d->dtype == TD_F32) {
        turn_f32_in((float *)turned, (const float *)c, d->c_row, d->m, rows);
    } else if (d->accumulate) {
        turn_f64_in(turned, (const double *)c, d->c_row, d->m, rows);
    }
    for (int64_t k0 = 0; k0 < d->k; k0 += BLOCK_K) {
        term = (td_gemm_term){ rows_of_b + k0 * d->b_row * size, packed + k0 * width * size,
                               td_min64(BLOCK_K, d->k - k0) };
        td_gemm_strided(p->kernels, &block, d->b_col, d->m);
        block.accumulate = true;
    }
    if (d->dtype == TD_F32) {
        turn_f32_out((float *)c, (const float *)turned, (const float *)bias, d->c_row, d->m, rows);
    } else {
        turn_f64_out((double *)c, turned, (const double *)bias, d->c_row, d->m, rows);
    }
}

static void run_turned(td_pool *pool, plan *p)
{
    const td_gemm_desc *d = p->desc;
    p->pack_blocks = td_divide_up(d->k, PACK_K);
    p->row_blocks = td_divide_up(d->n, BLOCK_M);
    td_pool_run(pool, (d->a_batch == 0 ? 1 : d->batch) * p->pack_blocks, pack_turned_task, p);
    td_pool_run(pool, d->batch * p->row_blocks, multiply_turned_task, p);
}

td_turns td_gemm_turns(const td_gemm_desc *desc, int64_t blocks, int64_t panels, int threads)
{
    int64_t each = threads / (desc->batch > 1 ? desc->batch : 1); /* threads for a matrix */
    return td_turns_make(blocks, panels, desc->k * desc->n, desc->m * (desc->k + desc->n),
                         each > 1 ? (int)each : 1);
}

void td_gemm(td_pool *pool, const td_gemm_desc *desc, void *workspace)
{
    plan p = { .desc = desc, .kernels = td_gemm_kernels_for(desc->dtype) };
    p.panels = td_divide_up(desc->n, p.kernels->panel);
    p.row_blocks = td_divide_up(desc->m, BLOCK_M);
    if ((double)desc->m * (double)desc->n * (double)desc->k * (double)desc->batch <
        TD_GEMM_SERIAL_WORK) {
        pool = NULL;
    }
    if (is_turned(desc, p.kernels)) {
        p.packed = workspace;
        run_turned(pool, &p);
        return;
    }
    if (needs_packing(desc, p.kernels)) {
        p.packed = workspace;
        p.pack_blocks = td_divide_up(desc->k, PACK_K);
        td_pool_run(pool, packed_matrices(desc) * p.panels * p.pack_blocks, pack_task, &p);
    }
    p.turns = td_gemm_turns(desc, p.row_blocks, p.panels, td_pool_threads(pool));
    td_pool_run(pool, desc->batch * p.panels * p.row_blocks, multiply_task, &p);
}
