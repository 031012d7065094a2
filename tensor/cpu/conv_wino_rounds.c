/*
 * Winograd's convolution in rounds of many rows (conv_wino_internal.h): deep layers have few tiles
 * and many channels, so that their weights' points fill tens of megabytes, which each small block
 * of rows would read anew, and in backward-weights write anew. Most often there is one round.
 *
 * Forward and backward-data: all tiles to points; a product for each point and panel of channels;
 * all tiles from points. Backward-weights: both to points, in panels; then each block of dw is
 * summed in all 36 points, which stay in a thread's cache, and after the last round goes to its
 * nine taps from there.
 */
#include "tensor/cpu/conv_wino_internal.h"

#include "tensor/cpu/cpus.h"

enum {
    ROWS = 8,                   /* of a task that transforms */
    IN_PANEL = 24,              /* channels of x in a block of dw */
    ROUND_POINTS = 8 << 20,     /* bytes of points in a round, */
    WEIGHTS_PER_ROUND = 2,      /* or the weights' points by this, if that is more */
    MIN_WEIGHTS = 16 << 20,     /* bytes of the weights' points: they stay in no cache */
    MIN_WEIGHTS_GRAD = 2 << 20, /* nor in a thread's second-level cache, to be added to */
};

/* Rows whose points are there together: all that ROUND_POINTS has room for. */
typedef struct round {
    const td_wino_plan *plan;
    int64_t first;
} round;

static int64_t rows_bytes(const td_wino_plan *p)
{
    return TD_WINO_POINTS * (int64_t)sizeof(float) * p->rows * (p->in.channels + p->out.channels);
}

static int64_t in_width(const td_wino_plan *p)
{
    return p->call->pass == TD_CONV2D_BACKWARD_WEIGHTS ? td_min64(IN_PANEL, p->in.channels)
                                                       : p->in.channels;
}

/* Of the panels in which `out` lies: dy's in backward-weights; y lies as it is. */
static int64_t out_width(const td_wino_plan *p)
{
    return p->call->pass == TD_CONV2D_BACKWARD_WEIGHTS ? p->gemm->panel : p->out.channels;
}

static int64_t weights_bytes(const td_conv2d_desc *d)
{
    return TD_WINO_POINTS * (int64_t)sizeof(float) * d->ic * d->oc;
}

bool td_wino_in_rounds(const td_conv2d_desc *d, td_conv2d_pass pass)
{
    bool weights = pass == TD_CONV2D_BACKWARD_WEIGHTS;
    return weights_bytes(d) >= (weights ? MIN_WEIGHTS_GRAD : MIN_WEIGHTS);
}

static void find_rounds(td_wino_plan *p)
{
    int64_t bytes = weights_bytes(p->desc) / WEIGHTS_PER_ROUND;
    p->blocks = td_divide_up(rows_bytes(p), bytes > ROUND_POINTS ? bytes : ROUND_POINTS);
    p->block_rows = td_wino_round_up(td_divide_up(p->rows, p->blocks), ROWS);
    p->blocks = td_divide_up(p->rows, p->block_rows);
}

/* Floats from point to point of a panel that is `width` channels wide. */
static int64_t step_of(const td_wino_plan *p, int64_t width)
{
    return td_wino_round_up(p->block_rows * width, TD_WINO_PAD) + TD_WINO_PAD;
}

void td_wino_plan_rounds(td_wino_plan *p, td_conv_space *space)
{
    int64_t in = in_width(p), out = out_width(p);
    find_rounds(p);
    p->in_panels = td_divide_up(p->in.channels, in);
    int64_t out_panels = td_divide_up(p->out.channels, out);
    p->in_step = step_of(p, in);
    p->out_step = step_of(p, out);
    p->in_points = td_wino_floats(space, p->in_panels * TD_WINO_POINTS * p->in_step);
    p->out_points = td_wino_floats(space, out_panels * TD_WINO_POINTS * p->out_step);
    if (p->call->pass != TD_CONV2D_BACKWARD_WEIGHTS) {
        return;
    }
    int64_t blocks = p->in_panels * out_panels, size = TD_WINO_POINTS * in * out;
    if (p->blocks > 1) {
        p->sums = td_wino_floats(space, blocks * size);
    } else {
        td_wino_plan_slots(p, space, blocks, size);
    }
}

static int64_t rows_of(const round *r)
{
    return td_min64(r->plan->block_rows, r->plan->rows - r->first);
}

/* Some rows of one panel. */
static td_wino_part part_of(const round *r, bool wide, int64_t panel, int64_t task)
{
    const td_wino_plan *p = r->plan;
    int64_t width = wide ? in_width(p) : out_width(p), step = wide ? p->in_step : p->out_step;
    int64_t channels = wide ? p->in.channels : p->out.channels;
    float *points = wide ? p->in_points : p->out_points;
    int64_t first = task * ROWS;
    return (td_wino_part){ .first = r->first + first,
                           .rows = td_min64(ROWS, rows_of(r) - first),
                           .channel = panel * width,
                           .channels = td_min64(width, channels - panel * width),
                           .points = points + panel * TD_WINO_POINTS * step + first * width,
                           .step = step,
                           .row = width };
}

static void x_task(void *ctx, int64_t task)
{
    const round *r = ctx;
    const td_wino_plan *p = r->plan;
    for (int64_t panel = 0; panel < p->in_panels; panel++) {
        td_wino_part part = part_of(r, true, panel, task);
        td_wino_transform(p, p->wino->x_to_points, true, &part, (td_wino_tile){ .images = 0 });
    }
}

/* ---- forward and backward-data ---- */

static void product_task(void *ctx, int64_t task)
{
    const round *r = ctx;
    const td_wino_plan *p = r->plan;
    int64_t point = task / p->panels, panel = task % p->panels, width = p->gemm->panel;
    td_wino_multiply(p, p->in_points + point * p->in_step,
                     p->weights + point * p->weights_step + panel * p->in.channels * width,
                     p->out_points + point * p->out_step + panel * width, rows_of(r),
                     (int)td_min64(width, p->out.channels - panel * width));
}

static void y_task(void *ctx, int64_t task)
{
    const round *r = ctx;
    const td_wino_plan *p = r->plan;
    td_wino_part part = part_of(r, false, 0, task);
    td_wino_transform(p, p->wino->y_from_points, false, &part,
                      (td_wino_tile){ .bias = p->bias, .accumulate = p->call->accumulate });
}

/* ---- backward-weights ---- */

static void dy_task(void *ctx, int64_t task)
{
    const round *r = ctx;
    const td_wino_plan *p = r->plan;
    for (int64_t panel = 0; panel < p->panels; panel++) {
        td_wino_part part = part_of(r, false, panel, task);
        td_wino_transform(p, p->wino->dy_to_points, false, &part, (td_wino_tile){ .images = 0 });
    }
}

/* One point of a block of dw: x^T times dy over all rows. */
static void sum_rows(const round *r, const float *x, const float *dy, float *sums, int64_t m, int n)
{
    const td_wino_plan *p = r->plan;
    int64_t in = in_width(p), width = p->gemm->panel, rows = rows_of(r);
    td_gemm_term term;
    td_gemm_block block = { .terms = &term,
                            .count = 1,
                            .a_col = in,
                            .b_row = width,
                            .c = sums,
                            .m = m,
                            .n = n,
                            .accumulate = r->first > 0 };
    for (int64_t row = 0; row < rows; row += TD_WINO_MAX_DEPTH) {
        term = (td_gemm_term){ x + row * in, dy + row * width,
                               td_min64(TD_WINO_MAX_DEPTH, rows - row) };
        td_gemm_strided(p->gemm, &block, 1, width);
        block.accumulate = true;
    }
}

static void dw_task(void *ctx, int64_t task)
{
    const round *r = ctx;
    const td_wino_plan *p = r->plan;
    int64_t in = in_width(p), width = p->gemm->panel, oc = p->out.channels;
    int64_t x = task / p->panels, dy = task % p->panels;
    int64_t m = td_min64(in, p->in.channels - x * in), n = td_min64(width, oc - dy * width);
    int slot = p->sums ? -1 : td_wino_take_slot(p);
    float *sums = p->sums ? p->sums + task * TD_WINO_POINTS * in * width
                          : p->slot_memory + slot * p->slot_size;
    for (int64_t point = 0; point < TD_WINO_POINTS; point++) {
        sum_rows(r, p->in_points + (x * TD_WINO_POINTS + point) * p->in_step,
                 p->out_points + (dy * TD_WINO_POINTS + point) * p->out_step,
                 sums + point * in * width, m, (int)n);
    }
    for (int64_t i = 0; i < m && r->first + rows_of(r) == p->rows; i++) {
        float *dw = (float *)p->call->w + (x * in + i) * oc + dy * width;
        p->wino->dw_from_points(dw, p->desc->ic * oc, sums + i * width, in * width, 1, 0, n,
                                p->call->accumulate);
    }
    if (slot >= 0) {
        td_wino_give_slot(p, slot);
    }
}

void td_wino_run_rounds(td_pool *pool, td_wino_plan *p)
{
    for (round r = { .plan = p }; r.first < p->rows; r.first += p->block_rows) {
        int64_t tasks = td_divide_up(rows_of(&r), ROWS);
        td_pool_run(pool, tasks, x_task, &r);
        if (p->call->pass == TD_CONV2D_BACKWARD_WEIGHTS) {
            td_pool_run(pool, tasks, dy_task, &r);
            td_pool_run(pool, p->in_panels * p->panels, dw_task, &r);
        } else {
            td_pool_run(pool, TD_WINO_POINTS * p->panels, product_task, &r);
            td_pool_run(pool, tasks, y_task, &r);
        }
    }
}
