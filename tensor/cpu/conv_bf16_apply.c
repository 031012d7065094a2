/*
 * Forward and backward-data in bf16.
 *
 * A task is some rows of the result (pictures, and pixels beside each other that meet the same
 * taps) of one pixel row, times some panels of 32 channels. Each block of 32 rows by one panel is
 * one sum over all taps and channels of the source, which lives in the tiles until it is done.
 */
#include "tensor/cpu/conv_bf16_internal.h"

#include <string.h>

enum {
    TASK_ROWS = 128,      /* of the result */
    MAX_TERMS = 64,       /* at least as many as there are taps */
    WANTED_TASKS = 64,    /* panels are dealt out to several tasks where there are few rows */
    PANEL_BYTES = 524288, /* of the packed weights that a task uses: they stay in the L2 cache */
};

/* Rows [row, row + rows) of the run of pixels that begins at `column`. */
typedef struct row_block {
    int64_t column;
    int64_t row, rows;
} row_block;

typedef struct plan {
    const td_conv_bf16_desc *desc;
    const td_bf16_kernels *kernels;
    td_conv_problem problem;
    bool backward;
    bool by_rows; /* KW taps are one */
    td_bf16_pictures source;
    const void *weights;
    const float *bias;
    char *result;
    td_dtype result_dtype;
    bool accumulate;
    td_conv_taps h, w;
    int step;           /* from one source pixel to the next, where neighbours meet the same taps */
    td_conv_strides to; /* of the result */
    int64_t to_channels;
    int64_t panels;      /* of one group */
    int64_t task_panels; /* in a task */
    int64_t panel_tasks; /* for the same rows */
    td_turns turns;      /* of blocks [pixel row][run], and of panels of all groups */
    int64_t a_row;
    row_block *runs; /* what a task takes of a pixel row */
    int64_t run_count;
    td_bf16 *packed; /* [group][panel][tap that is alive][step][depth/2][32][2] */
    int64_t packed_low;
    double *partial; /* [task of rows][2][channels], or NULL: no statistics */
} plan;

static bool mergeable(const plan *p, int64_t q)
{
    const int32_t *here = p->w.source + q * p->w.kernel, *next = here + p->w.kernel;
    if (p->problem.n > 1 && p->step * p->source.at.column != p->problem.n * p->source.at.image) {
        return false;
    }
    for (int tap = 0; tap < p->w.kernel; tap++) {
        if (here[tap] < 0 ? next[tap] >= 0 : next[tap] != here[tap] + p->step) {
            return false;
        }
    }
    return true;
}

static void cut_pixel_row(plan *p)
{
    for (int64_t begin = 0, q = 0; q < p->w.size; q++) {
        if (q + 1 < p->w.size && mergeable(p, q)) {
            continue;
        }
        int64_t rows = (q + 1 - begin) * p->problem.n;
        for (int64_t row = 0; row < rows; row += TASK_ROWS) {
            p->runs[p->run_count++] = (row_block){ begin, row, td_min64(TASK_ROWS, rows - row) };
        }
        begin = q + 1;
    }
}

static int64_t step_elements(const plan *p)
{
    return (int64_t)p->source.depth * TD_BF16_BLOCK;
}

static int64_t packed_at(const plan *p, int64_t panel, int64_t rank)
{
    int64_t taps = (int64_t)p->h.alive * p->w.alive;
    return (panel * taps + rank) * p->source.steps * step_elements(p);
}

static void plan_packed(plan *p, bool measuring, td_conv_space *space)
{
    int64_t taps =
        measuring ? (int64_t)p->h.kernel * p->w.kernel : (int64_t)p->h.alive * p->w.alive;
    int64_t per_panel = taps * p->source.steps * step_elements(p);
    int64_t count = p->problem.groups * p->panels * per_panel;
    bool split = p->source.low != 0;
    p->packed_low = split ? count : 0;
    p->packed = td_conv_take(space, (split ? 2 : 1) * count * (int64_t)sizeof *p->packed);
    int64_t fit = PANEL_BYTES / (per_panel * (int64_t)sizeof *p->packed + 1);
    int64_t deal = p->panels * p->h.size * p->run_count * p->problem.groups / WANTED_TASKS;
    int64_t most = td_min64(td_min64(fit, deal), p->panels);
    p->task_panels = most > 1 ? most : 1;
    p->panel_tasks = td_divide_up(p->panels, p->task_panels);
}

/* With stats: room for partial sums of the result's channels. */
static void make_plan(plan *p, const td_conv_bf16_desc *desc, const void *source, bool stats,
                      td_conv_space *space)
{
    const td_conv2d_desc *d = &desc->conv;
    bool back = p->backward;
    p->desc = desc;
    p->kernels = td_bf16_kernels_now();
    p->by_rows = !back && td_bf16_uses_rows(d);
    p->problem = td_bf16_problem(d, p->by_rows);
    const td_conv_problem *problem = &p->problem;
    if (p->by_rows) {
        p->source = td_bf16_rows_plan(source, d, space);
    } else {
        p->source = td_bf16_pictures_plan(source, d->dtype, problem->groups,
                                          back ? problem->oc : problem->ic, back ? d->oh : d->ih,
                                          back ? d->ow : d->iw, d->n, space);
    }
    p->h = td_conv_taps_make(&problem->h, back, space);
    p->w = td_conv_taps_make(&problem->w, back, space);
    p->step = back ? 1 : problem->w.stride;
    p->to = back ? problem->x : problem->y;
    p->to_channels = back ? problem->ic : problem->oc;
    p->panels = td_divide_up(p->to_channels, TD_BF16_BLOCK);
    p->a_row = problem->n == 1 ? p->step * p->source.at.column : p->source.at.image;
    p->result_dtype = d->dtype;
    int64_t most = p->w.size * td_divide_up(problem->n, TASK_ROWS);
    p->runs = td_conv_take(space, most * (int64_t)sizeof *p->runs);
    if (space->base) {
        cut_pixel_row(p);
    }
    plan_packed(p, !space->base, space);
    if (stats) {
        int64_t tasks = p->h.size * (space->base ? p->run_count : most);
        p->partial = td_conv_take(space, tasks * 2 * d->oc * (int64_t)sizeof *p->partial);
    }
}

/* ---- weights ---- */

/* One tap of one panel. Element (tap, ic, oc) of a group's weights lies at
 * (tap*ic_per_group + ic)*oc_all + group*oc + oc. */
static void pack_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    const td_conv_problem *problem = &p->problem;
    int kw = (int)(task % p->w.kernel), kh = (int)(task / p->w.kernel % p->h.kernel);
    int64_t panel = task / p->w.kernel / p->h.kernel; /* of all groups */
    if (p->h.rank[kh] < 0 || p->w.rank[kw] < 0) {
        return;
    }
    int64_t size = (int64_t)td_dtype_size(p->desc->weight_dtype);
    int64_t group = panel / p->panels, first = panel % p->panels * TD_BF16_BLOCK;
    int64_t tap = (int64_t)kh * p->w.kernel + kw;
    int64_t at = tap * problem->ic * problem->oc_all + group * problem->oc;
    int columns = (int)td_min64(TD_BF16_BLOCK, p->to_channels - first);
    int depth = p->source.depth;
    td_bf16 *to =
        p->packed + packed_at(p, panel, (int64_t)p->h.rank[kh] * p->w.alive + p->w.rank[kw]);
    td_bf16_source from = { .dtype = p->desc->weight_dtype, .stride = problem->oc_all };
    for (int64_t k0 = 0; k0 < p->source.channels; k0 += depth, to += step_elements(p)) {
        int k = (int)td_min64(depth, p->source.channels - k0);
        if (p->backward) {
            from.data = (const char *)p->weights + (at + first * problem->oc_all + k0) * size;
            td_bf16_pack_b_turned(to, p->packed_low, &from, k, columns, depth);
        } else {
            from.data = (const char *)p->weights + (at + k0 * problem->oc_all + first) * size;
            td_bf16_pack_b(to, p->packed_low, &from, k, columns, depth);
        }
    }
}

/* ---- the product ---- */

/* The taps that exist, with A at the run's first row and B at the first panel of the group. */
static int find_terms(const plan *p, int64_t group, int64_t pixel_row, const row_block *run,
                      td_bf16_term *terms)
{
    const td_bf16_pictures *from = &p->source;
    const int32_t *source_h = p->h.source + pixel_row * p->h.kernel;
    const int32_t *source_w = p->w.source + run->column * p->w.kernel;
    int64_t first = run->row * p->a_row + group * from->steps * from->depth;
    int count = 0;
    for (int kh = 0; kh < p->h.kernel; kh++) {
        for (int kw = 0; kw < p->w.kernel; kw++) {
            if (source_h[kh] >= 0 && source_w[kw] >= 0) {
                int64_t rank = (int64_t)p->h.rank[kh] * p->w.alive + p->w.rank[kw];
                terms[count++] = (td_bf16_term){ from->data + source_h[kh] * from->at.row +
                                                     source_w[kw] * from->at.column + first,
                                                 p->packed + packed_at(p, group * p->panels, rank),
                                                 from->steps };
            }
        }
    }
    return count;
}

static void rows_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    int64_t rows_index, panels_index;
    td_turn(&p->turns, task, &rows_index, &panels_index);
    const row_block *run = &p->runs[rows_index % p->run_count];
    int64_t pixel_row = rows_index / p->run_count;
    int64_t begin = panels_index % p->panel_tasks * p->task_panels;
    int64_t group = panels_index / p->panel_tasks;
    int64_t end = td_min64(p->panels, begin + p->task_panels);
    int64_t size = (int64_t)td_dtype_size(p->result_dtype), channels = p->to.image;
    td_bf16_term first[MAX_TERMS], terms[MAX_TERMS];
    td_bf16_tiles tiles = { 0 };
    td_bf16_block block = {
        .terms = terms,
        .count = find_terms(p, group, pixel_row, run, first),
        .a_row = p->a_row,
        .a_half = TD_BF16_HALF * p->a_row,
        .a_step = p->source.depth,
        .depth = p->source.depth,
        .split = p->source.low != 0,
        .a_low = p->source.low,
        .b_low = p->packed_low,
        .c_row = p->to.image,
        .c_half = TD_BF16_HALF * p->to.image,
        .dtype = p->result_dtype,
        .accumulate = p->accumulate,
    };
    double *partial = p->partial ? p->partial + rows_index * 2 * channels : NULL;
    char *to = p->result +
               (pixel_row * p->to.row + run->column * p->to.column + run->row * p->to.image) * size;
    int64_t panel_step = packed_at(p, 1, 0);
    for (int64_t panel = begin; panel < end; panel++) {
        int64_t channel = group * p->to_channels + panel * TD_BF16_BLOCK;
        block.n = (int)td_min64(TD_BF16_BLOCK, p->to_channels - panel * TD_BF16_BLOCK);
        block.bias = p->bias ? p->bias + channel : NULL;
        if (partial) {
            block.sums = partial + channel;
            block.squares = block.sums + channels;
            memset(block.sums, 0, (size_t)block.n * sizeof *partial);
            memset(block.squares, 0, (size_t)block.n * sizeof *partial);
        }
        for (int64_t row = 0; row < run->rows; row += TD_BF16_BLOCK) {
            for (int t = 0; t < block.count; t++) {
                terms[t].a = first[t].a + row * p->a_row;
                terms[t].b = first[t].b + panel * panel_step;
                terms[t].steps = first[t].steps;
            }
            block.m = (int)td_min64(TD_BF16_BLOCK, run->rows - row);
            block.c = to + (row * p->to.image + channel) * size;
            p->kernels->block(&block, &tiles);
        }
    }
    p->kernels->end(&tiles);
}

/* ---- statistics ---- */

enum { STATS_CHANNELS = 64 }; /* in a task */

typedef struct stats_job {
    const double *partial; /* [parts][count] */
    int64_t parts, count;
    double *total; /* [count] */
} stats_job;

static void stats_task(void *ctx, int64_t task)
{
    const stats_job *job = ctx;
    int64_t begin = task * STATS_CHANNELS, end = td_min64(job->count, begin + STATS_CHANNELS);
    memset(job->total + begin, 0, (size_t)(end - begin) * sizeof *job->total);
    for (int64_t p = 0; p < job->parts; p++) {
        for (int64_t i = begin; i < end; i++) {
            job->total[i] += job->partial[p * job->count + i];
        }
    }
}

/* ---- running ---- */

static void run_plan(td_pool *pool, plan *p)
{
    int64_t panels = p->problem.groups * p->panels;
    double work = (double)p->source.channels * (double)(panels * TD_BF16_BLOCK) *
                  (double)(p->h.size * p->w.size) * (double)p->problem.n *
                  (double)(p->h.alive * p->w.alive);
    if (work < TD_GEMM_SERIAL_WORK) {
        pool = NULL;
    }
    td_bf16_pictures_run(pool, &p->source);
    td_pool_run(pool, panels * p->h.kernel * p->w.kernel, pack_task, p);
    p->turns = td_conv_turns(&p->problem, &p->h, &p->w, p->h.size * p->run_count,
                             p->problem.groups * p->panel_tasks, td_pool_threads(pool));
    td_pool_run(pool, p->turns.panels * p->turns.blocks, rows_task, p);
}

int64_t td_conv_bf16_apply_workspace(const td_conv_bf16_desc *desc, bool backward)
{
    td_conv_space space = { 0 };
    plan p = { .backward = backward };
    make_plan(&p, desc, NULL, !backward, &space);
    return space.used;
}

void td_conv_bf16_forward(td_pool *pool, const td_conv_bf16_desc *desc, const void *x,
                          const void *w, const float *bias, void *y, double *stats, void *workspace)
{
    td_conv_space space = { .base = workspace };
    plan p = { .weights = w, .bias = bias, .result = y };
    make_plan(&p, desc, x, stats != NULL, &space);
    run_plan(pool, &p);
    if (stats) {
        stats_job job = { p.partial, p.h.size * p.run_count, 2 * desc->conv.oc, stats };
        td_pool_run(pool, td_divide_up(job.count, STATS_CHANNELS), stats_task, &job);
    }
}

void td_conv_bf16_backward_data(td_pool *pool, const td_conv_bf16_desc *desc, const void *dy,
                                const void *w, void *dx, bool accumulate, void *workspace)
{
    td_conv_space space = { .base = workspace };
    plan p = { .backward = true, .weights = w, .result = dx, .accumulate = accumulate };
    make_plan(&p, desc, dy, false, &space);
    run_plan(pool, &p);
}
