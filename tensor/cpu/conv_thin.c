/*
 * Backward-weights where y has a handful of channels: vectors run along those of x. For every tap,
 * the pixels of y that meet it are a matrix of its channels, and what they meet is one of x's; the
 * transpose of that tap's dw is their product, found through tables (td_gemm_indexed). Where x has
 * few channels as well, it is taken as rows of taps (td_conv_rows).
 *
 * Pixels are cut into pieces at places that depend on the shapes only; their results are added in
 * order afterwards, and transposed.
 */
#include "tensor/cpu/conv_classes.h"

#include <math.h>
#include <string.h>

enum {
    MAX_RESULT = 8, /* channels of y */
    BLOCK = 128,    /* pixels of a block, at most */
    WANTED_TASKS = 16,
    PIECE_PIXELS = 96, /* at least, in a piece: enough to be worth a partial result */
    MAX_PIECES = WANTED_TASKS,
    SHORT_LANES = 8,
    COMBINE = 256,          /* channels of x in a task of adding up */
    SERIAL_COMBINE = 20000, /* numbers that are added up by the calling thread */
    LEAST_STEP = 4,         /* what a product of short rows costs, in products of a vector; */
    LEAST_SHORT_STEP = 8, /* with short vectors, of which the processor multiplies two at a time */
};

typedef struct plan {
    const td_conv_problem *problem;
    const td_conv_reduce *reduce;
    td_conv_classes classes;
    int64_t width, panels; /* of x's channels */
    int64_t size;          /* of dw */
    int64_t pieces, first_block[MAX_PIECES + 1];
    float *partial; /* [piece][tap][oc][ic] */
} plan;

double td_conv_thin_cost(const td_conv_problem *p)
{
    if (p->groups > 1 || p->oc > MAX_RESULT || !p->kernels->indexed) {
        return INFINITY;
    }
    int64_t width = td_conv_even_width(p->kernels, p->ic), panels = td_divide_up(p->ic, width);
    int64_t step = width / p->kernels->lanes * p->oc;
    int64_t least = p->kernels->lanes > SHORT_LANES ? LEAST_STEP : LEAST_SHORT_STEP;
    double met = (double)td_conv_axis_meets(&p->h) * (double)td_conv_axis_meets(&p->w);
    return met * (double)p->n * (double)(panels * (step > least ? step : least));
}

static plan make_plan(const td_conv_reduce *reduce, td_conv_space *space)
{
    const td_conv_problem *problem = reduce->problem;
    plan p = { .problem = problem, .reduce = reduce };
    p.width = td_conv_even_width(problem->kernels, problem->ic);
    p.panels = td_divide_up(problem->ic, p.width);
    p.size = (int64_t)problem->h.kernel * problem->w.kernel * problem->oc * problem->ic;
    p.classes = td_conv_classes_make(problem, BLOCK, space);
    int64_t pixels = problem->h.out * problem->w.out * problem->n;
    p.pieces = td_min64(td_divide_up(WANTED_TASKS, p.panels), td_divide_up(pixels, PIECE_PIXELS));
    p.pieces = p.pieces < 1 ? 1 : p.pieces;
    p.partial = td_conv_take(space, p.pieces * p.size * (int64_t)sizeof *p.partial);
    if (space->base) {
        td_conv_classes_cut(&p.classes, p.pieces, p.first_block);
    }
    return p;
}

/* All taps of a class, for some of its pixels, whose places are in the tables already. */
static void add_taps(const plan *p, const td_conv_class *c, td_gemm_indexed g)
{
    const td_conv_problem *problem = p->problem;
    const float *x = g.b;
    float *dw = g.c;
    for (int64_t kh = 0; kh < c->h.taps; kh++) {
        for (int64_t kw = 0; kw < c->w.taps; kw++) {
            int64_t tap = (c->h.tap + kh) * problem->w.kernel + c->w.tap + kw;
            g.b = x + kh * problem->h.dilation * problem->x.row +
                  kw * problem->w.dilation * problem->x.column;
            g.c = dw + tap * problem->oc * problem->ic;
            problem->kernels->indexed(&g);
        }
    }
}

/* A piece of the pixels, and a panel of channels. */
static void piece_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    const td_conv_problem *problem = p->problem;
    int64_t piece = task / p->panels, channel = task % p->panels * p->width;
    float *dw = p->partial + piece * p->size + channel;
    int64_t x_pixel[BLOCK], y_pixel[BLOCK], y_channel[MAX_RESULT], dw_channel[MAX_RESULT];
    for (int64_t i = 0; i < problem->oc; i++) {
        y_channel[i] = i * (int64_t)sizeof *dw;
        dw_channel[i] = i * problem->ic * (int64_t)sizeof *dw;
    }
    td_gemm_indexed g = { .a = p->reduce->dy,
                          .b = (const float *)p->reduce->x + channel,
                          .c = dw,
                          .a_row = y_channel,
                          .a_col = y_pixel,
                          .b_row = x_pixel,
                          .c_row = dw_channel,
                          .m = problem->oc,
                          .n = (int)td_min64(p->width, problem->ic - channel),
                          .accumulate = true };
    for (int64_t i = 0; i < p->size; i += problem->ic) {
        memset(dw + i, 0, (size_t)g.n * sizeof *dw);
    }
    for (int64_t block = p->first_block[piece]; block < p->first_block[piece + 1]; block++) {
        const td_conv_class *c = td_conv_class_of(&p->classes, block);
        int64_t first = (block - c->block) * BLOCK;
        g.k = td_min64(BLOCK, c->pixels - first);
        td_conv_class_pixels(problem, c, first, g.k, x_pixel, y_pixel);
        add_taps(p, c, g);
    }
}

/* Some channels of x, of one tap. */
static void combine_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    int64_t ic = p->problem->ic, oc = p->problem->oc, chunks = td_divide_up(ic, COMBINE);
    int64_t tap = task / chunks, first = task % chunks * COMBINE;
    int64_t count = td_min64(COMBINE, ic - first);
    const float *from = p->partial + tap * oc * ic + first;
    float *dw = (float *)p->reduce->dw + (tap * ic + first) * oc, sum[COMBINE];
    for (int64_t channel = 0; channel < oc; channel++, from += ic) {
        memcpy(sum, from, (size_t)count * sizeof *sum);
        for (int64_t piece = 1; piece < p->pieces; piece++) {
            for (int64_t i = 0; i < count; i++) {
                sum[i] += from[piece * p->size + i];
            }
        }
        for (int64_t i = 0; i < count; i++) {
            float *to = &dw[i * oc + channel];
            *to = p->reduce->accumulate ? *to + sum[i] : sum[i];
        }
    }
}

int64_t td_conv_thin_workspace(const td_conv_reduce *reduce)
{
    td_conv_space space = { 0 };
    make_plan(reduce, &space);
    return space.used;
}

void td_conv_thin_run(td_pool *pool, const td_conv_reduce *reduce, void *workspace)
{
    td_conv_space space = { .base = workspace };
    plan p = make_plan(reduce, &space);
    double work = td_conv_thin_cost(p.problem) * p.problem->kernels->lanes;
    pool = work < TD_GEMM_SERIAL_WORK ? NULL : pool;
    td_pool_run(pool, p.pieces * p.panels, piece_task, &p);
    int64_t taps = (int64_t)p.problem->h.kernel * p.problem->w.kernel;
    td_pool_run(p.pieces * p.size < SERIAL_COMBINE ? NULL : pool,
                taps * td_divide_up(p.problem->ic, COMBINE), combine_task, &p);
}
