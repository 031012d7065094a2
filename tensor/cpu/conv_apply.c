/*
 * Forward and backward-data.
 *
 * A block of the result is some rows (pictures, and pixels beside each other that meet the same
 * taps) of one pixel row, times one panel of channels. It stays in the first-level cache while the
 * taps add to it, in the order of the taps. A block is a task: nobody else writes it.
 *
 * Pixels beside each other in a row lie one stride apart for every picture, and at stride 1 so do
 * all their pictures: then a run of pixels times all pictures is one list of rows. Otherwise rows
 * are the pictures of one pixel, or, where those are fewer, the pixels of one picture.
 *
 * Where both would make blocks of a handful of rows, the result is cut into strips
 * (conv_apply_strips.c), or blocks are made of pixels from anywhere, found in tables
 * (conv_apply_listed.c) or copied (conv_apply_gather.c). Which, says conv_apply_plan.c.
 */
#include "tensor/cpu/conv_apply.h"

#include <string.h>

enum {
    PACK_COST = 8, /* of a weight, in multiply-adds */
};

/* ---- weights ---- */

/* Element (tap, channel of y, channel of x) of the weights of a group, at 0 of both channels. */
static int64_t weight_at(const td_conv_apply_plan *p, int64_t group, int64_t tap)
{
    const td_conv_problem *problem = p->problem;
    int64_t y_channels = p->apply->backward ? p->from_channels : p->to_channels;
    return tap * problem->ic * problem->oc_all + group * y_channels;
}

static int64_t packed_at(const td_conv_apply_plan *p, int64_t group, int64_t panel, int kh, int kw)
{
    int64_t tap = (int64_t)p->h.rank[kh] * p->w.alive + p->w.rank[kw];
    int64_t taps = (int64_t)p->h.alive * p->w.alive;
    return ((group * p->panels + panel) * taps + tap) * p->depth * p->problem->kernels->panel;
}

/* Backward, where groups share a vector: side by side in a panel, each transposed on its own. */
static void pack_sharing(const td_conv_apply_plan *p, int64_t group, int64_t tap, char *to)
{
    const td_conv_problem *problem = p->problem;
    int64_t size = (int64_t)problem->kernels->size, first = group * problem->sharing;
    int64_t count = td_min64(problem->sharing, problem->groups - first);
    const char *from = (const char *)p->apply->weights + weight_at(p, group, tap) * size;
    for (int64_t g = 0; g < count; g++) {
        problem->kernels->pack(to + g * problem->ic * size, from + g * problem->oc * size, p->depth,
                               problem->ic, 1, problem->oc_all);
    }
}

/* A tap for dots: every channel of the result with all channels of the source. */
static void pack_dots(const td_conv_apply_plan *p, float *restrict to, const float *restrict from)
{
    int64_t step = p->problem->oc_all;
    for (int64_t j = 0; j < p->to_channels; j++, to += p->depth) {
        for (int64_t i = 0; i < p->depth; i++) {
            to[i] = from[i * step + j];
        }
    }
}

static void pack_task(void *ctx, int64_t task)
{
    const td_conv_apply_plan *p = ctx;
    const td_conv_problem *problem = p->problem;
    const td_gemm_kernels *kernels = problem->kernels;
    int kw = (int)(task % p->w.kernel);
    int kh = (int)(task / p->w.kernel % p->h.kernel);
    int64_t panel = task / p->w.kernel / p->h.kernel % p->panels;
    int64_t group = task / p->w.kernel / p->h.kernel / p->panels;
    if (p->h.rank[kh] < 0 || p->w.rank[kw] < 0) {
        return;
    }
    /* From one channel of the source, or of the result, to the next. */
    int64_t source_step = p->apply->backward ? 1 : problem->oc_all;
    int64_t result_step = p->apply->backward ? problem->oc_all : 1;
    int64_t first = panel * kernels->panel, tap = (int64_t)kh * p->w.kernel + kw;
    int64_t from = weight_at(p, group, tap) + first * result_step;
    char *to = p->packed + packed_at(p, group, panel, kh, kw) * (int64_t)kernels->size;
    if (problem->sharing > 0) {
        pack_sharing(p, group, tap, to);
        return;
    }
    if (p->dots) {
        pack_dots(p, (float *)to, (const float *)p->apply->weights + from);
        return;
    }
    kernels->pack(to, (const char *)p->apply->weights + from * (int64_t)kernels->size,
                  p->from_channels, td_min64(kernels->panel, p->to_channels - first), source_step,
                  result_step);
}

/* ---- the product ---- */

void td_conv_add_up(td_conv_term_sum *sum)
{
    if (sum->pixels) {
        td_conv_pixels_multiply(sum->pixels, &sum->block);
    } else if (sum->lanes) {
        sum->kernels->grouped(&sum->block, sum->lanes);
    } else if (sum->dots) {
        sum->kernels->dots(&sum->block);
    } else {
        sum->kernels->block(&sum->block);
    }
    sum->block.accumulate = true;
    sum->block.count = 0;
    sum->depth = 0;
}

/* Adds A (rows x depth) times B to the sum, in terms that are not too deep. */
static void add_product(td_conv_term_sum *sum, const char *a, const char *b, int64_t depth)
{
    int64_t size = (int64_t)sum->kernels->size;
    for (int64_t k0 = 0; k0 < depth; k0 += sum->most_depth) {
        int64_t k = td_min64(sum->most_depth, depth - k0);
        if (sum->depth + k > sum->most_depth || sum->block.count == TD_APPLY_TERMS) {
            td_conv_add_up(sum);
        }
        sum->terms[sum->block.count++] =
            (td_gemm_term){ a + k0 * size, b + k0 * sum->b_step * size, k };
        sum->depth += k;
    }
}

const char *td_conv_apply_weights(const td_conv_apply_plan *p, int64_t group, int64_t panel, int kh,
                                  int kw)
{
    const td_gemm_kernels *kernels = p->problem->kernels;
    if (p->packed) {
        return p->packed + packed_at(p, group, panel, kh, kw) * (int64_t)kernels->size;
    }
    int64_t step = p->dots ? p->problem->oc_all : 1; /* to the next channel of the result */
    int64_t at = weight_at(p, group, (int64_t)kh * p->w.kernel + kw) + panel * p->width * step;
    return (const char *)p->apply->weights + at * (int64_t)kernels->size;
}

int64_t td_conv_apply_b_row(const td_conv_apply_plan *p)
{
    return !p->packed ? p->problem->oc_all : p->dots ? p->depth : p->width;
}

static void add_taps(const td_conv_apply_plan *p, td_conv_term_sum *sum, const td_conv_place *at,
                     const td_conv_row_block *rows)
{
    const td_conv_problem *problem = p->problem;
    int64_t size = (int64_t)problem->kernels->size;
    const int32_t *source_h = p->h.source + at->pixel_row * p->h.kernel;
    const int32_t *source_w = p->w.source + rows->column * p->w.kernel;
    int64_t in_block =
        at->image * p->from.image + rows->row * p->a_row + at->group * p->from_channels;
    for (int kh = 0; kh < p->h.kernel; kh++) {
        for (int kw = 0; kw < p->w.kernel; kw++) {
            if (source_h[kh] < 0 || source_w[kw] < 0) {
                continue;
            }
            int64_t a = source_h[kh] * p->from.row + source_w[kw] * p->from.column + in_block;
            add_product(sum, (const char *)p->apply->source + a * size,
                        td_conv_apply_weights(p, at->group, at->panel, kh, kw), p->depth);
        }
    }
}

td_conv_place td_conv_apply_place(const td_conv_apply_plan *p, int64_t task, int64_t images)
{
    int64_t block, panel;
    td_turn(&p->turns, task, &block, &panel);
    return (td_conv_place){ block % p->block_count, block / p->block_count % images,
                            block / p->block_count / images, panel % p->panels, panel / p->panels };
}

static void block_task(void *ctx, int64_t task)
{
    const td_conv_apply_plan *p = ctx;
    const td_conv_problem *problem = p->problem;
    int64_t size = (int64_t)problem->kernels->size, width = p->width;
    td_conv_place at = td_conv_apply_place(p, task, p->images);
    const td_conv_row_block *rows = &p->blocks[at.block];
    int64_t channel = at.group * p->to_channels + at.panel * width;
    int64_t c = at.pixel_row * p->to.row + at.image * p->to.image + rows->column * p->to.column +
                rows->row * p->c_row;

    td_gemm_lanes lanes = p->lanes;
    int64_t left = (p->apply->backward ? problem->ic : problem->oc) * problem->groups - channel;
    if (problem->sharing > 0 && left < p->to_channels) { /* fewer groups than share a vector */
        lanes.window = (int)(left / (p->to_channels / problem->sharing) * p->depth);
    }
    td_conv_term_sum sum; /* field by field: to clear its terms takes as long as a short sum */
    sum.kernels = problem->kernels;
    sum.lanes = problem->sharing > 0 ? &lanes : NULL;
    sum.pixels = problem->pixels ? &p->transposed : NULL;
    sum.dots = p->dots;
    sum.depth = 0;
    sum.most_depth = p->most_depth;
    sum.b_step = p->dots ? 1 : td_conv_apply_b_row(p);
    sum.block = (td_gemm_block){
        .terms = sum.terms,
        .a_row = p->a_row,
        .a_col = 1,
        .b_row = td_conv_apply_b_row(p),
        .c = (char *)p->apply->result + (c + channel) * size,
        .c_row = p->c_row,
        .m = rows->rows,
        .n = (int)td_min64(left, td_min64(width, p->to_channels - at.panel * width)),
        .accumulate = p->apply->accumulate,
    };
    add_taps(p, &sum, &at, rows);
    if (p->apply->bias) {
        sum.block.bias = (const char *)p->apply->bias + channel * size;
    }
    sum.block.store =
        sum.block.accumulate ? TD_GEMM_STORE : p->store; /* not what is in the cache */
    td_conv_add_up(&sum); /* even without any term: pixels that meet no tap are written too */
}

int64_t td_conv_apply_workspace(const td_conv_apply *apply)
{
    td_conv_space space = { 0 };
    td_conv_apply_plan_make(apply, &space);
    return space.used;
}

void td_conv_apply_run(td_pool *pool, const td_conv_apply *apply, void *workspace)
{
    td_conv_space space = { .base = workspace };
    td_conv_apply_plan p = td_conv_apply_plan_make(apply, &space);
    int64_t panels = p.groups * p.panels;
    double work = (double)p.groups * (double)(p.depth * p.to_channels) *
                  (double)(p.h.size * p.w.size) * (double)apply->problem->n *
                  (double)(p.h.alive * p.w.alive);
    double weights = (double)panels * (double)(p.h.alive * p.w.alive * p.depth) *
                     (double)apply->problem->kernels->panel;
    if (work + (p.packed ? PACK_COST * weights : 0) < TD_GEMM_SERIAL_WORK) {
        pool = NULL;
    }
    if (p.packed) {
        td_pool_run(pool, panels * p.h.kernel * p.w.kernel, pack_task, &p);
    }
    int64_t blocks = p.block_count;
    td_task_fn task = p.lists ? td_conv_listed_task : td_conv_gathered_task;
    if (p.in_strips) {
        blocks *= p.strips.line_parts;
        task = td_conv_strip_task;
    } else if (!p.gathers && !p.lists) {
        blocks *= p.h.size * p.images;
        task = block_task;
    }
    p.turns = td_conv_turns(apply->problem, &p.h, &p.w, blocks, panels, td_pool_threads(pool));
    if (p.panels_first) {
        p.turns.parts = blocks;
    }
    td_pool_run(pool, panels * blocks, task, &p);
}
