/*
 * Depthwise convolutions: backward-weights. A task has some rows of pixels and some channels. It
 * sums up tap after tap, while the part of the pictures that they read stays in the cache.
 */
#include "tensor/cpu/conv_depthwise.h"

#include <string.h>

enum {
    SHORT_SUM = 128, /* rows that are added in the element type before they go into a double */
    LONG_SUM = 512,  /* rows of a tap, at least, before the doubles go to memory */
    LEAST_TASKS = 4, /* if there are so many rows of pixels */
    MAX_TERMS = 64,
    CACHE_BYTES = 1 << 20, /* rows of pixels that the taps read again */
};

typedef struct plan {
    td_depthwise_plan common;
    const td_conv_reduce *reduce;
    int64_t column_blocks;          /* of the channels, TD_DEPTHWISE_COLUMNS each */
    int64_t pieces, rows_per_piece; /* of the rows of pixels */
    int64_t pictures;               /* at a time */
    int64_t rows_at_once;           /* of pixels: short ones make up a sum together */
    double *partial;                /* [piece][tap][channel] */
} plan;

static plan reduce_plan(const td_conv_reduce *reduce, td_conv_space *space)
{
    const td_conv_problem *problem = reduce->problem;
    plan p = { .common = td_depthwise_plan_make(problem, false, space), .reduce = reduce };
    const td_conv_taps *h = &p.common.h;
    p.column_blocks = td_divide_up(p.common.channels, TD_DEPTHWISE_COLUMNS);
    int64_t row_bytes =
        (h->kernel + 1) * problem->w.in * TD_DEPTHWISE_COLUMNS * (int64_t)p.common.kernels->size;
    int64_t fit = row_bytes > 0 ? CACHE_BYTES / row_bytes : 1; /* pictures of no columns: none */
    p.pictures = fit > 1 ? fit : 1;
    int64_t vectors = p.common.w.size * td_min64(p.pictures, problem->n);
    p.rows_at_once = vectors > 0 && vectors < LONG_SUM ? LONG_SUM / vectors : 1;
    int64_t wanted = td_divide_up(TD_DEPTHWISE_WANTED_TASKS, p.column_blocks);
    p.rows_per_piece = h->size > 0 ? td_divide_up(h->size, td_min64(wanted, h->size)) : 1;
    int64_t few = td_divide_up(LEAST_TASKS, p.column_blocks);
    int64_t least = td_min64(p.rows_at_once, td_divide_up(h->size, few));
    p.rows_per_piece = p.rows_per_piece < least ? least : p.rows_per_piece;
    p.pieces = td_divide_up(h->size, p.rows_per_piece);
    int64_t taps = (int64_t)h->kernel * p.common.w.kernel;
    p.partial = td_conv_take(space, p.pieces * taps * p.common.channels * (int64_t)sizeof(double));
    return p;
}

/* The sum of one tap over rows of pixels, some pictures, and at most TD_DEPTHWISE_COLUMNS channels.
 */
typedef struct tap_sum {
    const plan *plan;
    int kh, kw;
    int64_t column, columns;
    int64_t image, images;
    td_gemm_term terms[MAX_TERMS];
    int count;
    int64_t rows;
    double total[TD_DEPTHWISE_COLUMNS];
} tap_sum;

static void flush(tap_sum *s)
{
    union {
        float f32[TD_DEPTHWISE_COLUMNS];
        double f64[TD_DEPTHWISE_COLUMNS];
    } sum;
    const td_depthwise_plan *p = &s->plan->common;
    p->kernels->sums(&sum, s->terms, s->count, p->channels, s->columns);
    for (int64_t i = 0; i < s->columns; i++) {
        s->total[i] += p->problem->dtype == TD_F32 ? (double)sum.f32[i] : sum.f64[i];
    }
    s->count = 0;
    s->rows = 0;
}

/* `count` rows of channels, one after the other in both. */
static void depthwise_reduce_add_run(tap_sum *s, const char *x, const char *dy, int64_t count)
{
    const td_depthwise_plan *p = &s->plan->common;
    int64_t row_bytes = p->channels * (int64_t)p->kernels->size;
    for (int64_t row = 0, k; row < count; row += k) {
        k = td_min64(SHORT_SUM - s->rows, count - row);
        s->terms[s->count++] = (td_gemm_term){ x + row * row_bytes, dy + row * row_bytes, k };
        s->rows += k;
        if (s->rows == SHORT_SUM || s->count == MAX_TERMS) {
            flush(s);
        }
    }
}

/* The pixels of a row that meet the tap: at stride 1 and with all pictures one run, otherwise one
 * by one. */
static void add_pixel_row(tap_sum *s, int64_t row)
{
    const plan *p = s->plan;
    const td_conv_problem *problem = p->common.problem;
    int64_t size = (int64_t)p->common.kernels->size;
    int32_t h = p->common.h.source[row * p->common.h.kernel + s->kh];
    bool together = problem->w.stride == 1 && s->images == problem->n;
    for (int64_t q = 0; h >= 0 && q < p->common.w.size; q++) {
        int32_t w = p->common.w.source[q * p->common.w.kernel + s->kw];
        if (w < 0) {
            continue;
        }
        int64_t pixels = 1;
        while (together && q + pixels < p->common.w.size &&
               p->common.w.source[(q + pixels) * p->common.w.kernel + s->kw] >= 0) {
            pixels++;
        }
        int64_t first = s->image * p->common.channels + s->column;
        int64_t x = h * problem->x.row + w * problem->x.column + first;
        int64_t dy = row * problem->y.row + q * problem->y.column + first;
        depthwise_reduce_add_run(s, (const char *)p->reduce->x + x * size,
                                 (const char *)p->reduce->dy + dy * size, pixels * s->images);
        q += pixels - 1;
    }
}

/* Adds the sums of all taps over rows [row, end) of pixels to the piece's. */
static void depthwise_reduce_add_taps(const plan *p, double *to, int64_t row, int64_t end,
                                      int64_t column, int64_t image)
{
    tap_sum s;
    s.plan = p;
    s.column = column;
    s.columns = td_min64(TD_DEPTHWISE_COLUMNS, p->common.channels - column);
    s.image = image;
    s.images = td_min64(p->pictures, p->common.problem->n - image);
    s.count = 0;
    s.rows = 0;
    for (s.kh = 0; s.kh < p->common.h.kernel; s.kh++) {
        for (s.kw = 0; s.kw < p->common.w.kernel; s.kw++, to += p->common.channels) {
            memset(s.total, 0, sizeof s.total);
            for (int64_t r = row; r < end; r++) {
                add_pixel_row(&s, r);
            }
            flush(&s);
            for (int64_t i = 0; i < s.columns; i++) {
                to[column + i] += s.total[i];
            }
        }
    }
}

/* Some columns, some rows of pixels, all taps. */
static void depthwise_reduce_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    int64_t taps = (int64_t)p->common.h.kernel * p->common.w.kernel;
    int64_t piece = task / p->column_blocks;
    int64_t column = task % p->column_blocks * TD_DEPTHWISE_COLUMNS;
    int64_t end = td_min64((piece + 1) * p->rows_per_piece, p->common.h.size);
    double *to = p->partial + piece * taps * p->common.channels;
    int64_t columns = td_min64(TD_DEPTHWISE_COLUMNS, p->common.channels - column);
    for (int64_t tap = 0; tap < taps; tap++) {
        memset(to + tap * p->common.channels + column, 0, (size_t)columns * sizeof *to);
    }
    for (int64_t image = 0; image < p->common.problem->n; image += p->pictures) {
        for (int64_t row = piece * p->rows_per_piece; row < end; row += p->rows_at_once) {
            depthwise_reduce_add_taps(p, to, row, td_min64(end, row + p->rows_at_once), column,
                                      image);
        }
    }
}

/* dw = (accumulate ? dw : 0) + the pieces in order. */
static void add_pieces(const plan *p)
{
    enum { SOME = 64 };
    int64_t count = (int64_t)p->common.h.kernel * p->common.w.kernel * p->common.channels;
    bool f32 = p->common.problem->dtype == TD_F32, accumulate = p->reduce->accumulate;
    for (int64_t first = 0; first < count; first += SOME) {
        int64_t some = td_min64(SOME, count - first);
        float *to32 = (float *)p->reduce->dw + first;
        double *to64 = (double *)p->reduce->dw + first, sum[SOME];
        for (int64_t i = 0; i < some; i++) {
            sum[i] = !accumulate ? 0 : f32 ? (double)to32[i] : to64[i];
        }
        for (int64_t piece = 0; piece < p->pieces; piece++) {
            for (int64_t i = 0; i < some; i++) {
                sum[i] += p->partial[piece * count + first + i];
            }
        }
        for (int64_t i = 0; i < some; i++) {
            if (f32) {
                to32[i] = (float)sum[i];
            } else {
                to64[i] = sum[i];
            }
        }
    }
}

void td_conv_depthwise_reduce(td_pool *pool, const td_conv_reduce *reduce, td_conv_space *space)
{
    plan p = reduce_plan(reduce, space);
    if (!space->base) {
        return;
    }
    td_pool_run(td_depthwise_pool(pool, &p.common), p.column_blocks * p.pieces,
                depthwise_reduce_task, &p);
    add_pieces(&p);
}
