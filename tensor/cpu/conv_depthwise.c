/*
 * Depthwise convolutions: one input and one output channel in each group.
 *
 * In HWNC the pictures at a pixel, and at stride 1 the pixels beside each other, are one long array
 * in which the channels come round again and again. Few channels are taken several times over
 * (`replicas`), with as many copies of the weights, so that vectors are full.
 */
#include "tensor/cpu/conv_internal.h"
#include "tensor/cpu/depthwise_kernels.h"

#include <string.h>

enum {
    WIDE = 64,             /* channels that fill vectors without replicas */
    BLOCK_ELEMENTS = 4096, /* of a result: what several taps read stays in the cache */
    MAX_TAPS = 64,         /* in a call */
    SHORT_SUM = 128, /* rows that are added in the element type before they go into a double */
    MAX_TERMS = 64,
    WANTED_TASKS = 32,
    LOOP_COST = 4, /* of a multiply-add here, in those of a product of matrices */
};

/* Pictures [first, first + count) of the run of pixels that begins at `column`. */
typedef struct run_block {
    int64_t column, first, count;
} run_block;

typedef struct plan {
    const td_conv_problem *problem;
    const td_depthwise_kernels *kernels;
    td_conv_taps h, w;
    int64_t channels, replicas;
    int64_t width; /* replicas * channels */

    /* Forward and backward-data. */
    const td_conv_apply *apply;
    td_conv_strides from, to;
    char *weights; /* [tap][width], or NULL: they serve as they are */
    char *bias;    /* [width], or NULL */
    run_block *blocks;
    int64_t block_count;

    /* Backward-weights. */
    const td_conv_reduce *reduce;
    int64_t column_blocks;          /* of the width, TD_DEPTHWISE_COLUMNS each */
    int64_t pieces, rows_per_piece; /* of the rows of pixels */
    double *partial;                /* [piece][tap][channel] */
} plan;

static plan common_plan(const td_conv_problem *problem, bool backward, td_conv_space *space)
{
    plan p = { .problem = problem,
               .kernels = td_depthwise_kernels_for(problem->dtype),
               .channels = problem->oc_all };
    p.h = td_conv_taps_make(&problem->h, backward, space);
    p.w = td_conv_taps_make(&problem->w, backward, space);
    p.replicas = p.channels < WIDE ? WIDE / p.channels : 1;
    p.width = p.replicas * p.channels;
    return p;
}

/* ---- forward and backward-data ---- */

static void cut_run(plan *p, int64_t column, int64_t pictures)
{
    int64_t unit = td_divide_up(BLOCK_ELEMENTS, p->width) * p->replicas;
    for (int64_t first = 0; first < pictures; first += unit) {
        p->blocks[p->block_count++] =
            (run_block){ column, first, td_min64(unit, pictures - first) };
    }
}

static plan apply_plan(const td_conv_apply *apply, td_conv_space *space)
{
    const td_conv_problem *problem = apply->problem;
    bool back = apply->backward;
    plan p = common_plan(problem, back, space);
    int64_t size = (int64_t)p.kernels->size;
    p.apply = apply;
    p.from = back ? problem->y : problem->x;
    p.to = back ? problem->x : problem->y;
    int64_t unit = td_divide_up(BLOCK_ELEMENTS, p.width) * p.replicas;
    p.blocks =
        td_conv_take(space, p.w.size * td_divide_up(problem->n, unit) * (int64_t)sizeof *p.blocks);
    if (p.replicas > 1) {
        p.weights = td_conv_take(space, (int64_t)p.h.kernel * p.w.kernel * p.width * size);
        p.bias = td_conv_take(space, p.width * size);
    }
    int step = back ? 1 : problem->w.stride;
    for (int64_t begin = 0, q = 0; space->base && q < p.w.size; q++) {
        if (q + 1 == p.w.size || step * p.from.column != p.to.column ||
            !td_conv_taps_follow(&p.w, q, 1, step)) {
            cut_run(&p, begin, (q + 1 - begin) * problem->n);
            begin = q + 1;
        }
    }
    return p;
}

static void replicate(const plan *p, char *to, const char *from)
{
    size_t bytes = (size_t)p->channels * p->kernels->size;
    for (int64_t i = 0; i < p->replicas; i++) {
        memcpy(to + (size_t)i * bytes, from, bytes);
    }
}

/* All pictures of a block, by the taps that have been found. */
static void apply_taps(const plan *p, td_depthwise_block *b, const run_block *block, char *y)
{
    b->y = y;
    b->rows = block->count / p->replicas;
    b->columns = p->width;
    p->kernels->apply(b);
    int64_t rest = block->count % p->replicas;
    if (rest > 0) {
        td_depthwise_tap shifted[MAX_TAPS];
        td_depthwise_block last = *b;
        int64_t done = b->rows * p->width * (int64_t)p->kernels->size;
        for (int i = 0; i < b->count; i++) {
            shifted[i] = (td_depthwise_tap){ (const char *)b->taps[i].x + done, b->taps[i].w };
        }
        last.taps = shifted;
        last.y = y + done;
        last.rows = 1;
        last.columns = rest * p->channels;
        p->kernels->apply(&last);
    }
    b->count = 0;
    b->bias = NULL;
    b->accumulate = true;
}

static void apply_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    const td_conv_apply *a = p->apply;
    int64_t size = (int64_t)p->kernels->size;
    const run_block *block = &p->blocks[task % p->block_count];
    int64_t row = task / p->block_count;
    const int32_t *source_h = p->h.source + row * p->h.kernel;
    const int32_t *source_w = p->w.source + block->column * p->w.kernel;
    const char *weights = p->weights ? p->weights : a->weights;
    td_depthwise_tap taps[MAX_TAPS];
    td_depthwise_block b = { .taps = taps,
                             .step = p->width,
                             .bias = a->bias && p->bias ? p->bias : a->bias,
                             .accumulate = a->accumulate };
    int64_t first = block->first * p->channels;
    char *y = (char *)a->result + (row * p->to.row + block->column * p->to.column + first) * size;
    for (int tap = 0; tap < p->h.kernel * p->w.kernel; tap++) {
        int32_t h = source_h[tap / p->w.kernel], w = source_w[tap % p->w.kernel];
        if (h < 0 || w < 0) {
            continue;
        }
        if (b.count == MAX_TAPS) {
            apply_taps(p, &b, block, y);
        }
        int64_t from = h * p->from.row + w * p->from.column + first;
        taps[b.count++] = (td_depthwise_tap){ (const char *)a->source + from * size,
                                              weights + tap * p->width * size };
    }
    apply_taps(p, &b, block, y); /* even without any tap: every pixel is written */
}

int64_t td_conv_depthwise_apply_workspace(const td_conv_apply *apply)
{
    td_conv_space space = { 0 };
    apply_plan(apply, &space);
    return space.used;
}

void td_conv_depthwise_apply_run(td_pool *pool, const td_conv_apply *apply, void *workspace)
{
    td_conv_space space = { .base = workspace };
    plan p = apply_plan(apply, &space);
    int64_t size = (int64_t)p.kernels->size;
    for (int64_t tap = 0; p.weights && tap < (int64_t)p.h.kernel * p.w.kernel; tap++) {
        replicate(&p, p.weights + tap * p.width * size,
                  (const char *)apply->weights + tap * p.channels * size);
    }
    if (p.bias && apply->bias) {
        replicate(&p, p.bias, apply->bias);
    }
    double work = (double)(p.h.size * p.w.size * p.channels) * (double)apply->problem->n *
                  (double)(p.h.alive * p.w.alive);
    td_pool_run(work * LOOP_COST < TD_GEMM_SERIAL_WORK ? NULL : pool, p.h.size * p.block_count,
                apply_task, &p);
}

/* ---- backward-weights ---- */

static plan reduce_plan(const td_conv_reduce *reduce, td_conv_space *space)
{
    const td_conv_problem *problem = reduce->problem;
    plan p = common_plan(problem, false, space);
    p.reduce = reduce;
    /* Replicas are added up in the end, by whoever has all of them. */
    p.column_blocks = p.replicas > 1 ? 1 : td_divide_up(p.width, TD_DEPTHWISE_COLUMNS);
    int64_t taps = (int64_t)p.h.kernel * p.w.kernel;
    int64_t wanted = td_divide_up(WANTED_TASKS, taps * p.column_blocks);
    p.rows_per_piece = p.h.size > 0 ? td_divide_up(p.h.size, td_min64(wanted, p.h.size)) : 1;
    p.pieces = td_divide_up(p.h.size, p.rows_per_piece);
    p.partial = td_conv_take(space, p.pieces * taps * p.channels * (int64_t)sizeof(double));
    return p;
}

/* The sum of one tap over some rows of pixels, for at most TD_DEPTHWISE_COLUMNS columns. */
typedef struct tap_sum {
    const plan *plan;
    int kh, kw;
    int64_t column, columns;
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
    p->kernels->sums(&sum, terms, count, p->width, columns);
    for (int64_t i = 0; i < columns; i++) {
        s->total[i] += p->problem->dtype == TD_F32 ? (double)sum.f32[i] : sum.f64[i];
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
    int64_t size = (int64_t)p->kernels->size, row_bytes = p->width * size;
    int64_t rows = pictures / p->replicas, rest = pictures % p->replicas * p->channels;
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

/* The pixels of a row that meet the tap: at stride 1 one run, otherwise one by one. */
static void add_pixel_row(tap_sum *s, int64_t row)
{
    const plan *p = s->plan;
    const td_conv_problem *problem = p->problem;
    int64_t size = (int64_t)p->kernels->size;
    int32_t h = p->h.source[row * p->h.kernel + s->kh];
    for (int64_t q = 0; h >= 0 && q < p->w.size; q++) {
        int32_t w = p->w.source[q * p->w.kernel + s->kw];
        if (w < 0) {
            continue;
        }
        int64_t pixels = 1;
        while (problem->w.stride == 1 && q + pixels < p->w.size &&
               p->w.source[(q + pixels) * p->w.kernel + s->kw] >= 0) {
            pixels++;
        }
        int64_t x = h * problem->x.row + w * problem->x.column;
        int64_t dy = row * problem->y.row + q * problem->y.column;
        add_run(s, (const char *)p->reduce->x + x * size, (const char *)p->reduce->dy + dy * size,
                pixels * problem->n);
        q += pixels - 1;
    }
}

static void reduce_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    int64_t taps = (int64_t)p->h.kernel * p->w.kernel;
    int64_t piece = task % p->pieces, block = task / p->pieces % p->column_blocks;
    int64_t tap = task / p->pieces / p->column_blocks;
    int64_t begin = block * TD_DEPTHWISE_COLUMNS;
    int64_t end =
        p->column_blocks == 1 ? p->width : td_min64(begin + TD_DEPTHWISE_COLUMNS, p->width);
    int64_t last_row = td_min64((piece + 1) * p->rows_per_piece, p->h.size);
    double *to = p->partial + (piece * taps + tap) * p->channels;
    for (int64_t c = begin; c < td_min64(end, p->channels); c++) {
        to[c] = 0;
    }
    for (int64_t column = begin; column < end; column += TD_DEPTHWISE_COLUMNS) {
        tap_sum s = { .plan = p,
                      .kh = (int)(tap / p->w.kernel),
                      .kw = (int)(tap % p->w.kernel),
                      .column = column,
                      .columns = td_min64(TD_DEPTHWISE_COLUMNS, end - column) };
        for (int64_t row = piece * p->rows_per_piece; row < last_row; row++) {
            add_pixel_row(&s, row);
        }
        flush(&s);
        for (int64_t i = 0; i < s.columns; i++) {
            to[(column + i) % p->channels] += s.total[i];
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
    int64_t taps = (int64_t)p.h.kernel * p.w.kernel;
    double work = (double)(p.h.size * p.w.size * p.channels) * (double)reduce->problem->n *
                  (double)(p.h.alive * p.w.alive);
    td_pool_run(work * LOOP_COST < TD_GEMM_SERIAL_WORK ? NULL : pool,
                taps * p.column_blocks * p.pieces, reduce_task, &p);
    td_conv_add_pieces(reduce->problem->dtype, reduce->dw, p.partial, taps * p.channels, p.pieces,
                       reduce->accumulate);
}
