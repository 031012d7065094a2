/*
 * Depthwise convolutions, one input and one output channel in each group: forward and
 * backward-data. Backward-weights is in conv_depthwise_reduce.c.
 *
 * In HWNC the pictures at a pixel are one long array in which the channels, and with them the
 * weights, come round again and again: vectors take it as it comes. Pixels of a row that meet the
 * same taps are computed side by side, since their taps read the same pixels.
 *
 * A task has some columns of that array in a row of pixels of the result.
 */
#include "tensor/cpu/conv_depthwise.h"

#include <string.h>

enum {
    MAX_TAPS = 64, /* in a call */
    LEAST_TASKS = 8,
    CACHE_BYTES = 512 << 10, /* of pixel rows that the rows of the kernel read again */
    LEAST_CHUNK = 64,        /* columns of a task */
    FAR_BYTES = 8 << 20,     /* of a source that stays in no cache */
};

/* Pixels q, q + apart, ... of a row of the result, which meet the same taps. */
typedef struct pixel_run {
    int64_t q, count;
} pixel_run;

typedef struct plan {
    td_depthwise_plan common;
    const td_conv_apply *apply;
    td_conv_strides from, to;
    /* [tap][weight_row], the channels once and again; NULL: they serve as they are. */
    char *weights;
    char *bias; /* likewise */
    int64_t weight_row;
    int apart; /* from one pixel of the result to the next that the same taps meet: 1, or backward
                  the stride */
    int step;  /* from source pixel to source pixel then */
    int taps_h, taps_w; /* of a call */
    bool far;           /* the source is larger than the caches */
    pixel_run *runs;    /* of a row */
    int64_t run_count;
    int64_t elements; /* of the pictures and channels at a pixel */
    int64_t columns;  /* of them, in a task */
    int64_t chunks;
} plan;

/* ---- for all passes ---- */

td_depthwise_plan td_depthwise_plan_make(const td_conv_problem *problem, bool backward,
                                         td_conv_space *space)
{
    td_depthwise_plan p = { .problem = problem,
                            .kernels = td_depthwise_kernels_for(problem->dtype),
                            .channels = problem->oc_all };
    p.h = td_conv_taps_make(&problem->h, backward, space);
    p.w = td_conv_taps_make(&problem->w, backward, space);
    return p;
}

td_pool *td_depthwise_pool(td_pool *pool, const td_depthwise_plan *p)
{
    double work = (double)(p->h.size * p->w.size * p->channels) * (double)p->problem->n *
                  (double)(p->h.alive * p->w.alive);
    return work * TD_DEPTHWISE_COST < TD_GEMM_SERIAL_WORK ? NULL : pool;
}

/* ---- the plan ---- */

/* The columns of a pixel: the rows of pixels of a chunk that a row of the result meets stay in the
 * cache, and there are enough tasks. */
static void cut_columns(plan *p)
{
    const td_conv_problem *problem = p->common.problem;
    int64_t bytes = (problem->h.kernel + 1) *
                    (p->apply->backward ? problem->w.out : problem->w.in) *
                    (int64_t)p->common.kernels->size;
    int64_t fit = CACHE_BYTES / (bytes > 0 ? bytes : 1);
    int64_t chunks = td_divide_up(p->elements, fit > LEAST_CHUNK ? fit : LEAST_CHUNK);
    int64_t wanted = td_divide_up(LEAST_TASKS, p->common.h.size);
    chunks = td_min64(chunks > wanted ? chunks : wanted, td_divide_up(p->elements, LEAST_CHUNK));
    p->columns = td_divide_up(td_divide_up(p->elements, chunks), LEAST_CHUNK) * LEAST_CHUNK;
}

static void depthwise_cut_result(plan *p)
{
    const td_depthwise_plan *c = &p->common;
    const td_conv_axis *h = &c->problem->h;
    p->taps_w = c->w.kernel < MAX_TAPS ? c->w.kernel : MAX_TAPS;
    p->taps_w = p->taps_w > 0 ? p->taps_w : 1;
    p->taps_h = MAX_TAPS / p->taps_w;
    cut_columns(p);
    int64_t pixels = p->apply->backward ? h->out * c->problem->w.out : h->in * c->problem->w.in;
    p->far = pixels * p->elements * (int64_t)c->kernels->size > FAR_BYTES;
    p->chunks = td_divide_up(p->elements, p->columns);
}

static plan apply_plan(const td_conv_apply *apply, td_conv_space *space)
{
    const td_conv_problem *problem = apply->problem;
    bool back = apply->backward;
    int64_t size = (int64_t)td_dtype_size(problem->dtype);
    plan p = { .common = td_depthwise_plan_make(problem, back, space), .apply = apply };
    p.from = back ? problem->y : problem->x;
    p.to = back ? problem->x : problem->y;
    p.apart = back ? problem->w.stride : 1;
    p.step = back ? 1 : problem->w.stride;
    p.elements = problem->n * problem->oc_all;
    p.weight_row = p.common.channels;
    if (p.common.channels % TD_DEPTHWISE_LANES != 0 &&
        problem->n > 1) { /* a vector would read beyond */
        p.weight_row += TD_DEPTHWISE_LANES - 1;
        p.weights = td_conv_take(space, (int64_t)p.common.h.kernel * p.common.w.kernel *
                                            p.weight_row * size);
        p.bias = td_conv_take(space, p.weight_row * size);
    }
    p.runs = td_conv_take(space, p.common.w.size * (int64_t)sizeof *p.runs);
    if (space->base) {
        depthwise_cut_result(&p);
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

/* ---- a part of the result ---- */

/* Some columns of some rows, some taps. */
typedef struct part {
    const plan *plan;
    int kh, kw;              /* the first taps */
    int64_t column, columns; /* elements at a pixel */
} part;

/* The taps of a row of the kernel that a run meets. */
typedef struct met_taps {
    int count;
    int64_t pixel[MAX_TAPS]; /* for the first of the run */
    int kw[MAX_TAPS];
} met_taps;

static void depthwise_find_taps(const part *w, int64_t q, met_taps *met)
{
    const plan *p = w->plan;
    int kernel = p->common.w.kernel, left = kernel - w->kw;
    int taps = left < p->taps_w ? left : p->taps_w;
    met->count = 0;
    for (int i = 0; i < taps; i++) {
        int64_t at = p->common.w.source[q * kernel + w->kw + i];
        if (at >= 0) {
            met->pixel[met->count] = at;
            met->kw[met->count++] = w->kw + i;
        }
    }
}

/* Whether pixel q + apart meets the same taps as q, each `step` pixels further on. */
static bool taps_follow(const td_conv_taps *taps, int64_t q, int64_t apart, int step)
{
    if (q + apart >= taps->size) {
        return false;
    }
    const int32_t *here = taps->source + q * taps->kernel, *next = here + apart * taps->kernel;
    for (int tap = 0; tap < taps->kernel; tap++) {
        if (here[tap] < 0 ? next[tap] >= 0 : next[tap] != here[tap] + step) {
            return false;
        }
    }
    return true;
}

/* The runs of a row of pixels. */
static void depthwise_find_runs(plan *p)
{
    const td_conv_taps *w = &p->common.w;
    for (int64_t q = 0; q < w->size; q++) {
        if (q >= p->apart && taps_follow(w, q - p->apart, p->apart, p->step)) {
            continue; /* it belongs to the run of that */
        }
        pixel_run next = { q, 1 };
        for (int64_t last = q; taps_follow(w, last, p->apart, p->step); last += p->apart) {
            next.count++;
        }
        p->runs[p->run_count++] = next;
    }
}

/* All pixels of a run, the taps from w->kh and w->kw on that fit into a call. */
static void apply_taps(const part *w, int64_t row, const pixel_run *run)
{
    const plan *p = w->plan;
    const td_conv_apply *a = p->apply;
    int64_t size = (int64_t)p->common.kernels->size, tap_bytes = p->weight_row * size;
    bool begins = w->kh == 0 && w->kw == 0;
    met_taps met;
    td_depthwise_tap taps[MAX_TAPS];
    depthwise_find_taps(w, run->q, &met);
    td_depthwise_block block = {
        .taps = taps,
        .y = (char *)a->result + (row * p->to.row + run->q * p->to.column + w->column) * size,
        .x_step = p->step * p->from.column,
        .y_step = p->apart * p->to.column,
        .rows = run->count,
        .columns = w->columns,
        .far = p->far,
        .period = p->common.channels,
        .phase = w->column % p->common.channels,
        .bias = !begins              ? NULL
                : a->bias && p->bias ? p->bias
                                     : a->bias,
        .accumulate = a->accumulate || !begins,
    };
    for (int kh = w->kh; kh < w->kh + p->taps_h && kh < p->common.h.kernel; kh++) {
        int64_t source = p->common.h.source[row * p->common.h.kernel + kh];
        const char *x = (const char *)a->source + (source * p->from.row + w->column) * size;
        const char *weights = p->weights ? p->weights : a->weights;
        weights += kh * p->common.w.kernel * tap_bytes;
        for (int i = 0; i < met.count && source >= 0; i++) {
            taps[block.count++] = (td_depthwise_tap){ x + met.pixel[i] * p->from.column * size,
                                                      weights + met.kw[i] * tap_bytes };
        }
    }
    if (block.count > 0 || begins) { /* every pixel is written */
        p->common.kernels->apply(&block);
    }
}

static void apply_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    int64_t row = task / p->chunks, column = task % p->chunks * p->columns;
    part w = { .plan = p, .column = column, .columns = td_min64(p->columns, p->elements - column) };
    for (int64_t i = 0; i < p->run_count; i++) {
        for (w.kh = 0; w.kh == 0 || w.kh < p->common.h.kernel; w.kh += p->taps_h) {
            for (w.kw = 0; w.kw == 0 || w.kw < p->common.w.kernel; w.kw += p->taps_w) {
                apply_taps(&w, row, &p->runs[i]);
            }
        }
    }
}

void td_conv_depthwise_apply(td_pool *pool, const td_conv_apply *apply, td_conv_space *space)
{
    plan p = apply_plan(apply, space);
    if (!space->base) {
        return;
    }
    depthwise_find_runs(&p);
    int64_t size = (int64_t)p.common.kernels->size;
    int64_t taps = (int64_t)p.common.h.kernel * p.common.w.kernel;
    for (int64_t tap = 0; p.weights && tap < taps; tap++) {
        repeat(&p, p.weights + tap * p.weight_row * size,
               (const char *)apply->weights + tap * p.common.channels * size);
    }
    if (p.bias && apply->bias) {
        repeat(&p, p.bias, apply->bias);
    }
    td_pool_run(td_depthwise_pool(pool, &p.common), p.chunks * p.common.h.size, apply_task, &p);
}
