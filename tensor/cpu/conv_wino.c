/*
 * Winograd's F(4x4, 3x3): convolutions of 3x3 taps and stride 1 with about a quarter of the
 * multiplications, at some cost in precision (a relative error of 2e-6 where plain f32 has 4e-7).
 *
 * The result is cut into tiles of 4x4 pixels. A tile of one picture is a row of 36 matrices of
 * channels ("points", wino_kernels.h), and the convolution becomes 36 products of matrices.
 *
 * Backward-data is a convolution as well: of dy with the filter turned by half a turn, and with
 * 2 - pad pixels of padding. Backward-weights sums over the rows.
 *
 * Rows go in rounds: all rows of a round to points; the products; and, forward and backward-data,
 * all rows from points. Where the weights' points stay in the second-level cache, each thread has
 * rounds of its own, so small that their points stay there, too. The points of deep layers' weights
 * are too many to be read again for every few rows, and those of dw to be written again: then all
 * threads work on one round of many rows, most often the only one. Backward-weights has both
 * pictures' points in panels; each block of dw is summed in all 36 points, which stay in a thread's
 * cache, and after the last round goes to its nine taps from there.
 */
#include "tensor/cpu/conv_wino.h"

#include "tensor/cpu/conv_wino_internal.h"

enum {
    ROWS = 6,    /* of a task that transforms; the micro-kernels take as many at once */
    WIDE = 32,   /* channels of x in a block of dw, */
    NARROW = 16, /* or so many where there would be fewer blocks than this: */
    WANTED_BLOCKS = 8,

    /* A thread's round. */
    OWN_BYTES = 1536 << 10, /* of points */
    MIN_ROWS = 24,
    MAX_ROWS = 96,
    WANTED_ROUNDS = 16, /* for several threads */

    /* A shared one. */
    SHARED_BYTES = 8 << 20, /* of points, */
    WEIGHTS_PER_ROUND = 2,  /* or the weights' points by this, if that is more */
    MIN_WEIGHTS = 16 << 20, /* bytes of the weights' points: they stay in no cache */
};

typedef td_wino_plan plan;
typedef td_wino_picture picture;

/* Rows whose points are there together. */
typedef struct round {
    const plan *plan;
    int64_t first;
    float *in, *out; /* points */
} round;

/* ---- the plan ---- */

static int64_t weights_bytes(const td_conv2d_desc *d)
{
    return TD_WINO_POINTS * (int64_t)sizeof(float) * d->ic * d->oc;
}

bool td_wino_shares_rounds(const td_conv2d_desc *d, td_conv2d_pass pass)
{
    return pass == TD_CONV2D_BACKWARD_WEIGHTS || weights_bytes(d) >= MIN_WEIGHTS;
}

static void plan_pictures(plan *p, const td_conv2d_desc *d)
{
    const td_conv2d_call *call = p->call;
    p->in = (picture){ .data = (char *)call->x, .h = d->ih, .w = d->iw, .channels = d->ic };
    p->out = (picture){ .data = (char *)call->y, .h = d->oh, .w = d->ow, .channels = d->oc };
    p->pad = d->pad_h;
    if (call->pass == TD_CONV2D_BACKWARD_DATA) {
        picture in = p->in;
        p->in = p->out;
        p->out = in;
        p->pad = TD_WINO_TAPS - 1 - d->pad_h;
    }
    p->panels = td_divide_up(p->out.channels, p->gemm->panel);
    p->in.width = p->in.channels;
    p->out.width = p->out.channels;
    if (call->pass == TD_CONV2D_BACKWARD_WEIGHTS) {
        int64_t blocks = td_divide_up(p->in.channels, WIDE) * p->panels;
        p->in.width = td_min64(blocks < WANTED_BLOCKS ? NARROW : WIDE, p->in.channels);
        p->out.width = p->gemm->panel;
    }
    p->in.panels = td_divide_up(p->in.channels, p->in.width);
    p->out.panels = td_divide_up(p->out.channels, p->out.width);
}

static void wino_cut_rows(plan *p)
{
    int64_t row_bytes =
        TD_WINO_POINTS * (int64_t)sizeof(float) * (p->in.channels + p->out.channels);
    if (p->shared) {
        int64_t bytes = weights_bytes(p->desc) / WEIGHTS_PER_ROUND;
        p->rounds = td_divide_up(p->rows * row_bytes, bytes > SHARED_BYTES ? bytes : SHARED_BYTES);
    } else {
        int64_t most = td_min64(td_divide_up(p->rows, WANTED_ROUNDS), MAX_ROWS);
        int64_t wanted = td_min64(OWN_BYTES / row_bytes, most);
        p->rounds = td_divide_up(p->rows, wanted > MIN_ROWS ? wanted : MIN_ROWS);
    }
    p->round_rows = td_wino_round_up(td_divide_up(p->rows, p->rounds), ROWS);
    p->rounds = td_divide_up(p->rows, p->round_rows);
    picture *pictures[] = { &p->in, &p->out };
    for (int i = 0; i < 2; i++) {
        picture *t = pictures[i];
        t->step = td_wino_round_up(p->round_rows * t->width, TD_WINO_PAD) + TD_WINO_PAD;
    }
}

/* Floats of a round's points. */
static int64_t points_of(const picture *t)
{
    return t->panels * TD_WINO_POINTS * t->step;
}

/* Floats of a block of dw in all points. */
static int64_t sums_of(const plan *p)
{
    return TD_WINO_POINTS * p->in.width * p->out.width;
}

static plan wino_make_plan(const td_conv2d_call *call, td_conv_space *space)
{
    const td_conv2d_desc *d = call->desc;
    plan p = {
        .call = call, .desc = d, .gemm = td_gemm_kernels_for(TD_F32), .wino = td_wino_kernels_now()
    };
    p.bias = call->pass == TD_CONV2D_FORWARD ? call->bias : NULL;
    p.shared = td_wino_shares_rounds(d, call->pass);
    plan_pictures(&p, d);
    p.tiles_w = td_divide_up(p.out.w, TD_WINO_OUT);
    p.rows = td_divide_up(p.out.h, TD_WINO_OUT) * p.tiles_w * d->n;
    wino_cut_rows(&p);
    int64_t points = points_of(&p.in) + points_of(&p.out), blocks = p.in.panels * p.panels;
    if (p.shared) {
        p.points = td_wino_floats(space, points);
    } else {
        p.slots = td_wino_make_slots(space, p.rounds, points);
    }
    if (call->pass != TD_CONV2D_BACKWARD_WEIGHTS) {
        p.weights_step = p.panels * p.in.channels * p.gemm->panel + TD_WINO_PAD;
        p.weights = td_wino_floats(space, TD_WINO_POINTS * p.weights_step);
    } else if (p.rounds > 1) {
        p.sums = td_wino_floats(space, blocks * sums_of(&p));
    } else {
        p.slots = td_wino_make_slots(space, blocks, sums_of(&p));
    }
    return p;
}

/* ---- the steps of a round ---- */

static int64_t wino_rows_of(const round *r)
{
    return td_min64(r->plan->round_rows, r->plan->rows - r->first);
}

/* Task `task` of the rows, one panel. */
static td_wino_part wino_part_of(const round *r, bool wide, int64_t panel, int64_t task)
{
    const picture *t = wide ? &r->plan->in : &r->plan->out;
    int64_t first = task * ROWS;
    float *points = wide ? r->in : r->out;
    return (td_wino_part){ .first = r->first + first,
                           .rows = td_min64(ROWS, wino_rows_of(r) - first),
                           .channel = panel * t->width,
                           .channels = td_min64(t->width, t->channels - panel * t->width),
                           .points = points + panel * TD_WINO_POINTS * t->step + first * t->width };
}

static void x_task(void *ctx, int64_t task)
{
    const round *r = ctx;
    const plan *p = r->plan;
    for (int64_t panel = 0; panel < p->in.panels; panel++) {
        td_wino_part part = wino_part_of(r, true, panel, task);
        td_wino_transform(p, p->wino->x_to_points, true, &part, (td_wino_tile){ .images = 0 });
    }
}

/* Forward and backward-data: one point, one panel. */
static void product_task(void *ctx, int64_t task)
{
    const round *r = ctx;
    const plan *p = r->plan;
    int64_t point = task / p->panels, panel = task % p->panels, width = p->gemm->panel;
    td_wino_multiply(p, r->in + point * p->in.step,
                     p->weights + point * p->weights_step + panel * p->in.channels * width,
                     r->out + point * p->out.step + panel * width, wino_rows_of(r),
                     (int)td_min64(width, p->out.channels - panel * width));
}

static void y_task(void *ctx, int64_t task)
{
    const round *r = ctx;
    const plan *p = r->plan;
    td_wino_part part = wino_part_of(r, false, 0, task);
    td_wino_transform(p, p->wino->y_from_points, false, &part,
                      (td_wino_tile){ .bias = p->bias, .accumulate = p->call->accumulate });
}

/* Backward-weights. */
static void dy_task(void *ctx, int64_t task)
{
    const round *r = ctx;
    const plan *p = r->plan;
    for (int64_t panel = 0; panel < p->out.panels; panel++) {
        td_wino_part part = wino_part_of(r, false, panel, task);
        td_wino_transform(p, p->wino->dy_to_points, false, &part, (td_wino_tile){ .images = 0 });
    }
}

/* One point of a block of dw: x^T times dy over the round's rows. */
static void sum_rows(const round *r, const float *x, const float *dy, float *sums, int64_t m, int n)
{
    const plan *p = r->plan;
    int64_t in = p->in.width, width = p->out.width, rows = wino_rows_of(r);
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
    const plan *p = r->plan;
    int64_t in = p->in.width, width = p->out.width, oc = p->out.channels;
    int64_t x = task / p->panels, dy = task % p->panels;
    int64_t m = td_min64(in, p->in.channels - x * in), n = td_min64(width, oc - dy * width);
    float *sums = p->sums ? p->sums + task * sums_of(p) : td_wino_take_slot(&p->slots);
    for (int64_t point = 0; point < TD_WINO_POINTS; point++) {
        sum_rows(r, r->in + (x * TD_WINO_POINTS + point) * p->in.step,
                 r->out + (dy * TD_WINO_POINTS + point) * p->out.step, sums + point * in * width, m,
                 (int)n);
    }
    for (int64_t i = 0; i < m && r->first + wino_rows_of(r) == p->rows; i++) {
        float *dw = (float *)p->call->w + (x * in + i) * oc + dy * width;
        p->wino->dw_from_points(dw, p->desc->ic * oc, sums + i * width, in * width, n,
                                p->call->accumulate);
    }
    if (p->sums == NULL) {
        td_wino_give_slot(&p->slots, sums);
    }
}

static void run_round(td_pool *pool, round *r)
{
    const plan *p = r->plan;
    int64_t tasks = td_divide_up(wino_rows_of(r), ROWS);
    td_pool_run(pool, tasks, x_task, r);
    if (p->call->pass == TD_CONV2D_BACKWARD_WEIGHTS) {
        td_pool_run(pool, tasks, dy_task, r);
        td_pool_run(pool, p->in.panels * p->panels, dw_task, r);
    } else {
        td_pool_run(pool, TD_WINO_POINTS * p->panels, product_task, r);
        td_pool_run(pool, tasks, y_task, r);
    }
}

/* A round of one thread. */
static void wino_round_task(void *ctx, int64_t number)
{
    const plan *p = ctx;
    float *points = td_wino_take_slot(&p->slots);
    run_round(NULL, &(round){ p, number * p->round_rows, points, points + points_of(&p->in) });
    td_wino_give_slot(&p->slots, points);
}

/* ---- the door ---- */

bool td_wino_possible(const td_conv2d_desc *d)
{
    return d->dtype == TD_F32 && d->kh == TD_WINO_TAPS && d->kw == TD_WINO_TAPS &&
           d->stride_h == 1 && d->stride_w == 1 && d->dil_h == 1 && d->dil_w == 1 &&
           d->pad_h == d->pad_w && d->pad_h < TD_WINO_TAPS && d->groups == 1 && d->n > 0;
}

/*
 * The transform multiplies 36 times for each tile, the direct way once for each tap that meets the
 * picture. What that saves must pay for the transforms: of pixels, which need some channels to
 * multiply with afterwards, and of the weights, which need rows to share them. Measured on the 3x3
 * convolutions of ResNets.
 */
bool td_wino_wins(const td_conv2d_desc *d, td_conv2d_pass pass)
{
    td_conv_problem p = td_conv_problem_of(d);
    double direct = (double)td_conv_meetings(&p.h) * (double)td_conv_meetings(&p.w);
    int64_t h = pass == TD_CONV2D_BACKWARD_DATA ? d->ih : d->oh;
    int64_t w = pass == TD_CONV2D_BACKWARD_DATA ? d->iw : d->ow;
    double tiles = (double)(td_divide_up(h, TD_WINO_OUT) * td_divide_up(w, TD_WINO_OUT));
    double rows = tiles * (double)d->n;
    bool weights = pass == TD_CONV2D_BACKWARD_WEIGHTS;
    double gain = direct / (tiles * TD_WINO_POINTS);
    double channels = (double)td_min64(d->ic, d->oc);
    double least = td_wino_shares_rounds(d, pass) ? 48 : 96;
    return channels >= 16 && rows >= least && gain > (weights ? 2.2 : 1.8);
}

void td_wino_run(td_pool *pool, const td_conv2d_call *call, td_conv_space *space)
{
    plan p = wino_make_plan(call, space);
    if (!space->base) {
        return;
    }
    if (p.weights) {
        td_wino_weights(pool, &p);
    }
    if (!p.shared) {
        td_pool_run(pool, p.rounds, wino_round_task, &p);
        return;
    }
    round r = { .plan = &p, .in = p.points, .out = p.points + points_of(&p.in) };
    for (; r.first < p.rows; r.first += p.round_rows) {
        run_round(pool, &r);
    }
}
