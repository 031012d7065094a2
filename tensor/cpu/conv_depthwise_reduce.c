/*
 * Depthwise convolutions: backward-weights. A task has some rows of pixels. 3x3 taps are summed
 * together, patch by patch; others tap by tap, while the part of the pictures that they read stays
 * in the cache.
 */
#include "tensor/cpu/conv_depthwise.h"

#include <string.h>

enum {
    SHORT_SUM = 128, /* rows that are added in the element type before they go into a double */
    LONG_SUM = 512,  /* rows of a tap, at least, before the doubles go to memory */
    LEAST_TASKS = 4, /* if there are so many rows of pixels */
    MAX_TERMS = 64,
    CACHE_BYTES = 1 << 20, /* rows of pixels that the taps read again */
    /* Patch by patch: */
    TAPS = TD_DEPTHWISE_PATCH_TAPS,
    DY = TD_DEPTHWISE_PATCH_DY,
    LEAST_PICTURES = 4,
    PICTURES_BYTES = 65536, /* of one pixel, at a time */
    MOST_PICTURES = 128,    /* the same */
};

/* In the place of pixels that do not exist. */
static _Alignas(64) char nowhere[PICTURES_BYTES];

typedef struct plan {
    td_depthwise_plan common;
    const td_conv_reduce *reduce;
    /* The pictures and channels at a pixel as rows: channels are taken several times over, of as
     * many pictures, so that vectors are full. */
    int64_t replicas;
    int64_t width;                  /* replicas * channels: elements of a row */
    int64_t column_blocks;          /* of the width, TD_DEPTHWISE_COLUMNS each */
    int64_t pieces, rows_per_piece; /* of the rows of pixels */
    int64_t pictures;               /* at a time */
    int64_t rows_at_once;           /* of pixels: short ones make up a sum together */
    bool patches;                   /* or patch by patch */
    double *partial;                /* [piece][tap][channel] */
} plan;

/* So many copies of the channels, TD_DEPTHWISE_COLUMNS at most, as leave the fewest lanes of
 * vectors empty; of those the largest number. */
static int64_t count_replicas(int64_t channels)
{
    int64_t best = 1, lanes = td_divide_up(channels, TD_DEPTHWISE_LANES) * TD_DEPTHWISE_LANES;
    for (int64_t r = 2; r * channels <= TD_DEPTHWISE_COLUMNS; r++) {
        int64_t padded = td_divide_up(r * channels, TD_DEPTHWISE_LANES) * TD_DEPTHWISE_LANES;
        if (padded * best <= lanes * r) {
            best = r;
            lanes = padded;
        }
    }
    return best;
}

/* Whether all taps are summed together. */
static bool uses_patches(const plan *p)
{
    const td_conv_problem *problem = p->common.problem;
    int64_t size = (int64_t)p->common.kernels->size, stride = problem->w.stride;
    bool made = p->common.kernels->patch != NULL && problem->h.kernel == TAPS &&
                problem->w.kernel == TAPS && (stride == 1 || stride == 2) &&
                problem->h.stride == stride && problem->h.dilation == 1 && problem->w.dilation == 1;
    return made && p->replicas == 1 && problem->n >= LEAST_PICTURES &&
           p->common.channels * size <= PICTURES_BYTES &&
           p->column_blocks * td_divide_up(p->common.h.size, DY) >= LEAST_TASKS;
}

static plan reduce_plan(const td_conv_reduce *reduce, td_conv_space *space)
{
    const td_conv_problem *problem = reduce->problem;
    plan p = { .common = td_depthwise_plan_make(problem, false, space), .reduce = reduce };
    p.replicas = count_replicas(p.common.channels);
    p.width = p.replicas * p.common.channels;
    p.column_blocks = td_divide_up(p.width, TD_DEPTHWISE_COLUMNS);
    int64_t taps = (int64_t)p.common.h.kernel * p.common.w.kernel;
    int64_t row_bytes = (p.common.h.kernel + 1) * problem->w.in * TD_DEPTHWISE_COLUMNS *
                        (int64_t)p.common.kernels->size;
    int64_t rows = row_bytes > 0 ? CACHE_BYTES / row_bytes : 1; /* pictures of no columns: none */
    p.pictures = (rows > 1 ? rows : 1) * p.replicas;
    int64_t vectors = p.common.w.size * td_divide_up(td_min64(p.pictures, problem->n), p.replicas);
    p.rows_at_once = vectors > 0 && vectors < LONG_SUM ? LONG_SUM / vectors : 1;
    int64_t wanted = td_divide_up(TD_DEPTHWISE_WANTED_TASKS, p.column_blocks);
    p.rows_per_piece =
        p.common.h.size > 0 ? td_divide_up(p.common.h.size, td_min64(wanted, p.common.h.size)) : 1;
    int64_t few = td_divide_up(LEAST_TASKS, p.column_blocks);
    int64_t least = td_min64(p.rows_at_once, td_divide_up(p.common.h.size, few));
    p.rows_per_piece = p.rows_per_piece < least ? least : p.rows_per_piece;
    p.patches = uses_patches(&p);
    p.rows_per_piece += p.patches ? p.rows_per_piece % DY : 0;
    p.pieces = td_divide_up(p.common.h.size, p.rows_per_piece);
    p.partial = td_conv_take(space, p.pieces * taps * p.common.channels * (int64_t)sizeof(double));
    return p;
}

/* The sum of one tap over a row of pixels, some pictures, and at most TD_DEPTHWISE_COLUMNS columns.
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

static void add_terms(tap_sum *s, const td_gemm_term *terms, int count, int64_t columns)
{
    union {
        float f32[TD_DEPTHWISE_COLUMNS];
        double f64[TD_DEPTHWISE_COLUMNS];
    } sum;
    const plan *p = s->plan;
    p->common.kernels->sums(&sum, terms, count, p->width, columns);
    if (p->common.problem->dtype == TD_F32) {
        for (int64_t i = 0; i < columns; i++) {
            s->total[i] += (double)sum.f32[i];
        }
    } else {
        for (int64_t i = 0; i < columns; i++) {
            s->total[i] += sum.f64[i];
        }
    }
}

static void flush(tap_sum *s)
{
    if (s->count > 0) {
        add_terms(s, s->terms, s->count, s->columns);
    }
    s->count = 0;
    s->rows = 0;
}

/* `pictures` pictures, beside each other in both. */
static void add_run(tap_sum *s, const char *x, const char *dy, int64_t pictures)
{
    const plan *p = s->plan;
    int64_t size = (int64_t)p->common.kernels->size, row_bytes = p->width * size;
    int64_t rows = pictures / p->replicas, rest = pictures % p->replicas * p->common.channels;
    x += s->column * size;
    dy += s->column * size;
    for (int64_t row = 0; row < rows;) {
        int64_t k = td_min64(SHORT_SUM - s->rows, rows - row);
        s->terms[s->count++] = (td_gemm_term){ x + row * row_bytes, dy + row * row_bytes, k };
        s->rows += k;
        row += k;
        if (s->rows == SHORT_SUM || s->count == MAX_TERMS) {
            flush(s);
        }
    }
    if (rest > s->column) {
        td_gemm_term last = { x + rows * row_bytes, dy + rows * row_bytes, 1 };
        add_terms(s, &last, 1, td_min64(s->columns, rest - s->column));
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
        int64_t first = s->image * p->common.channels;
        int64_t x = h * problem->x.row + w * problem->x.column + first;
        int64_t dy = row * problem->y.row + q * problem->y.column + first;
        add_run(s, (const char *)p->reduce->x + x * size, (const char *)p->reduce->dy + dy * size,
                pixels * s->images);
        q += pixels - 1;
    }
}

/* Adds a tap's sums of columns to those of channels. */
static void add_columns(const plan *p, double *to, const double *total, int64_t column,
                        int64_t columns)
{
    for (int64_t i = 0, c = column, run; i < columns; i += run, c = 0) { /* replica by replica */
        run = td_min64(columns - i, p->common.channels - c);
        for (int64_t k = 0; k < run; k++) {
            to[c + k] += total[i + k];
        }
    }
}

/* Adds the sums of all taps over rows [row, end) of pixels to the piece's. */
static void add_taps(const plan *p, double *to, int64_t row, int64_t end, int64_t column,
                     int64_t image)
{
    tap_sum s;
    s.plan = p;
    s.column = column;
    s.columns = td_min64(TD_DEPTHWISE_COLUMNS, p->width - column);
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
            add_columns(p, to, s.total, column, s.columns);
        }
    }
}

/* ---- patch by patch ----
 * Tap by tap, a vector of x is loaded for each tap, and lies a whole pixel of all pictures from the
 * last one: often a multiple of some KiB, so that all fall into a few places of the caches. With
 * 3x3 taps the pictures of a patch of pixels follow each other instead, some channels apart, and a
 * vector is loaded once for all taps. */

/* Where a pixel of x or dy lies, or nowhere. */
static const void *pixel_at(const void *base, const td_conv_strides *at, int64_t h, int64_t end_h,
                            int64_t w, int64_t end_w, int64_t offset, int64_t size)
{
    bool there = h >= 0 && h < end_h && w >= 0 && w < end_w;
    return there ? (const char *)base + (h * at->row + w * at->column + offset) * size : nowhere;
}

/* The patch whose first pixel of dy is (row, q); `offset`: of the first picture and column. */
static void find_pixels(td_depthwise_patch *patch, const plan *p, int64_t row, int64_t end,
                        int64_t q, int64_t offset)
{
    const td_conv_problem *problem = p->common.problem;
    const td_conv_axis *h = &problem->h, *w = &problem->w;
    int64_t size = (int64_t)p->common.kernels->size;
    int64_t side = (DY - 1) * patch->stride + TAPS;
    for (int64_t i = 0; i < side; i++) {
        for (int64_t j = 0; j < side; j++) {
            patch->x[i][j] = pixel_at(p->reduce->x, &problem->x, row * h->stride - h->pad + i,
                                      h->in, q * w->stride - w->pad + j, w->in, offset, size);
        }
    }
    for (int64_t i = 0; i < DY; i++) {
        for (int64_t j = 0; j < DY; j++) {
            patch->dy[i][j] =
                pixel_at(p->reduce->dy, &problem->y, row + i, end, q + j, w->out, offset, size);
        }
    }
}

/* Adds the sums of all taps to the totals, and clears them. A tap that meets no pixel has met
 * `nowhere` alone, which gives NaN where dy is not finite: nothing is added for it. */
static void add_patch_sums(const plan *p, double *total, int64_t columns, float *sum)
{
    const td_depthwise_plan *c = &p->common;
    for (int64_t tap = 0; tap < TAPS * TAPS; tap++) {
        bool alive = c->h.rank[tap / TAPS] >= 0 && c->w.rank[tap % TAPS] >= 0;
        for (int64_t i = 0; alive && i < columns; i++) {
            total[tap * c->channels + i] += (double)sum[tap * TD_DEPTHWISE_COLUMNS + i];
        }
    }
    memset(sum, 0, TAPS * TAPS * TD_DEPTHWISE_COLUMNS * sizeof *sum);
}

/* Rows [first, end) of pixels, all taps and pictures of some columns. */
static void add_patches(const plan *p, double *total, int64_t first, int64_t end, int64_t column,
                        int64_t columns)
{
    const td_depthwise_plan *c = &p->common;
    const td_conv_problem *problem = c->problem;
    int64_t fit = PICTURES_BYTES / (c->channels * (int64_t)c->kernels->size);
    td_depthwise_patch patch = { .stride = problem->w.stride, .step = c->channels };
    patch.columns = columns;
    float sum[TAPS * TAPS * TD_DEPTHWISE_COLUMNS] = { 0 };
    for (int64_t image = 0; image < problem->n; image += patch.pictures) {
        patch.pictures = td_min64(td_min64(fit, MOST_PICTURES), problem->n - image);
        int64_t added = 0;
        for (int64_t row = first; row < end; row += DY) {
            for (int64_t q = 0; q < problem->w.out; q += DY) {
                find_pixels(&patch, p, row, end, q, image * c->channels + column);
                c->kernels->patch(sum, &patch);
                added += DY * DY * patch.pictures;
                if (added >= LONG_SUM) {
                    add_patch_sums(p, total, columns, sum);
                    added = 0;
                }
            }
        }
        add_patch_sums(p, total, columns, sum);
    }
}

/* Some columns, some rows of pixels, all taps. */
static void reduce_task(void *ctx, int64_t task)
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
    if (p->patches) {
        add_patches(p, to + column, piece * p->rows_per_piece, end, column, columns);
        return;
    }
    for (int64_t image = 0; image < p->common.problem->n; image += p->pictures) {
        for (int64_t row = piece * p->rows_per_piece; row < end; row += p->rows_at_once) {
            add_taps(p, to, row, td_min64(end, row + p->rows_at_once), column, image);
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

int64_t td_conv_depthwise_reduce_workspace(const td_conv_reduce *reduce)
{
    td_conv_space space = { 0 };
    reduce_plan(reduce, &space);
    return space.used;
}

void td_conv_depthwise_reduce_run(td_pool *pool, const td_conv_reduce *reduce, void *workspace)
{
    td_conv_space space = { .base = workspace };
    plan p = reduce_plan(reduce, &space);
    td_pool_run(td_depthwise_pool(pool, &p.common), p.column_blocks * p.pieces, reduce_task, &p);
    add_pieces(&p);
}
