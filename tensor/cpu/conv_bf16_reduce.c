/*
 * Backward-weights in bf16: for every tap, dw (ic x oc) is the sum over pixels of x^T (ic x n)
 * times dy (n x oc). The inner dimension of these products is the pictures, so x is packed turned,
 * and dy in pairs of pictures: in blocks of 32 pictures by 32 channels, a part of them at a time
 * ("slab"), which stays in the L2 cache while the tiles of dw pass by.
 *
 * A block holds 32 pictures at one pixel. With fewer pictures it would be mostly empty, and zeros
 * would be multiplied. Then a block holds 32 of all pictures at all pixels of a row, pixel after
 * pixel ("whole rows"). Pixel q of y meets pixel q + tap of x, so x is packed once for each
 * horizontal tap, shifted by it, with zeros where the shifted row leaves the image.
 */
#include "tensor/cpu/conv_bf16_reduce.h"

#include <string.h>

enum {
    MAX_TERMS = 96,
    SLAB_BYTES = 1 << 20, /* of packed x and dy; half of an L2 cache */
};

/* ---- the plan ---- */

/* The rows of x that `rows` rows of y reach over. */
static int64_t reach(const td_bf16_reduce *p, int64_t rows)
{
    const td_conv_axis *h = &p->problem.h;
    int64_t reach = (rows - 1) * h->stride + (int64_t)(h->kernel - 1) * h->dilation + 1;
    return td_min64(reach, h->in);
}

static int64_t x_elements(const td_bf16_reduce *p)
{
    return p->problem.groups * p->ic_blocks * p->planes * reach(p, p->slab.most_y_rows) *
           p->packed_x.width * p->slab.most_blocks * TD_BF16_STEP;
}

static int64_t dy_elements(const td_bf16_reduce *p)
{
    return p->problem.groups * p->panels * p->slab.most_y_rows * p->packed_dy.width *
           p->slab.most_blocks * TD_BF16_STEP;
}

static void choose_slab(td_bf16_reduce *p)
{
    int64_t limit = SLAB_BYTES / (int64_t)sizeof(td_bf16) / (p->split ? 2 : 1);
    p->slab.most_blocks = p->blocks;
    p->slab.most_y_rows = p->problem.h.out;
    while (!p->whole_rows && p->slab.most_blocks > 1 && x_elements(p) + dy_elements(p) > limit) {
        p->slab.most_blocks = td_divide_up(p->slab.most_blocks, 2);
    }
    int64_t least = 4 * (int64_t)p->problem.h.kernel; /* what rows overlap is packed twice */
    while (p->slab.most_y_rows > least && x_elements(p) + dy_elements(p) > limit) {
        p->slab.most_y_rows = td_divide_up(p->slab.most_y_rows, 2);
    }
    p->slab.most_x_rows = reach(p, p->slab.most_y_rows);
}

static void bf16_reduce_make_plan(td_bf16_reduce *p, const td_conv2d_call *call,
                                  td_conv_space *space)
{
    const td_conv2d_desc *d = call->desc;
    bool rows = td_bf16_uses_rows(d);
    p->problem = td_bf16_problem(d, rows);
    p->split = d->dtype == TD_F32;
    p->x = (td_bf16_view){ call->x, d->dtype, p->problem.x, 0 };
    p->dy = (td_bf16_view){ call->y, d->dtype, p->problem.y, 0 };
    if (rows) {
        p->rows = td_bf16_rows_plan(call->x, d, space);
        p->x = (td_bf16_view){ (const char *)p->rows.data, TD_BF16, p->rows.at, p->rows.low };
    }
    const td_conv_axis *w = &p->problem.w;
    p->h = td_conv_taps_make(&p->problem.h, false, space);
    p->w = td_conv_taps_make(w, false, space);
    p->used_h = td_conv_take(space, p->problem.h.in);
    p->used_w = td_conv_take(space, w->in);
    int64_t by_pixel = td_divide_up(p->problem.n, TD_BF16_BLOCK) * td_conv_meetings(w);
    int64_t by_row = td_divide_up(p->problem.n * w->out, TD_BF16_BLOCK) * w->kernel;
    p->whole_rows = by_row + by_row / 8 < by_pixel; /* an eighth for the packing of several x */
    p->planes = p->whole_rows ? w->kernel : 1;
    p->packed_x.width = p->whole_rows ? 1 : w->in;
    p->packed_dy.width = p->whole_rows ? 1 : w->out;
    p->blocks = td_divide_up(p->problem.n * (p->whole_rows ? w->out : 1), TD_BF16_BLOCK);
    p->ic_blocks = td_divide_up(p->problem.ic, TD_BF16_BLOCK);
    p->panels = td_divide_up(p->problem.oc, TD_BF16_BLOCK);
    choose_slab(p);
    p->packed_x.low = p->split ? x_elements(p) : 0;
    p->packed_dy.low = p->split ? dy_elements(p) : 0;
    int64_t size = (int64_t)sizeof(td_bf16);
    p->packed_x.data = td_conv_take(space, (x_elements(p) + p->packed_x.low) * size);
    p->packed_dy.data = td_conv_take(space, (dy_elements(p) + p->packed_dy.low) * size);
}

static void mark_used(const td_conv_taps *taps, uint8_t *used, int64_t size)
{
    memset(used, 0, (size_t)size);
    for (int64_t i = 0; i < taps->size * taps->kernel; i++) {
        if (taps->source[i] >= 0) {
            used[taps->source[i]] = 1;
        }
    }
}

/* ---- the product ---- */

/* The sum of one tile of dw, as its terms are found. */
typedef struct tile_sum {
    const td_bf16_reduce *plan;
    td_gemm_block block;
    int64_t a_row[TD_BF16_BLOCK], c_row[TD_BF16_BLOCK];
    td_gemm_term terms[MAX_TERMS];
} tile_sum;

static void bf16_reduce_add_up(tile_sum *sum)
{
    sum->plan->problem.kernels->block(&sum->block);
    sum->block.accumulate = true;
    sum->block.count = 0;
}

/* `blocks` of 32 pictures. */
static void add_terms(tile_sum *sum, const td_bf16 *a, const td_bf16 *b, int64_t blocks)
{
    const td_bf16_reduce *p = sum->plan;
    for (int64_t i = 0; i < blocks; i++, a += TD_BF16_STEP, b += TD_BF16_STEP) {
        if (sum->block.count > MAX_TERMS - TD_BF16_TERMS) {
            bf16_reduce_add_up(sum);
        }
        sum->block.count += td_bf16_terms(&sum->terms[sum->block.count], a, p->packed_x.low, b,
                                          p->packed_dy.low, TD_BF16_BLOCK);
    }
}

static void add_rows(const td_bf16_reduce *p, tile_sum *sum, int64_t channels, int64_t panel,
                     int kh, int kw)
{
    for (int64_t row = p->slab.y_row; row < p->slab.y_row + p->slab.y_rows; row++) {
        int32_t source_h = p->h.source[row * p->h.kernel + kh];
        for (int64_t unit = 0; unit < p->packed_dy.width && source_h >= 0; unit++) {
            int32_t source_w = p->whole_rows ? 0 : p->w.source[unit * p->w.kernel + kw];
            if (source_w >= 0) {
                add_terms(sum,
                          td_bf16_reduce_x(p, channels, p->whole_rows ? kw : 0, source_h, source_w),
                          td_bf16_reduce_dy(p, panel, row, unit), p->slab.blocks);
            }
        }
    }
}

/* One tap of one tile of dw. */
static void tile_task(void *ctx, int64_t task)
{
    const td_bf16_reduce *p = ctx;
    const td_conv_problem *problem = &p->problem;
    int64_t taps = (int64_t)p->h.kernel * p->w.kernel;
    int64_t tap = task % taps;
    int64_t panel = task / taps % p->panels;
    int64_t ic_block = task / taps / p->panels % p->ic_blocks;
    int64_t group = task / taps / p->panels / p->ic_blocks;
    int kh = (int)(tap / p->w.kernel), kw = (int)(tap % p->w.kernel);
    int64_t ic = ic_block * TD_BF16_BLOCK, oc = panel * TD_BF16_BLOCK;
    tile_sum sum; /* the tables of terms are filled as they are needed */
    sum.plan = p;
    sum.block = (td_gemm_block){
        .terms = sum.terms,
        .a_row = sum.a_row,
        .c_row = sum.c_row,
        .a_col = 1,
        .b_row = TD_BF16_BLOCK,
        .m = td_min64(TD_BF16_BLOCK, problem->ic - ic),
        .n = (int)td_min64(TD_BF16_BLOCK, problem->oc - oc),
        .c = p->dw + (tap * problem->ic + ic) * problem->oc_all + group * problem->oc + oc,
        .dtype = TD_F32,
        .accumulate = p->accumulate || !p->slab.first,
    };
    for (int64_t i = 0; i < TD_BF16_BLOCK; i++) {
        sum.a_row[i] = i * TD_BF16_BLOCK * (int64_t)sizeof(td_bf16);
        sum.c_row[i] = i * problem->oc_all * (int64_t)sizeof *p->dw;
    }
    if (p->h.rank[kh] >= 0 && p->w.rank[kw] >= 0) {
        add_rows(p, &sum, group * p->ic_blocks + ic_block, group * p->panels + panel, kh, kw);
    }
    bool alive = p->h.rank[kh] >= 0 && p->w.rank[kw] >= 0;
    if (sum.block.count > 0 || (alive && !sum.block.accumulate)) {
        bf16_reduce_add_up(&sum);
    }
    if (problem->kernels->end) {
        problem->kernels->end();
    }
}

/* ---- running ---- */

static void run_slab(td_pool *pool, td_bf16_reduce *p)
{
    const td_conv_problem *problem = &p->problem;
    const td_conv_axis *h = &problem->h;
    td_bf16_slab *s = &p->slab;
    int64_t top = s->y_row * h->stride - h->pad;
    int64_t bottom = top + (s->y_rows - 1) * h->stride + (int64_t)(h->kernel - 1) * h->dilation + 1;
    s->x_row = top > 0 ? td_min64(top, h->in) : 0;
    s->x_rows = td_min64(bottom, h->in) - s->x_row;
    s->x_rows = s->x_rows > 0 ? s->x_rows : 0;
    td_pool_run(pool, td_bf16_reduce_x_tasks(p) + problem->groups * p->panels * s->y_rows,
                td_bf16_reduce_pack, p);
    int64_t tiles = problem->groups * p->ic_blocks * p->panels;
    td_pool_run(pool, tiles * p->h.kernel * p->w.kernel, tile_task, p);
    s->first = false;
}

static void run_slabs(td_pool *pool, td_bf16_reduce *p)
{
    td_bf16_slab *s = &p->slab;
    for (s->block = 0; s->block < p->blocks; s->block += s->most_blocks) {
        s->blocks = td_min64(s->most_blocks, p->blocks - s->block);
        for (s->y_row = 0; s->y_row < p->h.size; s->y_row += s->most_y_rows) {
            s->y_rows = td_min64(s->most_y_rows, p->h.size - s->y_row);
            run_slab(pool, p);
        }
    }
}

void td_conv_bf16_reduce_run(td_pool *pool, const td_conv2d_call *call, td_conv_space *space)
{
    td_bf16_reduce p = { .dw = (float *)call->w,
                         .accumulate = call->accumulate,
                         .slab.first = true };
    bf16_reduce_make_plan(&p, call, space);
    if (!space->base) {
        return;
    }
    mark_used(&p.h, p.used_h, p.problem.h.in);
    mark_used(&p.w, p.used_w, p.problem.w.in);
    double work = (double)(p.h.size * p.w.size) * (double)(p.problem.n * p.problem.groups) *
                  (double)(p.problem.ic * p.problem.oc) * (double)(p.h.alive * p.w.alive);
    if (work < TD_GEMM_SERIAL_WORK) {
        pool = NULL;
    }
    td_bf16_pictures_run(pool, &p.rows);
    run_slabs(pool, &p);
    td_conv_combine_run(pool, &(td_conv_combine){ .dtype = TD_F32,
                                                  .h = &p.h,
                                                  .w = &p.w,
                                                  .tap_size = p.problem.ic * p.problem.oc_all,
                                                  .dw = (void *)call->w,
                                                  .accumulate = call->accumulate });
}
