/*
 * Depthwise convolutions, one input and one output channel in each group: forward and
 * backward-data. Backward-weights is in conv_depthwise_reduce.c.
 *
 * In HWNC the pictures at a pixel, and at stride 1 the pixels beside each other, are one long array
 * in which the channels come round again and again. Few channels are taken several times over
 * (`replicas`), with as many copies of the weights, so that vectors are full. Pixels of a row that
 * meet the same taps are computed side by side, since their taps read the same pixels.
 */
#include "tensor/cpu/conv_depthwise.h"

#include <string.h>

enum {
    LANES = 16,           /* of the widest vector */
    APPLY_WIDTH = 256,    /* elements that replicas may make */
    WEIGHT_BYTES = 16384, /* of the replicas of all taps: half of the L1 cache */
    JOINED_WIDTH = 64,    /* the same of joined pixels: a run of them is not long */
    JOIN_ELEMENTS = 64,   /* at a pixel: with no more than these, pixels are joined to one array */
    RUN_ELEMENTS = 1024,  /* of joined pixels in a call: what taps read again is in the L1 cache */
    MAX_TAPS = 64,        /* in a call */
};

/* `count` pixels from `column` on that meet the same taps. Joined: pictures [first, first + count)
 * of the run that begins there. */
typedef struct run_block {
    int64_t column, first, count;
} run_block;

typedef struct plan {
    td_depthwise_plan common;
    const td_conv_apply *apply;
    td_conv_strides from, to;
    char *weights; /* [tap][width], or NULL: they serve as they are */
    char *bias;    /* [width], or NULL */
    bool joined;
    int step;          /* from source pixel to source pixel in a run */
    run_block *blocks; /* of a row of pixels */
    int64_t block_count;
    int64_t chunks; /* of the pictures and channels at a pixel, `width` each; 1 where joined */
} plan;

/* ---- for all passes ---- */

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

td_depthwise_plan td_depthwise_plan_make(const td_conv_problem *problem, bool backward,
                                         int64_t most, td_conv_space *space)
{
    td_depthwise_plan p = { .problem = problem,
                            .kernels = td_depthwise_kernels_for(problem->dtype),
                            .channels = problem->oc_all };
    p.h = td_conv_taps_make(&problem->h, backward, space);
    p.w = td_conv_taps_make(&problem->w, backward, space);
    p.replicas = count_replicas(p.channels, most);
    p.width = p.replicas * p.channels;
    return p;
}

td_pool *td_depthwise_pool(td_pool *pool, const td_depthwise_plan *p)
{
    double work = (double)(p->h.size * p->w.size * p->channels) * (double)p->problem->n *
                  (double)(p->h.alive * p->w.alive);
    return work * TD_DEPTHWISE_COST < TD_GEMM_SERIAL_WORK ? NULL : pool;
}

/* ---- the plan ---- */

static int64_t run_pictures(const plan *p)
{
    return td_divide_up(RUN_ELEMENTS, p->common.width) * p->common.replicas;
}

static void add_run_blocks(plan *p, int64_t column, int64_t pixels)
{
    if (!p->joined) {
        p->blocks[p->block_count++] = (run_block){ column, 0, pixels };
        return;
    }
    int64_t unit = run_pictures(p), pictures = pixels * p->common.problem->n;
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
    plan p = { .common = td_depthwise_plan_make(problem, back, width, space), .apply = apply };
    p.from = back ? problem->y : problem->x;
    p.to = back ? problem->x : problem->y;
    p.step = back ? 1 : problem->w.stride;
    if (p.common.replicas > 1) {
        p.weights = td_conv_take(space, (int64_t)p.common.h.kernel * p.common.w.kernel *
                                            p.common.width * size);
        p.bias = td_conv_take(space, p.common.width * size);
    }
    p.joined = joined;
    p.chunks = p.joined ? 1 : td_divide_up(elements, p.common.width);
    int64_t most = p.common.w.size * td_divide_up(problem->n, run_pictures(&p));
    p.blocks = td_conv_take(space, most * (int64_t)sizeof *p.blocks);
    for (int64_t begin = 0, q = 0; space->base && q < p.common.w.size; q++) {
        if (!td_conv_taps_follow(&p.common.w, q, 1, p.step)) {
            add_run_blocks(&p, begin, q + 1 - begin);
            begin = q + 1;
        }
    }
    return p;
}

static void replicate(const plan *p, char *to, const char *from)
{
    size_t bytes = (size_t)p->common.channels * p->common.kernels->size;
    for (int64_t i = 0; i < p->common.replicas; i++) {
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
    int64_t done = c->block.rows * p->common.width * (int64_t)p->common.kernels->size;
    for (int i = 0; i < last.count; i++) {
        taps[i] = (td_depthwise_tap){ (const char *)c->taps[i].x + done, c->taps[i].w };
    }
    last.taps = taps;
    last.y = (char *)last.y + done;
    last.rows = 1;
    last.columns = c->rest * p->common.channels;
    p->common.kernels->apply(&last);
}

static void apply_taps(const plan *p, pending *c)
{
    p->common.kernels->apply(&c->block);
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
    for (int kw = 0; kw < p->common.w.kernel; kw++) {
        met += source_w[kw] >= 0;
    }
    bool follow = !p->joined && p->step == 1 && p->common.problem->w.dilation == 1 &&
                  (!p->apply->backward || p->common.problem->w.stride == 1) &&
                  p->common.w.kernel <= MAX_TAPS;
    return follow ? met : 0;
}

/* A run of pixels in a row; from `first` on of the pictures and channels there. */
static void apply_run(const plan *p, int64_t row, const run_block *run, int64_t first)
{
    const td_conv_apply *a = p->apply;
    int64_t size = (int64_t)p->common.kernels->size;
    const int32_t *source_h = p->common.h.source + row * p->common.h.kernel;
    const int32_t *source_w = p->common.w.source + run->column * p->common.w.kernel;
    const char *weights = p->weights ? p->weights : a->weights;
    pending c = { .rest = p->joined ? run->count % p->common.replicas : 0 };
    c.block = (td_depthwise_block){
        .taps = c.taps,
        .y = (char *)a->result + (row * p->to.row + run->column * p->to.column + first) * size,
        .x_step = p->joined ? p->common.width : p->step * p->from.column,
        .y_step = p->joined ? p->common.width : p->to.column,
        .rows = p->joined ? run->count / p->common.replicas : run->count,
        .columns = p->joined ? p->common.width : td_min64(p->common.width, p->to.column - first),
        .bias = a->bias && p->bias ? p->bias : a->bias,
        .accumulate = a->accumulate,
    };
    c.block.beside = taps_beside(p, source_w);
    for (int kh = 0; kh < p->common.h.kernel; kh++) {
        if (source_h[kh] < 0) {
            continue;
        }
        if (c.block.count + p->common.w.kernel > MAX_TAPS) {
            apply_taps(p, &c);
        }
        for (int i = 0; i < p->common.w.kernel; i++) {
            /* From left to right in x: backward, the last tap comes first. */
            int kw = a->backward ? p->common.w.kernel - 1 - i : i;
            if (source_w[kw] < 0) {
                continue;
            }
            if (c.block.count == MAX_TAPS) {
                apply_taps(p, &c);
            }
            int64_t from = source_h[kh] * p->from.row + source_w[kw] * p->from.column + first;
            int64_t tap = (int64_t)kh * p->common.w.kernel + kw;
            c.taps[c.block.count++] = (td_depthwise_tap){ (const char *)a->source + from * size,
                                                          weights + tap * p->common.width * size };
        }
    }
    apply_taps(p, &c); /* even without any tap: every pixel is written */
}

static void apply_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    int64_t row = task % p->common.h.size, chunk = task / p->common.h.size;
    for (int64_t i = 0; i < p->block_count; i++) {
        const run_block *run = &p->blocks[i];
        apply_run(p, row, run,
                  p->joined ? run->first * p->common.channels : chunk * p->common.width);
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
    int64_t size = (int64_t)p.common.kernels->size;
    for (int64_t tap = 0; p.weights && tap < (int64_t)p.common.h.kernel * p.common.w.kernel;
         tap++) {
        replicate(&p, p.weights + tap * p.common.width * size,
                  (const char *)apply->weights + tap * p.common.channels * size);
    }
    if (p.bias && apply->bias) {
        replicate(&p, p.bias, apply->bias);
    }
    td_pool_run(td_depthwise_pool(pool, &p.common), p.common.h.size * p.chunks, apply_task, &p);
}
