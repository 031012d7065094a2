/* The gradient of the bias, and the sum of what pieces of a gradient have added up. */
#include "tensor/cpu/conv_internal.h"

enum {
    CHANNEL_BLOCK = 64, /* channels whose sums are kept at hand */
    SHORT_SUM = 64,     /* terms that are added in the element type before they go into a double */
    MIN_PIECE_ROWS = 512,
    MAX_PIECES = 64,
};

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

/* ---- partial sums ---- */

void td_conv_add_pieces(td_dtype dtype, void *dw, const double *partial, int64_t count,
                        int64_t pieces, bool accumulate)
{
    if (dtype == TD_F32) {
        f32_combine(dw, partial, count, pieces, accumulate);
    } else {
        f64_combine(dw, partial, count, pieces, accumulate);
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
    td_pool_run(pool, p.pieces, dtype == TD_F32 ? f32_bias_task : f64_bias_task, &p);
    td_conv_add_pieces(dtype, db, p.partial, channels, p.pieces, accumulate);
}
