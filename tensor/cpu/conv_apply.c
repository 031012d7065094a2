/*
 * Forward and backward-data.
 *
 * A block of the result is some rows (pictures, and pixels beside each other that meet the same
 * taps) of one pixel row, times one panel of channels. It stays in the first-level cache while the
 * taps add to it, in the order of the taps. A block is a task: nobody else writes it.
 */
#include "tensor/cpu/conv_internal.h"

enum {
    BLOCK_ROWS = 64,   /* of the result */
    BLOCK_DEPTH = 128, /* channels of the source in a term */
    MAX_DEPTH = 128,   /* products in a partial sum: short sums are exact sums; and rows of B in a
                          call of the kernel: they must stay in the L1 cache */
    MAX_TERMS = 64,
};

/* Rows [row, row + rows) of the run of pixels that begins at `column`. */
typedef struct row_block {
    int64_t column;
    int64_t row, rows;
} row_block;

typedef struct plan {
    const td_conv_apply *apply;
    const td_conv_problem *problem;
    td_conv_taps h, w;
    int step; /* from one source pixel to the next, where neighbours meet the same taps */
    td_conv_strides from, to;
    int64_t from_channels, to_channels; /* of one group */
    int64_t panels;                     /* of one group */
    int64_t a_row;                      /* from row to row of the source */
    row_block *blocks;
    int64_t block_count;

    /* Panels of weights, [group][panel][tap that is alive][channel of the source][panel width];
     * NULL where the weights serve as they are. */
    char *packed;
} plan;

/* ---- the plan ---- */

/* Whether pixels q and q + 1 of a row meet the same taps, and their rows follow each other. */
static bool mergeable(const plan *p, int64_t q)
{
    const int32_t *here = p->w.source + q * p->w.kernel, *next = here + p->w.kernel;
    if (p->problem->n > 1 && p->step * p->from.column != p->problem->n * p->from.image) {
        return false;
    }
    for (int tap = 0; tap < p->w.kernel; tap++) {
        if (here[tap] < 0 ? next[tap] >= 0 : next[tap] != here[tap] + p->step) {
            return false;
        }
    }
    return true;
}

/* Cuts the rows of a run into blocks of about equal size, whole register blocks where possible. */
static void cut_run(plan *p, int64_t column, int64_t rows)
{
    int64_t unit = p->problem->kernels->rows;
    int64_t pieces = td_divide_up(rows, BLOCK_ROWS);
    int64_t piece = td_divide_up(td_divide_up(rows, pieces), unit) * unit;
    for (int64_t row = 0; row < rows; row += piece) {
        p->blocks[p->block_count++] = (row_block){ column, row, td_min64(piece, rows - row) };
    }
}

static void cut_pixel_row(plan *p)
{
    for (int64_t begin = 0, q = 0; q < p->w.size; q++) {
        if (q + 1 == p->w.size || !mergeable(p, q)) {
            cut_run(p, begin, (q + 1 - begin) * p->problem->n);
            begin = q + 1;
        }
    }
}

static bool packs(const plan *p)
{
    const td_conv_problem *problem = p->problem;
    if (p->apply->backward) {
        return true; /* the weights are needed transposed */
    }
    bool one_panel = problem->oc_all <= problem->kernels->panel; /* is packed as it is */
    bool one_block = p->h.size * p->w.size == 1 && problem->n <= BLOCK_ROWS; /* reads it once */
    return !one_panel && !one_block;
}

static plan make_plan(const td_conv_apply *apply, td_conv_space *space)
{
    const td_conv_problem *problem = apply->problem;
    bool back = apply->backward;
    plan p = { .apply = apply, .problem = problem };
    p.h = td_conv_taps_make(&problem->h, back, space);
    p.w = td_conv_taps_make(&problem->w, back, space);
    p.step = back ? 1 : problem->w.stride;
    p.from = back ? problem->y : problem->x;
    p.to = back ? problem->x : problem->y;
    p.from_channels = back ? problem->oc : problem->ic;
    p.to_channels = back ? problem->ic : problem->oc;
    p.panels = td_divide_up(p.to_channels, problem->kernels->panel);
    p.a_row = problem->n == 1 ? p.step * p.from.column : p.from.image;
    int64_t most = p.w.size * td_divide_up(problem->n, BLOCK_ROWS);
    p.blocks = td_conv_take(space, most * (int64_t)sizeof *p.blocks);
    if (packs(&p)) {
        int64_t alive =
            space->base ? (int64_t)p.h.alive * p.w.alive : (int64_t)p.h.kernel * p.w.kernel;
        p.packed =
            td_conv_take(space, problem->groups * p.panels * alive * p.from_channels *
                                    problem->kernels->panel * (int64_t)problem->kernels->size);
    }
    if (space->base) {
        cut_pixel_row(&p);
    }
    return p;
}

/* ---- weights ---- */

/* Element (tap, channel of y, channel of x) of the weights of a group, at 0 of both channels. */
static int64_t weight_at(const plan *p, int64_t group, int64_t tap)
{
    const td_conv_problem *problem = p->problem;
    return tap * problem->ic * problem->oc_all + group * problem->oc;
}

static int64_t packed_at(const plan *p, int64_t group, int64_t panel, int kh, int kw)
{
    int64_t tap = (int64_t)p->h.rank[kh] * p->w.alive + p->w.rank[kw];
    int64_t taps = (int64_t)p->h.alive * p->w.alive;
    return ((group * p->panels + panel) * taps + tap) * p->from_channels *
           p->problem->kernels->panel;
}

static void pack_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    const td_conv_problem *problem = p->problem;
    const td_gemm_kernels *kernels = problem->kernels;
    int kw = (int)(task % p->w.kernel);
    int kh = (int)(task / p->w.kernel % p->h.kernel);
    int64_t panel = task / p->w.kernel / p->h.kernel % p->panels;
    int64_t group = task / p->w.kernel / p->h.kernel / p->panels;
    if (p->h.rank[kh] < 0 || p->w.rank[kw] < 0) {
        return;
    }
    /* From one channel of the source, or of the result, to the next. */
    int64_t source_step = p->apply->backward ? 1 : problem->oc_all;
    int64_t result_step = p->apply->backward ? problem->oc_all : 1;
    int64_t first = panel * kernels->panel;
    int64_t from = weight_at(p, group, (int64_t)kh * p->w.kernel + kw) + first * result_step;
    int64_t to = packed_at(p, group, panel, kh, kw);
    kernels->pack(p->packed + to * (int64_t)kernels->size,
                  (const char *)p->apply->weights + from * (int64_t)kernels->size, p->from_channels,
                  td_min64(kernels->panel, p->to_channels - first), source_step, result_step);
}

/* ---- the product ---- */

/* The sum that is being built for one block of the result. */
typedef struct term_sum {
    const td_gemm_kernels *kernels;
    td_gemm_block block;
    int64_t depth;
    td_gemm_term terms[MAX_TERMS];
} term_sum;

static void add_up(term_sum *sum)
{
    sum->kernels->block(&sum->block);
    sum->block.accumulate = true;
    sum->block.count = 0;
    sum->depth = 0;
}

/* Adds A (rows x depth) times B to the sum, in terms that are not too deep. */
static void add_product(term_sum *sum, const char *a, const char *b, int64_t depth)
{
    int64_t size = (int64_t)sum->kernels->size;
    for (int64_t k0 = 0; k0 < depth; k0 += BLOCK_DEPTH) {
        int64_t k = td_min64(BLOCK_DEPTH, depth - k0);
        if (sum->depth + k > MAX_DEPTH || sum->block.count == MAX_TERMS) {
            add_up(sum);
        }
        sum->terms[sum->block.count++] =
            (td_gemm_term){ a + k0 * size, b + k0 * sum->block.b_row * size, k };
        sum->depth += k;
    }
}

static void add_taps(const plan *p, term_sum *sum, int64_t group, int64_t panel, int64_t pixel_row,
                     const row_block *rows)
{
    const td_conv_problem *problem = p->problem;
    int64_t size = (int64_t)problem->kernels->size;
    const int32_t *source_h = p->h.source + pixel_row * p->h.kernel;
    const int32_t *source_w = p->w.source + rows->column * p->w.kernel;
    int64_t in_block = rows->row * p->a_row + group * p->from_channels;
    for (int kh = 0; kh < p->h.kernel; kh++) {
        for (int kw = 0; kw < p->w.kernel; kw++) {
            if (source_h[kh] < 0 || source_w[kw] < 0) {
                continue;
            }
            int64_t a = source_h[kh] * p->from.row + source_w[kw] * p->from.column + in_block;
            const char *b;
            if (p->packed) {
                b = p->packed + packed_at(p, group, panel, kh, kw) * size;
            } else {
                int64_t first = panel * problem->kernels->panel;
                int64_t tap = (int64_t)kh * p->w.kernel + kw;
                b = (const char *)p->apply->weights + (weight_at(p, group, tap) + first) * size;
            }
            add_product(sum, (const char *)p->apply->source + a * size, b, p->from_channels);
        }
    }
}

static void block_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    const td_conv_problem *problem = p->problem;
    int64_t size = (int64_t)problem->kernels->size, width = problem->kernels->panel;
    const row_block *rows = &p->blocks[task % p->block_count];
    int64_t pixel_row = task / p->block_count % p->h.size;
    int64_t panel = task / p->block_count / p->h.size % p->panels;
    int64_t group = task / p->block_count / p->h.size / p->panels;
    int64_t channel = group * p->to_channels + panel * width;
    int64_t c = pixel_row * p->to.row + rows->column * p->to.column + rows->row * p->to.image;

    term_sum sum = { .kernels = problem->kernels };
    sum.block = (td_gemm_block){
        .terms = sum.terms,
        .a_row = p->a_row,
        .a_col = 1,
        .b_row = p->packed ? width : problem->oc_all,
        .c = (char *)p->apply->result + (c + channel) * size,
        .c_row = p->to.image,
        .m = rows->rows,
        .n = (int)td_min64(width, p->to_channels - panel * width),
        .accumulate = p->apply->accumulate,
    };
    add_taps(p, &sum, group, panel, pixel_row, rows);
    if (p->apply->bias) {
        sum.block.bias = (const char *)p->apply->bias + channel * size;
    }
    add_up(&sum); /* even without any term: pixels that meet no tap are written too */
}

int64_t td_conv_apply_workspace(const td_conv_apply *apply)
{
    td_conv_space space = { 0 };
    make_plan(apply, &space);
    return space.used;
}

void td_conv_apply_run(td_pool *pool, const td_conv_apply *apply, void *workspace)
{
    td_conv_space space = { .base = workspace };
    plan p = make_plan(apply, &space);
    int64_t panels = apply->problem->groups * p.panels;
    double work = (double)apply->problem->groups * (double)(p.from_channels * p.to_channels) *
                  (double)(p.h.size * p.w.size) * (double)apply->problem->n *
                  (double)(p.h.alive * p.w.alive);
    if (work < TD_GEMM_SERIAL_WORK) {
        pool = NULL;
    }
    if (p.packed) {
        td_pool_run(pool, panels * p.h.kernel * p.w.kernel, pack_task, &p);
    }
    td_pool_run(pool, panels * p.h.size * p.block_count, block_task, &p);
}
