/*
 * Forward and backward-weights where x has a handful of channels, so that a tap alone would be too
 * short a sum: all taps are one list. Pixels are sorted into classes of those that meet the same
 * taps; then a class is a product of matrices whose rows are its pixels, of all pictures, and whose
 * inner dimension is those taps, times channels. Nothing is laid out first: the products find their
 * operands in tables, which a task makes for a block of pixels and the taps of its class.
 *
 * Backward-weights multiplies the same matrices the other way round. Its pixels are cut into pieces
 * at places that depend on the shapes only; their results are added in order afterwards.
 */
#include "tensor/cpu/conv_classes.h"

#include <string.h>

enum {
    MAX_CHANNELS = 8, /* of x */
    TAPS = 128,       /* times channels, in a call of the kernel: their weights stay in the cache */
    BLOCK = 128,      /* pixels of a block, at most */
    BLOCK_UNIT = 24,  /* a block is a multiple of it: whole tiles */
    WANTED_TASKS = 16,
    PIECE_PIXELS = 96, /* at least, in a piece: enough to be worth a partial result */
    MAX_PIECES = 64,
    COMBINE = 4096,         /* numbers of the result in a task of adding up */
    SERIAL_COMBINE = 40000, /* numbers that are added up by the calling thread */
};

typedef struct plan {
    const td_conv_problem *problem;
    const td_conv_apply *apply;
    const td_conv_reduce *reduce;
    td_conv_classes classes;
    int64_t width, panels; /* of the result's channels */
    int64_t taps;          /* times channels */
    int64_t pieces, first_block[MAX_PIECES + 1];
    float *partial; /* [piece][tap][ic][oc], or NULL */
} plan;

static int64_t class_taps(const plan *p, const td_conv_class *c)
{
    return (int64_t)c->h.taps * c->w.taps * p->problem->ic;
}

/* ---- the plan ---- */

static plan make_plan(const td_conv_problem *problem, bool reduce, td_conv_space *space)
{
    plan p = { .problem = problem };
    p.width = td_conv_even_width(problem->kernels, problem->oc);
    p.panels = td_divide_up(problem->oc, p.width);
    p.taps = (int64_t)problem->h.kernel * problem->w.kernel * problem->ic;
    int64_t pixels = problem->h.out * problem->w.out * problem->n;
    int64_t units = td_divide_up(td_divide_up(pixels, WANTED_TASKS), BLOCK_UNIT);
    int64_t block = td_min64(units, BLOCK / BLOCK_UNIT) * BLOCK_UNIT;
    p.classes = td_conv_classes_make(problem, reduce ? BLOCK : block, space);
    if (!reduce) {
        return p;
    }
    p.pieces = td_min64(td_divide_up(WANTED_TASKS, p.panels), td_divide_up(pixels, PIECE_PIXELS));
    p.pieces = p.pieces < 1 ? 1 : p.pieces;
    if (p.pieces > 1) {
        p.partial =
            td_conv_take(space, p.pieces * p.taps * problem->oc * (int64_t)sizeof *p.partial);
    }
    if (space->base) {
        td_conv_classes_cut(&p.classes, p.pieces, p.first_block);
    }
    return p;
}

/* ---- tables ---- */

/* As td_conv_class_pixels, of the taps of a class, times channels: in x, from its first tap on, and
 * in w. */
static int64_t find_taps(const plan *p, const td_conv_class *c, int64_t first, int64_t *x_at,
                         int64_t *w_at)
{
    enum { SIZE = sizeof(float) };
    const td_conv_problem *problem = p->problem;
    int64_t ic = problem->ic, all = class_taps(p, c), count = td_min64(TAPS, all - first);
    if (count <= 0) {
        return 0;
    }
    int64_t channel = 0, kw = 0, kh = 0;
    if (first > 0) {
        channel = first % ic;
        kw = first / ic % c->w.taps;
        kh = first / ic / c->w.taps;
    }
    int64_t row = problem->x.row * problem->h.dilation * SIZE;
    int64_t column = problem->x.column * problem->w.dilation * SIZE, out = problem->oc * SIZE;
    for (int64_t done = 0; done < count;) {
        int64_t x = kh * row + kw * column;
        int64_t w = ((c->h.tap + kh) * problem->w.kernel + c->w.tap + kw) * ic * out;
        for (; channel < ic && done < count; channel++, done++) {
            x_at[done] = x + channel * SIZE;
            w_at[done] = w + channel * out;
        }
        channel = 0;
        if (++kw == c->w.taps) {
            kw = 0;
            kh++;
        }
    }
    return count;
}

/* Multiplies all channels of the result, with operands as `g` says for the first. */
static void multiply(const plan *p, td_gemm_indexed g)
{
    int64_t bytes = p->width * (int64_t)sizeof(float);
    for (int64_t left = p->problem->oc; left > 0; left -= p->width) {
        g.n = (int)td_min64(left, p->width);
        p->problem->kernels->indexed(&g);
        g.b = (const char *)g.b + bytes;
        g.c = (char *)g.c + bytes;
        g.bias = g.bias ? (const char *)g.bias + bytes : NULL;
    }
}

/* ---- forward ---- */

bool td_conv_few_wins(const td_conv_problem *p)
{
    return p->groups == 1 && p->ic <= MAX_CHANNELS && p->h.kernel * p->w.kernel > 1 &&
           p->kernels->indexed != NULL;
}

/* Of a product with half a vector. */
static const double HALF_COST = 0.65;

double td_conv_few_cost(const td_conv_problem *p)
{
    double met = (double)td_conv_axis_meets(&p->h) * (double)td_conv_axis_meets(&p->w);
    bool half = p->kernels->halves && p->oc <= p->kernels->lanes / 2;
    double step = half ? HALF_COST : (double)td_divide_up(p->oc, p->kernels->lanes);
    return met * (double)(p->n * p->ic) * step;
}

static void forward_task(void *ctx, int64_t block)
{
    const plan *p = ctx;
    const td_conv_class *c = td_conv_class_of(&p->classes, block);
    int64_t x_pixel[BLOCK], y_pixel[BLOCK], x_tap[TAPS], w_tap[TAPS];
    int64_t first = (block - c->block) * p->classes.block, all = class_taps(p, c), tap = 0;
    td_gemm_indexed g = { .a = p->apply->source,
                          .b = p->apply->weights,
                          .c = p->apply->result,
                          .a_row = x_pixel,
                          .a_col = x_tap,
                          .b_row = w_tap,
                          .c_row = y_pixel,
                          .m = td_min64(p->classes.block, c->pixels - first),
                          .bias = p->apply->bias };
    td_conv_class_pixels(p->problem, c, first, g.m, x_pixel, y_pixel);
    do { /* even without any tap: all pixels are written */
        g.k = find_taps(p, c, tap, x_tap, w_tap);
        multiply(p, g);
        g.accumulate = true;
        tap += g.k;
    } while (tap < all);
}

static td_pool *pool_for(const plan *p, td_pool *pool)
{
    const td_conv_problem *problem = p->problem;
    double work = td_conv_few_cost(problem) * problem->kernels->lanes;
    return work < TD_GEMM_SERIAL_WORK ? NULL : pool;
}

int64_t td_conv_few_apply_workspace(const td_conv_apply *apply)
{
    td_conv_space space = { 0 };
    make_plan(apply->problem, false, &space);
    return space.used;
}

void td_conv_few_apply_run(td_pool *pool, const td_conv_apply *apply, void *workspace)
{
    td_conv_space space = { .base = workspace };
    plan p = make_plan(apply->problem, false, &space);
    p.apply = apply;
    td_pool_run(pool_for(&p, pool), p.classes.blocks, forward_task, &p);
}

/* ---- backward-weights ---- */

/* A piece of the pixels, and a panel of channels. */
static void piece_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    const td_conv_problem *problem = p->problem;
    int64_t piece = task / p->panels, channel = task % p->panels * p->width, oc = problem->oc;
    float *dw = p->partial ? p->partial + piece * p->taps * oc : p->reduce->dw;
    int64_t x_pixel[BLOCK], y_pixel[BLOCK], x_tap[TAPS], w_tap[TAPS];
    td_gemm_indexed g = { .a = p->reduce->x,
                          .b = (const float *)p->reduce->dy + channel,
                          .c = dw + channel,
                          .a_row = x_tap,
                          .a_col = x_pixel,
                          .b_row = y_pixel,
                          .c_row = w_tap,
                          .n = (int)td_min64(p->width, oc - channel),
                          .accumulate = true };
    for (int64_t i = 0; (p->partial || !p->reduce->accumulate) && i < p->taps; i++) {
        memset((float *)g.c + i * oc, 0, (size_t)g.n * sizeof *dw);
    }
    for (int64_t block = p->first_block[piece]; block < p->first_block[piece + 1]; block++) {
        const td_conv_class *c = td_conv_class_of(&p->classes, block);
        int64_t first = (block - c->block) * p->classes.block, all = class_taps(p, c);
        g.k = td_min64(p->classes.block, c->pixels - first);
        td_conv_class_pixels(p->problem, c, first, g.k, x_pixel, y_pixel);
        for (int64_t tap = 0; tap < all; tap += g.m) {
            g.m = find_taps(p, c, tap, x_tap, w_tap);
            p->problem->kernels->indexed(&g);
        }
    }
}

static void combine_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    int64_t size = p->taps * p->problem->oc, first = task * COMBINE;
    int64_t count = td_min64(COMBINE, size - first);
    float *restrict dw = (float *)p->reduce->dw + first;
    const float *restrict from = p->partial + first;
    if (!p->reduce->accumulate) {
        memcpy(dw, from, (size_t)count * sizeof *dw);
    }
    for (int64_t piece = p->reduce->accumulate ? 0 : 1; piece < p->pieces; piece++) {
        for (int64_t i = 0; i < count; i++) {
            dw[i] += from[piece * size + i];
        }
    }
}

int64_t td_conv_few_reduce_workspace(const td_conv_reduce *reduce)
{
    td_conv_space space = { 0 };
    make_plan(reduce->problem, true, &space);
    return space.used;
}

void td_conv_few_reduce_run(td_pool *pool, const td_conv_reduce *reduce, void *workspace)
{
    td_conv_space space = { .base = workspace };
    plan p = make_plan(reduce->problem, true, &space);
    p.reduce = reduce;
    pool = pool_for(&p, pool);
    td_pool_run(pool, p.pieces * p.panels, piece_task, &p);
    if (p.partial) {
        int64_t size = p.taps * p.problem->oc;
        td_pool_run(p.pieces * size < SERIAL_COMBINE ? NULL : pool, td_divide_up(size, COMBINE),
                    combine_task, &p);
    }
}
