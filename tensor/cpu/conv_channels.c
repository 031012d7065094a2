/*
 * The parts of the convolution that are no products of matrices: the rearrangement of pictures with
 * few channels, depthwise convolutions, and the gradient of the bias.
 */
#include "tensor/cpu/conv_internal.h"

enum {
    CHANNEL_BLOCK = 64, /* channels whose sums are kept at hand */
    IMAGE_BLOCK = 64,   /* pictures in a task */
    SHORT_SUM = 64,     /* terms that are added in the element type before they go into a double */
    WANTED_TASKS = 32,
    MIN_PIECE_ROWS = 512,
    MAX_PIECES = 64,
};

typedef struct depthwise_plan {
    const td_conv_apply *apply;
    td_conv_taps h, w;
    int64_t n, channels, source_width;
} depthwise_plan;

typedef struct reduce_plan {
    const td_conv_reduce *reduce;
    const td_conv_problem *problem;
    td_conv_taps h, w;
    int64_t n, channels, channel_blocks;
    int64_t pieces, piece_size; /* of the pixels */
    double *partial;            /* [piece][tap][channel] */
} reduce_plan;

typedef struct column_plan {
    const void *dy;
    int64_t rows, channels;
    int64_t pieces, piece_size; /* of the rows */
    double *partial;            /* [piece][channel] */
} column_plan;

#define ELEM float
#define T(name) f32_##name
#include "tensor/cpu/conv_channels.inc"

#define ELEM double
#define T(name) f64_##name
#include "tensor/cpu/conv_channels.inc"

/* ---- rows ---- */

int64_t td_conv_rows_bytes(const td_conv2d_desc *desc)
{
    int64_t size = desc->dtype == TD_F32 ? (int64_t)sizeof(float) : (int64_t)sizeof(double);
    int64_t bytes = desc->ih * desc->n * (desc->iw + 2 * (int64_t)desc->pad_w) * desc->ic * size;
    return (bytes + 63) / 64 * 64;
}

void td_conv_rows_run(td_pool *pool, const td_conv_rows *rows)
{
    td_pool_run(pool, rows->desc->ih, rows->desc->dtype == TD_F32 ? f32_rows_task : f64_rows_task,
                (void *)rows);
}

/* ---- depthwise ---- */

static depthwise_plan depthwise_plan_of(const td_conv_apply *apply, td_conv_space *space)
{
    const td_conv_problem *problem = apply->problem;
    depthwise_plan p = { .apply = apply, .n = problem->n, .channels = problem->oc_all };
    p.h = td_conv_taps_make(&problem->h, apply->backward, space);
    p.w = td_conv_taps_make(&problem->w, apply->backward, space);
    p.source_width = apply->backward ? problem->w.out : problem->w.in;
    return p;
}

int64_t td_conv_depthwise_apply_workspace(const td_conv_apply *apply)
{
    td_conv_space space = { 0 };
    depthwise_plan_of(apply, &space);
    return space.used;
}

void td_conv_depthwise_apply_run(td_pool *pool, const td_conv_apply *apply, void *workspace)
{
    td_conv_space space = { .base = workspace };
    depthwise_plan p = depthwise_plan_of(apply, &space);
    td_pool_run(pool, td_divide_up(p.n, IMAGE_BLOCK) * p.h.size * p.w.size,
                apply->problem->dtype == TD_F32 ? f32_depthwise_task : f64_depthwise_task, &p);
}

static reduce_plan reduce_plan_of(const td_conv_reduce *reduce, td_conv_space *space)
{
    const td_conv_problem *problem = reduce->problem;
    reduce_plan p = { .reduce = reduce,
                      .problem = problem,
                      .n = problem->n,
                      .channels = problem->oc_all,
                      .channel_blocks = td_divide_up(problem->oc_all, CHANNEL_BLOCK) };
    p.h = td_conv_taps_make(&problem->h, false, space);
    p.w = td_conv_taps_make(&problem->w, false, space);
    int64_t taps = (int64_t)p.h.kernel * p.w.kernel, pixels = p.h.size * p.w.size;
    int64_t wanted = td_divide_up(WANTED_TASKS, taps * p.channel_blocks);
    p.piece_size = pixels > 0 ? td_divide_up(pixels, td_min64(wanted, pixels)) : 1;
    p.pieces = td_divide_up(pixels, p.piece_size);
    p.partial = td_conv_take(space, p.pieces * taps * p.channels * (int64_t)sizeof(double));
    return p;
}

int64_t td_conv_depthwise_reduce_workspace(const td_conv_reduce *reduce)
{
    td_conv_space space = { 0 };
    reduce_plan_of(reduce, &space);
    return space.used;
}

void td_conv_depthwise_reduce_run(td_pool *pool, const td_conv_reduce *reduce, void *workspace)
{
    td_conv_space space = { .base = workspace };
    reduce_plan p = reduce_plan_of(reduce, &space);
    int64_t taps = (int64_t)p.h.kernel * p.w.kernel;
    int64_t tasks = taps * p.channel_blocks * p.pieces;
    if (p.problem->dtype == TD_F32) {
        td_pool_run(pool, tasks, f32_depthwise_reduce_task, &p);
        f32_combine(reduce->dw, p.partial, taps * p.channels, p.pieces, reduce->accumulate);
    } else {
        td_pool_run(pool, tasks, f64_depthwise_reduce_task, &p);
        f64_combine(reduce->dw, p.partial, taps * p.channels, p.pieces, reduce->accumulate);
    }
}

/* ---- bias ---- */

static column_plan column_plan_of(int64_t rows, int64_t channels, td_conv_space *space)
{
    column_plan p = { .rows = rows, .channels = channels };
    int64_t pieces = td_min64(td_divide_up(rows, MIN_PIECE_ROWS), MAX_PIECES);
    p.piece_size = pieces > 0 ? td_divide_up(rows, pieces) : 1;
    p.pieces = td_divide_up(rows, p.piece_size);
    p.partial = td_conv_take(space, p.pieces * channels * (int64_t)sizeof(double));
    return p;
}

int64_t td_conv_bias_workspace(int64_t rows, int64_t channels)
{
    td_conv_space space = { 0 };
    column_plan_of(rows, channels, &space);
    return space.used;
}

void td_conv_bias_run(td_pool *pool, td_dtype dtype, int64_t rows, int64_t channels, const void *dy,
                      void *db, bool accumulate, void *workspace)
{
    td_conv_space space = { .base = workspace };
    column_plan p = column_plan_of(rows, channels, &space);
    p.dy = dy;
    if (dtype == TD_F32) {
        td_pool_run(pool, p.pieces, f32_bias_task, &p);
        f32_combine(db, p.partial, channels, p.pieces, accumulate);
    } else {
        td_pool_run(pool, p.pieces, f64_bias_task, &p);
        f64_combine(db, p.partial, channels, p.pieces, accumulate);
    }
}
