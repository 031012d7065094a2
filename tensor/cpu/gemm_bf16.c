#include "tensor/cpu/gemm_bf16.h"

#include "tensor/cpu/bf16_kernels.h"
#include "tensor/cpu/conv_bf16.h"

enum {
    TASK_ROWS = 128,   /* of C */
    TASK_PANELS = 4,   /* of 32 columns of C, at most */
    WANTED_TASKS = 64, /* fewer panels in a task where there are few rows */
};

typedef struct plan {
    const td_gemm_desc *desc;
    td_gemm_bf16_types types;
    const td_gemm_kernels *kernels;
    int depth; /* of a step */
    int64_t steps;
    int64_t row_blocks, panels; /* of 32 */
    int64_t row_tasks, panel_tasks, task_panels;
    td_turns turns;           /* of one matrix */
    int64_t a_count, b_count; /* matrices to pack */
    td_bf16 *a, *b; /* packed: a [matrix][row][step], b [matrix][panel][step]; a NULL: as it is */
    int64_t a_low, b_low;
} plan;

bool td_gemm_bf16_available(void)
{
    return td_bf16_kernels_now() != NULL;
}

static bool packs_a(const td_gemm_desc *d, const td_gemm_bf16_types *types)
{
    return types->a != TD_BF16 || (d->a_col != 1 && d->k > 1) || td_bf16_depth(d->k) == 0;
}

static int64_t a_elements(const plan *p)
{
    return p->row_blocks * p->steps * TD_BF16_STEP;
}

static int64_t b_elements(const plan *p)
{
    return p->panels * p->steps * p->depth * TD_BF16_BLOCK;
}

static plan make_plan(const td_gemm_desc *d, const td_gemm_bf16_types *types, td_conv_space *space)
{
    plan p = { .desc = d, .types = *types, .kernels = td_bf16_kernels_now() };
    bool pack = packs_a(d, types);
    p.depth = pack ? TD_BF16_BLOCK : td_bf16_depth(d->k);
    p.steps = td_divide_up(d->k, p.depth);
    p.row_blocks = td_divide_up(d->m, TD_BF16_BLOCK);
    p.panels = td_divide_up(d->n, TD_BF16_BLOCK);
    p.row_tasks = td_divide_up(d->m, TASK_ROWS);
    int64_t deal = td_min64(TASK_PANELS, d->batch * p.row_tasks * p.panels / WANTED_TASKS);
    p.task_panels = deal > 1 ? deal : 1;
    p.panel_tasks = td_divide_up(p.panels, p.task_panels);
    p.a_count = !pack ? 0 : d->a_batch == 0 ? 1 : d->batch;
    p.b_count = d->b_batch == 0 ? 1 : d->batch;
    int64_t a = p.a_count * a_elements(&p), b = p.b_count * b_elements(&p);
    p.a_low = types->split ? a : 0;
    p.b_low = types->split ? b : 0;
    p.a = pack ? td_conv_take(space, (a + p.a_low) * (int64_t)sizeof *p.a) : NULL;
    p.b = td_conv_take(space, (b + p.b_low) * (int64_t)sizeof *p.b);
    return p;
}

/* ---- packing ---- */

/* 32 rows of one A. */
static void pack_a_task(const plan *p, int64_t task)
{
    const td_gemm_desc *d = p->desc;
    int64_t matrix = task / p->row_blocks, block = task % p->row_blocks;
    int64_t size = (int64_t)td_dtype_size(p->types.a), row = block * TD_BF16_BLOCK;
    bool by_rows = d->a_col == 1 || d->k == 1;
    int m = (int)td_min64(TD_BF16_BLOCK, d->m - row);
    td_bf16_source from = { .dtype = p->types.a, .stride = by_rows ? d->a_row : d->a_col };
    td_bf16 *to = p->a + matrix * a_elements(p) + block * p->steps * TD_BF16_STEP;
    for (int64_t k0 = 0; k0 < d->k; k0 += TD_BF16_BLOCK, to += TD_BF16_BLOCK) {
        int64_t at = matrix * d->a_batch + row * d->a_row + k0 * d->a_col;
        int k = (int)td_min64(TD_BF16_BLOCK, d->k - k0);
        from.data = (const char *)d->a + at * size;
        if (by_rows) {
            td_bf16_pack_a(to, p->steps * p->depth, p->a_low, &from, m, k);
        } else {
            td_bf16_pack_a_turned(to, p->steps * p->depth, p->a_low, &from, m, k);
        }
    }
}

/* One panel of one B. */
static void pack_b_task(const plan *p, int64_t task)
{
    const td_gemm_desc *d = p->desc;
    int64_t matrix = task / p->panels, panel = task % p->panels, column = panel * TD_BF16_BLOCK;
    int64_t size = (int64_t)td_dtype_size(p->types.b);
    int64_t step = (int64_t)p->depth * TD_BF16_BLOCK;
    bool by_rows = d->b_col == 1 || d->n == 1;
    int n = (int)td_min64(TD_BF16_BLOCK, d->n - column);
    td_bf16_source from = { .dtype = p->types.b, .stride = by_rows ? d->b_row : d->b_col };
    td_bf16 *to = p->b + matrix * b_elements(p) + panel * p->steps * step;
    for (int64_t k0 = 0; k0 < d->k; k0 += p->depth, to += step) {
        int64_t at = matrix * d->b_batch + k0 * d->b_row + column * d->b_col;
        int k = (int)td_min64(p->depth, d->k - k0);
        from.data = (const char *)d->b + at * size;
        if (by_rows) {
            td_bf16_pack_b(to, p->b_low, &from, k, n, p->depth);
        } else {
            td_bf16_pack_b_turned(to, p->b_low, &from, k, n, p->depth);
        }
    }
}

static void pack_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    int64_t a_tasks = p->a_count * p->row_blocks;
    if (task < a_tasks) {
        pack_a_task(p, task);
    } else {
        pack_b_task(p, task - a_tasks);
    }
}

/* ---- the product ---- */

static void multiply_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    const td_gemm_desc *d = p->desc;
    int64_t of_matrix = p->row_tasks * p->panel_tasks, matrix = task / of_matrix;
    int64_t row_task, panel_task;
    td_turn(&p->turns, task % of_matrix, &row_task, &panel_task);
    int64_t row = row_task * TASK_ROWS, end = td_min64(d->m, row + TASK_ROWS);
    int64_t panel = panel_task * p->task_panels, last = td_min64(p->panels, panel + p->task_panels);
    int64_t size = (int64_t)td_dtype_size(d->dtype);
    int64_t k = p->steps * p->depth, block_row = p->a ? k : d->a_row;
    int64_t a_row[TASK_ROWS], c_row[TASK_ROWS];
    for (int64_t i = 0; i < end - row; i++) {
        a_row[i] = i * block_row * (int64_t)sizeof(td_bf16);
        c_row[i] = i * d->c_row * size;
    }
    td_gemm_term terms[TD_BF16_TERMS];
    td_gemm_block block = {
        .terms = terms,
        .a_row = a_row,
        .c_row = c_row,
        .a_col = 1,
        .b_row = TD_BF16_BLOCK,
        .m = end - row,
        .dtype = d->dtype,
        .accumulate = d->accumulate,
    };
    const td_bf16 *a = p->a ? p->a + (d->a_batch == 0 ? 0 : matrix) * a_elements(p) + row * k
                            : (const td_bf16 *)d->a + matrix * d->a_batch + row * d->a_row;
    const td_bf16 *b = p->b + (d->b_batch == 0 ? 0 : matrix) * b_elements(p);
    for (; panel < last; panel++) {
        int64_t column = panel * TD_BF16_BLOCK;
        int terms_of_panel =
            td_bf16_terms(terms, a, p->a_low, b + panel * k * TD_BF16_BLOCK, p->b_low, k);
        block.count = d->k > 0 ? terms_of_panel : 0;
        block.n = (int)td_min64(TD_BF16_BLOCK, d->n - column);
        block.bias = d->bias ? (const float *)d->bias + column : NULL;
        block.c = (char *)d->c + (matrix * d->c_batch + row * d->c_row + column) * size;
        p->kernels->block(&block);
    }
    if (p->kernels->end) {
        p->kernels->end();
    }
}

size_t td_gemm_bf16_workspace(const td_gemm_desc *desc, const td_gemm_bf16_types *types)
{
    if (desc->m == 0 || desc->n == 0 || desc->batch == 0) {
        return 0;
    }
    td_conv_space space = { 0 };
    make_plan(desc, types, &space);
    return (size_t)space.used;
}

void td_gemm_bf16(td_pool *pool, const td_gemm_desc *desc, const td_gemm_bf16_types *types,
                  void *workspace)
{
    if (desc->m == 0 || desc->n == 0 || desc->batch == 0) {
        return;
    }
    td_conv_space space = { .base = workspace };
    plan p = make_plan(desc, types, &space);
    if ((double)desc->m * (double)desc->n * (double)desc->k * (double)desc->batch <
        TD_GEMM_SERIAL_WORK) {
        pool = NULL;
    }
    td_pool_run(pool, p.a_count * p.row_blocks + p.b_count * p.panels, pack_task, &p);
    p.turns = td_gemm_turns(desc, p.row_tasks, p.panel_tasks, td_pool_threads(pool));
    td_pool_run(pool, desc->batch * p.panel_tasks * p.row_tasks, multiply_task, &p);
}
