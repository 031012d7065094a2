/*
 * Depthwise convolutions, one input and one output channel in each group: forward and
 * backward-data. Backward-weights is in conv_depthwise_reduce.c.
 *
 * In HWNC the pictures at a pixel are one long array in which the channels, and with them the
 * weights, come round again and again: vectors take it as it comes. Pixels of a row that meet the
 * same taps are computed side by side, since their taps read the same pixels.
 */
#include "tensor/cpu/conv_depthwise.h"

#include <string.h>

enum {
    LANES = 16,              /* of the widest vector */
    CACHE_BYTES = 512 << 10, /* of pixel rows that the rows of the kernel read again */
    LEAST_CHUNK = 64,        /* elements */
    LEAST_TASKS = 8,
    MAX_TAPS = 64, /* in a call */
};

/* `count` pixels from `column` on that meet the same taps. */
typedef struct run_block {
    int64_t column, count;
} run_block;

typedef struct plan {
    td_depthwise_plan common;
    const td_conv_apply *apply;
    td_conv_strides from, to;
    char
        *weights; /* [tap][weight_row], the channels once and again; NULL: they serve as they are */
    char *bias;   /* likewise */
    int64_t weight_row;
    int step;          /* from source pixel to source pixel in a run */
    run_block *blocks; /* of a row of pixels */
    int64_t block_count;
    int64_t elements, chunk, chunks; /* of the pictures and channels at a pixel */
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

/* Cuts the elements of a pixel: the rows of pixels of a chunk that a row of the result meets stay
 * in the cache, and there are enough tasks. */
static void cut_elements(plan *p)
{
    const td_conv_problem *problem = p->common.problem;
    int64_t bytes = (problem->h.kernel + 1) *
                    (p->apply->backward ? problem->w.out : problem->w.in) *
                    (int64_t)p->common.kernels->size;
    int64_t fit = CACHE_BYTES / (bytes > 0 ? bytes : 1);
    int64_t chunks = td_divide_up(p->elements, fit > LEAST_CHUNK ? fit : LEAST_CHUNK);
    int64_t wanted = td_divide_up(LEAST_TASKS, p->common.h.size);
    chunks = td_min64(chunks > wanted ? chunks : wanted, td_divide_up(p->elements, LEAST_CHUNK));
    p->chunk = td_divide_up(td_divide_up(p->elements, chunks), LEAST_CHUNK) * LEAST_CHUNK;
    p->chunks = td_divide_up(p->elements, p->chunk);
}

static plan apply_plan(const td_conv_apply *apply, td_conv_space *space)
{
    const td_conv_problem *problem = apply->problem;
    bool back = apply->backward;
    int64_t size = (int64_t)td_dtype_size(problem->dtype);
    plan p = { .common = td_depthwise_plan_make(problem, back, 0, space), .apply = apply };
    p.from = back ? problem->y : problem->x;
    p.to = back ? problem->x : problem->y;
    p.step = back ? 1 : problem->w.stride;
    p.elements = problem->n * problem->oc_all;
    p.weight_row = p.common.channels;
    if (p.common.channels % LANES != 0 && problem->n > 1) { /* a vector would read beyond */
        p.weight_row += LANES - 1;
        p.weights = td_conv_take(space, (int64_t)p.common.h.kernel * p.common.w.kernel *
                                            p.weight_row * size);
        p.bias = td_conv_take(space, p.weight_row * size);
    }
    cut_elements(&p);
    p.blocks = td_conv_take(space, p.common.w.size * (int64_t)sizeof *p.blocks);
    for (int64_t begin = 0, q = 0; space->base && q < p.common.w.size; q++) {
        if (!td_conv_taps_follow(&p.common.w, q, 1, p.step)) {
            p.blocks[p.block_count++] = (run_block){ begin, q + 1 - begin };
            begin = q + 1;
        }
    }
    return p;
}

/* The channels, and the first ones again. */
static void repeat(const plan *p, char *to, const char *from)
{
    int64_t size = (int64_t)p->common.kernels->size;
    for (int64_t done = 0, count; done < p->weight_row; done += count) {
        count = td_min64(p->common.channels, p->weight_row - done);
        memcpy(to + done * size, from, (size_t)(count * size));
    }
}

/* A call in the making. */
typedef struct pending {
    td_depthwise_tap taps[MAX_TAPS];
    td_depthwise_block block;
} pending;

static void apply_taps(const plan *p, pending *c)
{
    p->common.kernels->apply(&c->block);
    c->block.count = 0;
    c->block.bias = NULL;
    c->block.accumulate = true;
}

/* The taps of a row of the kernel that a run meets, from left to right in x. */
typedef struct met_taps {
    int count;
    bool beside;               /* they follow each other as the run's pixels do */
    int64_t x[MAX_TAPS];       /* bytes from the row of x */
    int64_t weights[MAX_TAPS]; /* from those of the row of the kernel */
} met_taps;

/* MAX_TAPS of them at most, from the `first` tap on in that order. */
static void find_taps(const plan *p, const run_block *run, int first, met_taps *met)
{
    int64_t size = (int64_t)p->common.kernels->size;
    int kernel = p->common.w.kernel, end = first + MAX_TAPS < kernel ? first + MAX_TAPS : kernel;
    const int32_t *source = p->common.w.source + run->column * kernel;
    met->count = 0;
    for (int i = first; i < end; i++) {
        int kw = p->apply->backward ? kernel - 1 - i : i; /* backward, the last one comes first */
        if (source[kw] >= 0) {
            met->x[met->count] = source[kw] * p->from.column * size;
            met->weights[met->count++] = kw * p->weight_row * size;
        }
    }
    met->beside = p->step == 1 && p->common.problem->w.dilation == 1 &&
                  (!p->apply->backward || p->common.problem->w.stride == 1) && kernel <= MAX_TAPS;
}

/* A run of pixels in a row; elements from `first` on. */
static void apply_run(const plan *p, int64_t row, const run_block *run, int64_t first)
{
    const td_conv_apply *a = p->apply;
    int64_t size = (int64_t)p->common.kernels->size;
    const int32_t *source_h = p->common.h.source + row * p->common.h.kernel;
    int64_t row_weights = p->common.w.kernel * p->weight_row * size;
    met_taps met;
    pending c;
    c.block = (td_depthwise_block){
        .taps = c.taps,
        .y = (char *)a->result + (row * p->to.row + run->column * p->to.column + first) * size,
        .x_step = p->step * p->from.column,
        .y_step = p->to.column,
        .rows = run->count,
        .columns = td_min64(p->chunk, p->elements - first),
        .period = p->common.channels,
        .phase = first % p->common.channels,
        .bias = a->bias && p->bias ? p->bias : a->bias,
        .accumulate = a->accumulate,
    };
    for (int some = 0; some < p->common.w.kernel; some += MAX_TAPS) {
        find_taps(p, run, some, &met);
        c.block.beside = met.beside ? met.count : 0;
        for (int kh = 0; kh < p->common.h.kernel; kh++) {
            if (source_h[kh] < 0) {
                continue;
            }
            if (c.block.count + met.count > MAX_TAPS) {
                apply_taps(p, &c);
            }
            const char *x = (const char *)a->source + (source_h[kh] * p->from.row + first) * size;
            const char *w = (p->weights ? p->weights : (const char *)a->weights) + kh * row_weights;
            for (int i = 0; i < met.count; i++) {
                c.taps[c.block.count++] = (td_depthwise_tap){ x + met.x[i], w + met.weights[i] };
            }
        }
    }
    apply_taps(p, &c); /* even without any tap: every pixel is written */
}

static void apply_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    int64_t row = task % p->common.h.size, chunk = task / p->common.h.size;
    for (int64_t i = 0; i < p->block_count; i++) {
        apply_run(p, row, &p->blocks[i], chunk * p->chunk);
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
    int64_t taps = (int64_t)p.common.h.kernel * p.common.w.kernel;
    for (int64_t tap = 0; p.weights && tap < taps; tap++) {
        repeat(&p, p.weights + tap * p.weight_row * size,
               (const char *)apply->weights + tap * p.common.channels * size);
    }
    if (p.bias && apply->bias) {
        repeat(&p, p.bias, apply->bias);
    }
    td_pool_run(td_depthwise_pool(pool, &p.common), p.common.h.size * p.chunks, apply_task, &p);
}
