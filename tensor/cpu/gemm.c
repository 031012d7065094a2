/* Matrix products: cuts them into panels and tasks, packs, and calls the micro-kernels. */
#include "tensor/cpu/gemm.h"

#include "tensor/cpu/bf16_kernels.h"
#include "tensor/cpu/conv_internal.h"
#include "tensor/cpu/gemm_few.h"

#include <string.h>

enum {
    BLOCK_M = 96, /* rows of C in a task */
    PACK_K = 512, /* rows of B in a packing task */
    /* B is used where it lies if its rows are dense and fewer rows of A than this pass by: packing
     * would cost more than it saves. */
    PACK_MIN_M = 192,
    BF16_BLOCK_M = 128, /* in bf16, where a panel is narrow and sums are not cut */
    /* Panels in a task, at most: in bf16; where A is copied. Fewer, if there are not so many tasks.
     */
    BF16_SPAN = 4,
    COPY_SPAN = 8,
    SPAN_TASKS = 64,
};

/* One product cut into tasks. */
typedef struct plan {
    const td_gemm_desc *desc;
    const td_gemm_kernels *kernels;
    int64_t block_m, row_blocks; /* rows of C in a task */
    int64_t panels, span;        /* of columns of C; in a task */
    bool copies;                 /* a task copies the part of A that it needs */
    int64_t depth, k; /* of a step in bf16, otherwise 1; with the padding of the last one */
    int64_t pack_k;   /* rows of B in a packing task: whole steps */
    /* Packed, or NULL: used where it lies. A only in bf16, [matrix][row][k], rows in blocks of 32;
     * B [matrix][panel][k][panel width]. */
    char *a, *b;
    int64_t a_low, b_low;         /* elements to the low parts of split factors; 0: none */
    td_turns turns;               /* of one matrix */
    const int64_t *a_row, *c_row; /* where the rows of a task are, in bytes from its first ones */
} plan;

static bool needs_packing(const td_gemm_desc *d, const td_gemm_kernels *kernels)
{
    if (d->m == 0 || d->n == 0 || d->k == 0 || d->batch.count == 0) {
        return false;
    }
    if (d->b_col != 1 && d->n > 1) {
        return true;
    }
    bool dense = d->b_row <= kernels->panel;
    return !dense && d->m >= PACK_MIN_M;
}

static bool packs_a(const td_gemm_desc *d)
{
    return d->bf16 &&
           (d->a_dtype != TD_BF16 || (d->a_col != 1 && d->k > 1) || td_bf16_depth(d->k) == 0);
}

static int64_t matrices(const td_gemm_desc *d, int64_t batch_stride)
{
    return batch_stride == 0 ? 1 : d->batch.count;
}

static int64_t packed_rows(const td_gemm_desc *d)
{
    return td_divide_up(d->m, TD_BF16_BLOCK) * TD_BF16_BLOCK;
}

/* Whether A is a transposed matrix of long rows: steps along k would go from page to page, and
 * their lines would drive each other out of the first-level cache. */
static bool columns_are_far(const td_gemm_desc *d)
{
    return d->a_row == 1 && d->a_col >= 4 * BLOCK_M;
}

static void set_steps(plan *p)
{
    const td_gemm_desc *d = p->desc;
    p->depth = !d->bf16 ? 1 : packs_a(d) ? TD_BF16_BLOCK : td_bf16_depth(d->k);
    p->k = td_divide_up(d->k, p->depth) * p->depth;
    p->pack_k = PACK_K / p->depth * p->depth;
    p->block_m = d->bf16 ? BF16_BLOCK_M : BLOCK_M;
    p->row_blocks = td_divide_up(d->m, p->block_m);
    p->panels = td_divide_up(d->n, p->kernels->panel);
    int64_t deal = d->batch.count * p->row_blocks * p->panels / SPAN_TASKS;
    int64_t most = d->bf16 ? BF16_SPAN : columns_are_far(d) ? COPY_SPAN : 1;
    p->span = td_min64(most, deal > 1 ? deal : 1);
    p->copies = !d->bf16 && p->span > 1;
}

static void gemm_make_plan(plan *p, const td_gemm_desc *d, td_conv_space *space)
{
    p->desc = d;
    p->kernels = td_gemm_kernels_for(d->bf16 ? TD_BF16 : d->dtype);
    int64_t size = (int64_t)p->kernels->size, a = 0, b = 0;
    set_steps(p);
    if (d->bf16 || needs_packing(d, p->kernels)) {
        a = packs_a(d) ? matrices(d, d->batch.a) * packed_rows(d) * p->k : 0;
        b = matrices(d, d->batch.b) * p->panels * p->k * p->kernels->panel;
    }
    p->a_low = d->split ? a : 0;
    p->b_low = d->split ? b : 0;
    p->a = a > 0 ? td_conv_take(space, (a + p->a_low) * size) : NULL;
    p->b = b > 0 ? td_conv_take(space, (b + p->b_low) * size) : NULL;
}

static bool gemm_is_empty(const td_gemm_desc *d)
{
    return d->m == 0 || d->n == 0 || d->batch.count == 0;
}

size_t td_gemm_workspace(const td_gemm_desc *desc)
{
    td_conv_space space = { 0 };
    plan p;
    if (!gemm_is_empty(desc) && !td_gemm_is_few(desc)) {
        gemm_make_plan(&p, desc, &space);
    }
    return (size_t)space.used;
}

/* ---- packing ---- */

/* Bytes of an element of a factor. */
static int64_t gemm_size_of(const plan *p, td_dtype dtype)
{
    return p->desc->bf16 ? (int64_t)td_dtype_size(dtype) : (int64_t)p->kernels->size;
}

/* 32 rows of one A, in bf16. */
static void pack_a_task(const plan *p, int64_t task)
{
    const td_gemm_desc *d = p->desc;
    int64_t blocks = packed_rows(d) / TD_BF16_BLOCK, matrix = task / blocks;
    int64_t row = task % blocks * TD_BF16_BLOCK;
    bool by_rows = d->a_col == 1 || d->k == 1;
    int m = (int)td_min64(TD_BF16_BLOCK, d->m - row);
    td_bf16_source from = { .dtype = d->a_dtype, .stride = by_rows ? d->a_row : d->a_col };
    td_bf16 *to = (td_bf16 *)p->a + (matrix * packed_rows(d) + row) * p->k;
    for (int64_t k0 = 0; k0 < d->k; k0 += TD_BF16_BLOCK, to += TD_BF16_BLOCK) {
        int64_t at = matrix * d->batch.a + row * d->a_row + k0 * d->a_col;
        int k = (int)td_min64(TD_BF16_BLOCK, d->k - k0);
        from.data = (const char *)d->a + at * gemm_size_of(p, d->a_dtype);
        (by_rows ? td_bf16_pack_a : td_bf16_pack_a_turned)(to, p->k, p->a_low, &from, m, k);
    }
}

/* Some rows of one panel of one B. */
static void pack_b_task(const plan *p, int64_t task)
{
    const td_gemm_desc *d = p->desc;
    int64_t blocks = td_divide_up(d->k, p->pack_k), width = p->kernels->panel;
    int64_t k0 = task % blocks * p->pack_k, k = td_min64(p->pack_k, d->k - k0);
    int64_t panel = task / blocks % p->panels, matrix = task / blocks / p->panels;
    int64_t n = td_min64(width, d->n - panel * width), size = gemm_size_of(p, d->b_dtype);
    int64_t at = matrix * d->batch.b + k0 * d->b_row + panel * width * d->b_col;
    const char *from = (const char *)d->b + at * size;
    int64_t to = ((matrix * p->panels + panel) * p->k + k0) * width;
    if (!d->bf16) {
        p->kernels->pack(p->b + to * size, p->kernels->panel, from, k, n, d->b_row, d->b_col);
        return;
    }
    bool by_rows = d->b_col == 1 || d->n == 1;
    td_bf16_source source = { .dtype = d->b_dtype, .stride = by_rows ? d->b_row : d->b_col };
    for (int64_t i = 0; i < k; i += p->depth) {
        source.data = from + i * d->b_row * size;
        (by_rows ? td_bf16_pack_b
                 : td_bf16_pack_b_turned)((td_bf16 *)p->b + to + i * width, p->b_low, &source,
                                          (int)td_min64(p->depth, k - i), (int)n, (int)p->depth);
    }
}

static int64_t a_tasks(const plan *p)
{
    return p->a ? matrices(p->desc, p->desc->batch.a) * packed_rows(p->desc) / TD_BF16_BLOCK : 0;
}

static void gemm_pack_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    if (task < a_tasks(p)) {
        pack_a_task(p, task);
    } else {
        pack_b_task(p, task - a_tasks(p));
    }
}

/* ---- the product ---- */

/* Adds a part of the terms of a panel, from row k0 of B on. */
static void gemm_add_terms(const plan *p, td_gemm_block *block, const char *a, const char *b,
                           int64_t k0, int64_t k)
{
    td_gemm_term terms[TD_BF16_TERMS];
    int count = td_bf16_terms(terms, (const td_bf16 *)a, p->a_low,
                              (const td_bf16 *)(b + k0 * block->b_row * (int64_t)p->kernels->size),
                              p->b_low, k); /* without low parts: one term */
    block->terms = terms;
    block->count = k > 0 ? count : 0;
    block->accumulate = p->desc->accumulate || k0 > 0;
    p->kernels->block(block);
}

/* Adds a part of the terms of a task's panels. */
static void multiply_panels(const plan *p, td_gemm_block *block, const char *a, int64_t matrix,
                            int64_t row, int64_t panel, int64_t k0, int64_t k)
{
    const td_gemm_desc *d = p->desc;
    int64_t size = (int64_t)p->kernels->size, width = p->kernels->panel;
    int64_t c_size = (int64_t)td_dtype_size(d->dtype), bias_size = d->bf16 ? 4 : size;
    int64_t end = td_min64(p->panels, panel + p->span);
    for (; panel < end; panel++) {
        int64_t j0 = panel * width, packed = (d->batch.b == 0 ? 0 : matrix) * p->panels + panel;
        bool last = d->bias != NULL && k0 + k == p->k;
        block->c = (char *)d->c + (matrix * d->batch.c + row * d->c_row + j0) * c_size;
        block->n = (int)td_min64(width, d->n - j0);
        block->bias = last ? (const char *)d->bias + j0 * bias_size : NULL;
        gemm_add_terms(p, block, a,
                       p->b ? p->b + packed * p->k * width * size
                            : (const char *)d->b + (matrix * d->batch.b + j0) * size,
                       k0, k);
    }
}

/* The same with a copy of that part of A, element (i, p) of which is at i + BLOCK_M p. */
static __attribute__((noinline)) void multiply_copied(const plan *p, td_gemm_block *block,
                                                      const char *a, int64_t matrix, int64_t row,
                                                      int64_t panel, int64_t k0, int64_t k)
{
    _Alignas(64) char copy[BLOCK_M * TD_GEMM_BLOCK_K * sizeof(double)];
    int64_t size = (int64_t)p->kernels->size, a_col = p->desc->a_col;
    for (int64_t i = 0; i < k; i++) {
        memcpy(copy + i * BLOCK_M * size, a + i * a_col * size, (size_t)(block->m * size));
    }
    multiply_panels(p, block, copy, matrix, row, panel, k0, k);
}

/* Long sums are added up in parts, but for bf16, whose results are rounded once. */
static void multiply_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    const td_gemm_desc *d = p->desc;
    int64_t size = (int64_t)p->kernels->size;
    int64_t of_matrix = p->turns.blocks * p->turns.panels, matrix = task / of_matrix;
    int64_t row_block, panel;
    td_turn(&p->turns, task % of_matrix, &row_block, &panel);
    int64_t row = row_block * p->block_m, a_col = d->bf16 ? 1 : d->a_col;
    const char *a =
        p->a ? p->a + ((d->batch.a == 0 ? 0 : matrix) * packed_rows(d) + row) * p->k * size
             : (const char *)d->a + (matrix * d->batch.a + row * d->a_row) * size;
    td_gemm_block block = { .a_row = p->a_row,
                            .c_row = p->c_row,
                            .a_col = p->copies ? BLOCK_M : a_col,
                            .b_row = p->b ? p->kernels->panel : d->b_row,
                            .m = td_min64(p->block_m, d->m - row),
                            .dtype = d->dtype };
    int64_t most = d->bf16 ? p->k : TD_GEMM_BLOCK_K, k0 = 0;
    do { /* once even for k = 0: C is written, and the bias added, in any case */
        int64_t k = td_min64(most, p->k - k0);
        (p->copies ? multiply_copied : multiply_panels)(p, &block, a + k0 * a_col * size, matrix,
                                                        row, panel * p->span, k0, k);
        k0 += most;
    } while (k0 < p->k);
    if (p->kernels->end) {
        p->kernels->end();
    }
}

void td_gemm(td_pool *pool, const td_gemm_desc *desc, void *workspace)
{
    if (gemm_is_empty(desc)) {
        return;
    }
    if (td_gemm_is_few(desc)) {
        td_gemm_few(pool, desc);
        return;
    }
    td_conv_space space = { .base = workspace };
    plan p;
    gemm_make_plan(&p, desc, &space);
    int64_t a_row[BF16_BLOCK_M], c_row[BF16_BLOCK_M], rows = td_min64(p.block_m, desc->m);
    int64_t a_step = (p.a ? p.k : desc->a_row) * (int64_t)p.kernels->size;
    int64_t c_step = desc->c_row * (int64_t)td_dtype_size(desc->dtype);
    for (int64_t i = 0; i < rows; i++) {
        a_row[i] = i * a_step;
        c_row[i] = i * c_step;
    }
    p.a_row = a_row;
    p.c_row = c_row;
    if ((double)desc->m * (double)desc->n * (double)desc->k * (double)desc->batch.count <
        TD_GEMM_SERIAL_WORK) {
        pool = NULL;
    }
    if (p.b) {
        int64_t b_tasks =
            matrices(desc, desc->batch.b) * p.panels * td_divide_up(desc->k, p.pack_k);
        td_pool_run(pool, a_tasks(&p) + b_tasks, gemm_pack_task, &p);
    }
    int64_t threads = td_pool_threads(pool) / desc->batch.count; /* for a matrix */
    p.turns = td_turns_make(p.row_blocks, td_divide_up(p.panels, p.span), desc->k * desc->n,
                            desc->m * (desc->k + desc->n), threads > 1 ? (int)threads : 1);
    td_pool_run(pool, desc->batch.count * p.turns.blocks * p.turns.panels, multiply_task, &p);
}
