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
};

/* One product cut into tasks. */
typedef struct plan {
    const td_gemm_desc *desc;
    const td_gemm_kernels *kernels;
    char *packed; /* [batch of B][panel][k][panel width], or NULL: B is used where it lies */
    int64_t panels;
    int64_t row_blocks;
    int64_t pack_blocks;
} plan;

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
    int64_t m0 = task % p->row_blocks * BLOCK_M;
    int64_t panel = task / p->row_blocks % p->panels;
    int64_t matrix = task / p->row_blocks / p->panels;
    int64_t j0 = panel * width;

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
        .a_row = d->a_row,
        .a_col = d->a_col,
        .b_row = b_row,
        .c = (char *)d->c + (matrix * d->c_batch + m0 * d->c_row + j0) * size,
        .c_row = d->c_row,
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
        p->kernels->block(&block);
        block.accumulate = true;
    } while (k0 < d->k);
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
    if (needs_packing(desc, p.kernels)) {
        p.packed = workspace;
        p.pack_blocks = td_divide_up(desc->k, PACK_K);
        td_pool_run(pool, packed_matrices(desc) * p.panels * p.pack_blocks, pack_task, &p);
    }
    td_pool_run(pool, desc->batch * p.panels * p.row_blocks, multiply_task, &p);
}
