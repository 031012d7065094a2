/*
 * Depthwise convolutions: backward-weights. With the usual kernels all taps of some rows of the
 * kernel at once, which then share what they read; otherwise tap by tap.
 */
#include "tensor/cpu/conv_depthwise.h"

#include <string.h>

enum {
    SHORT_SUM = 128, /* rows that are added in the element type before they go into a double */
    LONG_SUM = 512,  /* rows of a tap, at least, before the doubles go to memory; at most, where
                        all taps of a row of the kernel add in the element type */
    LEAST_TASKS = 4, /* if there are so many rows of pixels */
    MAX_TERMS = 64,
    CACHE_BYTES = 1 << 20, /* rows of pixels that the taps read again */
};

typedef struct plan {
    td_depthwise_plan common;
    const td_conv_reduce *reduce;
    int64_t column_blocks;          /* of the width, TD_DEPTHWISE_COLUMNS each */
    int64_t pieces, rows_per_piece; /* of the rows of pixels */
    int64_t pictures;               /* at a time */
    int64_t rows_at_once;           /* of pixels: short ones make up a sum together */
    int together;                   /* rows of the kernel whose taps are computed together, or 0 */
    bool patches;                   /* or all, patch by patch */
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

/* How many rows of the kernel are taken together; 0: it goes tap by tap. */
static int rows_of_taps(const td_depthwise_plan *p)
{
    int taps = p->problem->w.kernel;
    bool fits = p->problem->w.out > 0 && p->problem->w.out <= LONG_SUM;
    bool made = taps >= 2 && taps <= p->problem->w.in && taps <= TD_DEPTHWISE_BESIDE &&
                (p->kernels->window_widths >> taps & 1);
    if (!fits || !made || p->problem->h.kernel == 0) {
        return 0;
    }
    int most = p->kernels->window_taps / taps;
    most = most < TD_DEPTHWISE_WINDOW_ROWS ? most : TD_DEPTHWISE_WINDOW_ROWS;
    int64_t calls = td_divide_up(p->problem->h.kernel, most < 1 ? 1 : most);
    return (int)td_divide_up(p->problem->h.kernel, calls);
}

static plan reduce_plan(const td_conv_reduce *reduce, td_conv_space *space)
{
    const td_conv_problem *problem = reduce->problem;
    plan p = { .common = td_depthwise_plan_make(problem, false, space), .reduce = reduce };
    p.common.replicas = count_replicas(p.common.channels);
    p.common.width = p.common.replicas * p.common.channels;
    p.column_blocks = td_divide_up(p.common.width, TD_DEPTHWISE_COLUMNS);
    int64_t taps = (int64_t)p.common.h.kernel * p.common.w.kernel;
    int64_t row_bytes = (p.common.h.kernel + 1) * problem->w.in * TD_DEPTHWISE_COLUMNS *
                        (int64_t)p.common.kernels->size;
    int64_t rows = row_bytes > 0 ? CACHE_BYTES / row_bytes : 1; /* pictures of no columns: none */
    p.pictures = (rows > 1 ? rows : 1) * p.common.replicas;
    p.together = rows_of_taps(&p.common);
    int64_t vectors =
        p.common.w.size * td_divide_up(td_min64(p.pictures, problem->n), p.common.replicas);
    p.rows_at_once = vectors > 0 && vectors < LONG_SUM ? LONG_SUM / vectors : 1;
    int64_t wanted = td_divide_up(TD_DEPTHWISE_WANTED_TASKS, p.column_blocks);
    p.rows_per_piece =
        p.common.h.size > 0 ? td_divide_up(p.common.h.size, td_min64(wanted, p.common.h.size)) : 1;
    int64_t few = td_divide_up(LEAST_TASKS, p.column_blocks);
    int64_t least = td_min64(p.rows_at_once, td_divide_up(p.common.h.size, few));
    p.rows_per_piece = p.rows_per_piece < least ? least : p.rows_per_piece;
    p.patches =
        td_depthwise_patches_win(&p.common) &&
        p.column_blocks * td_divide_up(p.common.h.size, TD_DEPTHWISE_PATCH_DY) >= LEAST_TASKS;
    p.rows_per_piece += p.patches ? p.rows_per_piece % TD_DEPTHWISE_PATCH_DY : 0;
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
    p->common.kernels->sums(&sum, terms, count, p->common.width, columns);
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
    int64_t size = (int64_t)p->common.kernels->size, row_bytes = p->common.width * size;
    int64_t rows = pictures / p->common.replicas,
            rest = pictures % p->common.replicas * p->common.channels;
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
    s.columns = td_min64(TD_DEPTHWISE_COLUMNS, p->common.width - column);
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

/* ---- the taps of some rows of the kernel together ---- */

/* Rows kh, kh + 1, ... of the kernel, over some rows of pixels of some pictures. */
typedef struct window_sum {
    const plan *plan;
    int kh, count; /* rows of the kernel; `window` has those of them that are met */
    int first;     /* of those */
    td_gemm_term terms[MAX_TERMS];
    td_depthwise_window window;
    double total[TD_DEPTHWISE_WINDOW_ROWS * TD_DEPTHWISE_BESIDE * TD_DEPTHWISE_COLUMNS];
} window_sum;

static void flush_window(window_sum *s)
{
    float sum[TD_DEPTHWISE_WINDOW_ROWS * TD_DEPTHWISE_BESIDE * TD_DEPTHWISE_COLUMNS];
    td_depthwise_window *w = &s->window;
    if (w->count == 0) {
        return;
    }
    s->plan->common.kernels->window(sum, w);
    w->count = 0;
    for (int64_t tap = 0; tap < (int64_t)w->taps_h * w->taps_w; tap++) {
        double *total = s->total + ((int64_t)s->first * w->taps_w + tap) * TD_DEPTHWISE_COLUMNS;
        for (int64_t i = 0; i < w->columns; i++) {
            total[i] += (double)sum[tap * TD_DEPTHWISE_COLUMNS + i];
        }
    }
}

/* The rows of the kernel that a row of pixels meets, which are next to each other. */
static void choose_taps(window_sum *s, int64_t row)
{
    const td_conv_taps *h = &s->plan->common.h;
    const int32_t *source = h->source + row * h->kernel + s->kh;
    int first = 0, end = s->count;
    while (first < end && source[first] < 0) {
        first++;
    }
    while (end > first && source[end - 1] < 0) {
        end--;
    }
    if (first != s->first || end - first != s->window.taps_h) {
        flush_window(s);
        s->first = first;
        s->window.taps_h = end - first;
    }
}

/* Adds rows [row, end) of pixels: of pictures [image, last), `replicas` of them at a time,
 * `columns` from `column` on. */
static void add_pictures(window_sum *s, int64_t row, int64_t end, int64_t image, int64_t last,
                         int64_t column, int64_t columns)
{
    const plan *p = s->plan;
    const td_conv_problem *problem = p->common.problem;
    int64_t size = (int64_t)p->common.kernels->size,
            most = td_min64(MAX_TERMS, LONG_SUM / p->common.w.size);
    s->window.columns = columns;
    for (; columns > 0 && image < last && row < end; row++) {
        choose_taps(s, row);
        if (s->window.taps_h == 0) {
            continue;
        }
        int64_t h = p->common.h.source[row * p->common.h.kernel + s->kh + s->first];
        for (int64_t n = image; n < last; n += p->common.replicas) {
            int64_t x = h * problem->x.row + n * p->common.channels + column;
            int64_t dy = row * problem->y.row + n * p->common.channels + column;
            s->terms[s->window.count++] =
                (td_gemm_term){ (const char *)p->reduce->x + x * size,
                                (const char *)p->reduce->dy + dy * size, 0 };
            if (s->window.count == most) {
                flush_window(s);
            }
        }
    }
    flush_window(s);
}

/* As add_taps, which does it tap by tap. */
static void add_windows(const plan *p, double *to, int64_t row, int64_t end, int64_t column,
                        int64_t image)
{
    const td_conv_problem *problem = p->common.problem;
    int64_t images = td_min64(p->pictures, problem->n - image);
    int64_t columns = td_min64(TD_DEPTHWISE_COLUMNS, p->common.width - column);
    int64_t whole = image + images / p->common.replicas * p->common.replicas;
    int64_t rest = (image + images - whole) * p->common.channels - column; /* no whole replicas */
    window_sum s;
    s.plan = p;
    s.window = (td_depthwise_window){ .terms = s.terms,
                                      .taps_w = p->common.w.kernel,
                                      .x_row = problem->h.dilation * problem->x.row,
                                      .stride = problem->w.stride,
                                      .pad = problem->w.pad,
                                      .dilation = problem->w.dilation,
                                      .in = problem->w.in,
                                      .out = problem->w.out,
                                      .x_step = problem->x.column,
                                      .dy_step = problem->y.column };
    for (s.kh = 0; s.kh < p->common.h.kernel; s.kh += s.count) {
        s.count = p->together < p->common.h.kernel - s.kh ? p->together : p->common.h.kernel - s.kh;
        s.first = 0;
        int64_t taps = (int64_t)s.count * p->common.w.kernel;
        memset(s.total, 0, (size_t)(taps * TD_DEPTHWISE_COLUMNS) * sizeof *s.total);
        add_pictures(&s, row, end, image, whole, column, columns);
        add_pictures(&s, row, end, whole, image + images, column, td_min64(columns, rest));
        for (int64_t tap = 0; tap < taps; tap++, to += p->common.channels) {
            add_columns(p, to, s.total + tap * TD_DEPTHWISE_COLUMNS, column, columns);
        }
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
        td_depthwise_sum_patches(&(td_depthwise_patches){ .plan = &p->common,
                                                          .x = p->reduce->x,
                                                          .dy = p->reduce->dy,
                                                          .row = piece * p->rows_per_piece,
                                                          .end = end,
                                                          .column = column,
                                                          .columns = columns },
                                 to + column);
        return;
    }
    for (int64_t image = 0; image < p->common.problem->n; image += p->pictures) {
        for (int64_t row = piece * p->rows_per_piece; row < end; row += p->rows_at_once) {
            (p->together > 0 ? add_windows : add_taps)(
                p, to, row, td_min64(end, row + p->rows_at_once), column, image);
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
