/*
 * Depthwise convolutions: one input and one output channel in each group.
 *
 * In HWNC the pictures at a pixel, and at stride 1 the pixels beside each other, are one long array
 * in which the channels come round again and again. Few channels are taken several times over
 * (`replicas`), with as many copies of the weights, so that vectors are full. Pixels of a row that
 * meet the same taps are computed side by side, since their taps read the same pixels.
 */
#include "tensor/cpu/conv_internal.h"
#include "tensor/cpu/depthwise_kernels.h"

#include <string.h>

enum {
    LANES = 16,                          /* of the widest vector */
    APPLY_WIDTH = 256,                   /* elements that replicas may make, */
    REDUCE_WIDTH = TD_DEPTHWISE_COLUMNS, /* and in backward-weights */
    WEIGHT_BYTES = 16384,                /* of the replicas of all taps: half of the L1 cache */
    JOINED_WIDTH = 64,                   /* the same of joined pixels: a run of them is not long */
    JOIN_ELEMENTS = 64,  /* at a pixel: with no more than these, pixels are joined to one array */
    RUN_ELEMENTS = 1024, /* of joined pixels in a call: what taps read again is in the L1 cache */
    MAX_TAPS = 64,       /* in a call */
    SHORT_SUM = 128,     /* rows that are added in the element type before they go into a double */
    LONG_SUM = 512,      /* rows of a tap, at least, before the doubles go to memory */
    MAX_TERMS = 64,
    WANTED_TASKS = 32,
    CACHE_BYTES = 1 << 20, /* rows of pixels that the taps of backward-weights read again */
    LOOP_COST = 4,         /* of a multiply-add here, in those of a product of matrices */
};

/* `count` pixels from `column` on that meet the same taps. Joined: pictures [first, first + count)
 * of the run that begins there. */
typedef struct run_block {
    int64_t column, first, count;
} run_block;

typedef struct plan {
    const td_conv_problem *problem;
    const td_depthwise_kernels *kernels;
    td_conv_taps h, w;
    int64_t channels, replicas;
    int64_t width;         /* replicas * channels */
    int64_t column_blocks; /* of the width, TD_DEPTHWISE_COLUMNS each */

    /* Forward and backward-data. */
    const td_conv_apply *apply;
    td_conv_strides from, to;
    char *weights; /* [tap][width], or NULL: they serve as they are */
    char *bias;    /* [width], or NULL */
    bool joined;
    int step;          /* from source pixel to source pixel in a run */
    run_block *blocks; /* of a row of pixels */
    int64_t block_count;
    int64_t chunks; /* of the pictures and channels at a pixel, `width` each; 1 where joined */

    /* Backward-weights. */
    const td_conv_reduce *reduce;
    int64_t pieces, rows_per_piece; /* of the rows of pixels */
    int64_t pictures;               /* at a time */
    int64_t rows_at_once;           /* of pixels: short ones make up a sum together */
    double *partial;                /* [piece][tap][channel] */
} plan;

/* So many copies of the channels, `most` elements at most, as leave the fewest lanes of vectors
 * empty; of those the largest number. */
static int64_t count_replicas(int64_t channels, int64_t most)
{
    int64_t best = 1, lanes = td_divide_up(channels, LANES) * LANES;
    for (int64_t r = 2; r * channels <= most; r++) {
        int64_t padded = td_divide_up(r * channels, LANES) * LANES;
        if (padded * best <= lanes * r) {
            best = r;
            lanes = padded;
        }
    }
    return best;
}

static plan common_plan(const td_conv_problem *problem, bool backward, int64_t most,
                        td_conv_space *space)
{
    plan p = { .problem = problem,
               .kernels = td_depthwise_kernels_for(problem->dtype),
               .channels = problem->oc_all };
    p.h = td_conv_taps_make(&problem->h, backward, space);
    p.w = td_conv_taps_make(&problem->w, backward, space);
    p.replicas = count_replicas(p.channels, most);
    p.width = p.replicas * p.channels;
    p.column_blocks = td_divide_up(p.width, TD_DEPTHWISE_COLUMNS);
    return p;
}

/* ---- forward and backward-data ---- */

static int64_t run_pictures(const plan *p)
{
    return td_divide_up(RUN_ELEMENTS, p->width) * p->replicas;
}

static void add_run_blocks(plan *p, int64_t column, int64_t pixels)
{
    if (!p->joined) {
        p->blocks[p->block_count++] = (run_block){ column, 0, pixels };
        return;
    }
    int64_t unit = run_pictures(p), pictures = pixels * p->problem->n;
    for (int64_t first = 0; first < pictures; first += unit) {
        p->blocks[p->block_count++] =
            (run_block){ column, first, td_min64(unit, pictures - first) };
    }
}

static plan apply_plan(const td_conv_apply *apply, td_conv_space *space)
{
    const td_conv_problem *problem = apply->problem;
    bool back = apply->backward;
    int64_t size = (int64_t)td_dtype_size(problem->dtype), elements = problem->n * problem->oc_all;
    int64_t fit = WEIGHT_BYTES / size / problem->h.kernel / problem->w.kernel;
    bool joined = elements <= JOIN_ELEMENTS && (back || problem->w.stride == 1);
    int64_t width = td_min64(APPLY_WIDTH, td_min64(joined ? JOINED_WIDTH : elements, fit));
    plan p = common_plan(problem, back, width, space);
    p.apply = apply;
    p.from = back ? problem->y : problem->x;
    p.to = back ? problem->x : problem->y;
    p.step = back ? 1 : problem->w.stride;
    if (p.replicas > 1) {
        p.weights = td_conv_take(space, (int64_t)p.h.kernel * p.w.kernel * p.width * size);
        p.bias = td_conv_take(space, p.width * size);
    }
    p.joined = joined;
    p.chunks = p.joined ? 1 : td_divide_up(elements, p.width);
    int64_t most = p.w.size * td_divide_up(problem->n, run_pictures(&p));
    p.blocks = td_conv_take(space, most * (int64_t)sizeof *p.blocks);
    for (int64_t begin = 0, q = 0; space->base && q < p.w.size; q++) {
        if (!td_conv_taps_follow(&p.w, q, 1, p.step)) {
            add_run_blocks(&p, begin, q + 1 - begin);
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

/* A call in the making. Joined, its rows are `replicas` of pictures, and `rest` are left over. */
typedef struct pending {
    td_depthwise_tap taps[MAX_TAPS];
    td_depthwise_block block;
    int64_t rest;
} pending;

/* The pictures that make no whole row. */
static void apply_rest(const plan *p, const pending *c)
{
    td_depthwise_tap taps[MAX_TAPS];
    td_depthwise_block last = c->block;
    int64_t done = c->block.rows * p->width * (int64_t)p->kernels->size;
    for (int i = 0; i < last.count; i++) {
        taps[i] = (td_depthwise_tap){ (const char *)c->taps[i].x + done, c->taps[i].w };
    }
    last.taps = taps;
    last.y = (char *)last.y + done;
    last.rows = 1;
    last.columns = c->rest * p->channels;
    p->kernels->apply(&last);
}

static void apply_taps(const plan *p, pending *c)
{
    p->kernels->apply(&c->block);
    if (c->rest > 0) {
        apply_rest(p, c);
    }
    c->block.count = 0;
    c->block.bias = NULL;
    c->block.accumulate = true;
}

/* How many taps of a row of the kernel follow each other as pixels of a run do; 0: they do not. */
static int taps_beside(const plan *p, const int32_t *source_w)
{
    int met = 0;
    for (int kw = 0; kw < p->w.kernel; kw++) {
        met += source_w[kw] >= 0;
    }
    bool follow = !p->joined && p->step == 1 && p->problem->w.dilation == 1 &&
                  (!p->apply->backward || p->problem->w.stride == 1) && p->w.kernel <= MAX_TAPS;
    return follow ? met : 0;
}

/* A run of pixels in a row; from `first` on of the pictures and channels there. */
static void apply_run(const plan *p, int64_t row, const run_block *run, int64_t first)
{
    const td_conv_apply *a = p->apply;
    int64_t size = (int64_t)p->kernels->size;
    const int32_t *source_h = p->h.source + row * p->h.kernel;
    const int32_t *source_w = p->w.source + run->column * p->w.kernel;
    const char *weights = p->weights ? p->weights : a->weights;
    pending c = { .rest = p->joined ? run->count % p->replicas : 0 };
    c.block = (td_depthwise_block){
        .taps = c.taps,
        .y = (char *)a->result + (row * p->to.row + run->column * p->to.column + first) * size,
        .x_step = p->joined ? p->width : p->step * p->from.column,
        .y_step = p->joined ? p->width : p->to.column,
        .rows = p->joined ? run->count / p->replicas : run->count,
        .columns = p->joined ? p->width : td_min64(p->width, p->to.column - first),
        .bias = a->bias && p->bias ? p->bias : a->bias,
        .accumulate = a->accumulate,
    };
    c.block.beside = taps_beside(p, source_w);
    for (int kh = 0; kh < p->h.kernel; kh++) {
        if (source_h[kh] < 0) {
            continue;
        }
        if (c.block.count + p->w.kernel > MAX_TAPS) {
            apply_taps(p, &c);
        }
        for (int i = 0; i < p->w.kernel; i++) {
            /* From left to right in x: backward, the last tap comes first. */
            int kw = a->backward ? p->w.kernel - 1 - i : i;
            if (source_w[kw] < 0) {
                continue;
            }
            if (c.block.count == MAX_TAPS) {
                apply_taps(p, &c);
            }
            int64_t from = source_h[kh] * p->from.row + source_w[kw] * p->from.column + first;
            int64_t tap = (int64_t)kh * p->w.kernel + kw;
            c.taps[c.block.count++] = (td_depthwise_tap){ (const char *)a->source + from * size,
                                                          weights + tap * p->width * size };
        }
    }
    apply_taps(p, &c); /* even without any tap: every pixel is written */
}

static void apply_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    int64_t row = task % p->h.size, chunk = task / p->h.size;
    for (int64_t i = 0; i < p->block_count; i++) {
        const run_block *run = &p->blocks[i];
        apply_run(p, row, run, p->joined ? run->first * p->channels : chunk * p->width);
    }
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
    td_pool_run(work * LOOP_COST < TD_GEMM_SERIAL_WORK ? NULL : pool, p.h.size * p.chunks,
                apply_task, &p);
}

/* ---- backward-weights ---- */

static plan reduce_plan(const td_conv_reduce *reduce, td_conv_space *space)
{
    const td_conv_problem *problem = reduce->problem;
    plan p = common_plan(problem, false, REDUCE_WIDTH, space);
    p.reduce = reduce;
    int64_t taps = (int64_t)p.h.kernel * p.w.kernel;
    int64_t row_bytes =
        (p.h.kernel + 1) * problem->w.in * TD_DEPTHWISE_COLUMNS * (int64_t)p.kernels->size;
    int64_t rows = CACHE_BYTES / row_bytes;
    p.pictures = (rows > 1 ? rows : 1) * p.replicas;
    int64_t vectors = p.w.size * td_divide_up(td_min64(p.pictures, problem->n), p.replicas);
    p.rows_at_once = vectors > 0 && vectors < LONG_SUM ? td_divide_up(LONG_SUM, vectors) : 1;
    int64_t wanted = td_divide_up(WANTED_TASKS, p.column_blocks);
    p.rows_per_piece = p.h.size > 0 ? td_divide_up(p.h.size, td_min64(wanted, p.h.size)) : 1;
    if (p.rows_per_piece < p.rows_at_once) {
        p.rows_per_piece = p.rows_at_once;
    }
    p.pieces = td_divide_up(p.h.size, p.rows_per_piece);
    p.partial = td_conv_take(space, p.pieces * taps * p.channels * (int64_t)sizeof(double));
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
    p->kernels->sums(&sum, terms, count, p->width, columns);
    if (p->problem->dtype == TD_F32) {
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

/* The pixels of a row that meet the tap: at stride 1 and with all pictures one run, otherwise one
 * by one. */
static void add_pixel_row(tap_sum *s, int64_t row)
{
    const plan *p = s->plan;
    const td_conv_problem *problem = p->problem;
    int64_t size = (int64_t)p->kernels->size;
    int32_t h = p->h.source[row * p->h.kernel + s->kh];
    bool together = problem->w.stride == 1 && s->images == problem->n;
    for (int64_t q = 0; h >= 0 && q < p->w.size; q++) {
        int32_t w = p->w.source[q * p->w.kernel + s->kw];
        if (w < 0) {
            continue;
        }
        int64_t pixels = 1;
        while (together && q + pixels < p->w.size &&
               p->w.source[(q + pixels) * p->w.kernel + s->kw] >= 0) {
            pixels++;
        }
        int64_t first = s->image * p->channels;
        int64_t x = h * problem->x.row + w * problem->x.column + first;
        int64_t dy = row * problem->y.row + q * problem->y.column + first;
        add_run(s, (const char *)p->reduce->x + x * size, (const char *)p->reduce->dy + dy * size,
                pixels * s->images);
        q += pixels - 1;
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
    s.images = td_min64(p->pictures, p->problem->n - image);
    s.count = 0;
    s.rows = 0;
    for (s.kh = 0; s.kh < p->h.kernel; s.kh++) {
        for (s.kw = 0; s.kw < p->w.kernel; s.kw++, to += p->channels) {
            memset(s.total, 0, sizeof s.total);
            for (int64_t r = row; r < end; r++) {
                add_pixel_row(&s, r);
            }
            flush(&s);
            for (int64_t i = 0, c = column; i < s.columns; i++, c++) {
                c = c < p->channels ? c : 0; /* the next replica */
                to[c] += s.total[i];
            }
        }
    }
}

/* Some columns, some rows of pixels, all taps. */
static void reduce_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    int64_t taps = (int64_t)p->h.kernel * p->w.kernel;
    int64_t piece = task % p->pieces, column = task / p->pieces * TD_DEPTHWISE_COLUMNS;
    int64_t end = td_min64((piece + 1) * p->rows_per_piece, p->h.size);
    double *to = p->partial + piece * taps * p->channels;
    int64_t columns = td_min64(TD_DEPTHWISE_COLUMNS, p->channels - column);
    for (int64_t tap = 0; tap < taps; tap++) {
        memset(to + tap * p->channels + column, 0, (size_t)columns * sizeof *to);
    }
    for (int64_t image = 0; image < p->problem->n; image += p->pictures) {
        for (int64_t row = piece * p->rows_per_piece; row < end; row += p->rows_at_once) {
            add_taps(p, to, row, td_min64(end, row + p->rows_at_once), column, image);
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
    td_pool_run(work * LOOP_COST < TD_GEMM_SERIAL_WORK ? NULL : pool, p.column_blocks * p.pieces,
                reduce_task, &p);
    td_conv_add_pieces(reduce->problem->dtype, reduce->dw, p.partial, taps * p.channels, p.pieces,
                       reduce->accumulate);
}
