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
 * Where both would make blocks of a handful of rows, blocks are gathered: their sources, from
 * anywhere, are copied side by side before they are multiplied.
 */
#include "tensor/cpu/conv_internal.h"
#include "tensor/cpu/conv_order.h"

#include <string.h>

enum {
    BLOCK_ROWS = 64,   /* of the result */
    BLOCK_DEPTH = 128, /* channels of the source in a term */
    MAX_DEPTH = 128,   /* products in a partial sum: short sums are exact sums; and rows of B in a
                          call of the kernel: they must stay in the L1 cache */
    MAX_WIDTHS = 4,    /* a block of narrow rows has up to so many times more of them */
    MAX_TERMS = 64,
    PACK_MIN_ROWS = 192,       /* of the result, in all: packing the weights must pay */
    GATHER_ROWS = 48,          /* of a gathered block */
    PACK_COST = 8,             /* of a weight, in multiply-adds */
    SHORT_RUN = 12,            /* rows; below that a run wastes the weights that it reads */
    SMALL_WEIGHTS = 512 << 10, /* bytes that stay in the cache while all of them pass by */
};

/* Rows [row, row + rows) of the run of pixels that begins at `column`. */
typedef struct row_block {
    int64_t column;
    int64_t row, rows;
} row_block;

typedef struct plan {
    const td_conv_apply *apply;
    const td_conv_problem *problem;
    td_conv_taps h, w;
    int64_t images;  /* 1, or by picture: all of them, each with blocks of its own */
    int64_t per_run; /* pictures in a run: all of them, or by picture: 1 */
    int64_t apart;   /* from one pixel of a run to the next: 1, or the stride, where one in so many
                        meets the same taps */
    int step;        /* from one source pixel to the next then */
    td_conv_strides from, to;
    int64_t from_channels, to_channels; /* of one group */
    int64_t panels;                     /* of one group */
    bool panels_first;                  /* the panels of a block before other blocks */
    int64_t a_row, c_row;               /* from row to row of the source, of the result */
    int64_t block_rows;                 /* more of narrow ones */
    row_block *blocks;
    int64_t block_count; /* of a row of pixels; gathered: of all pixels */

    /* Where runs are short: all pixels, those that meet the same taps next to each other. */
    td_conv_order order;
    bool gathers;

    /* Panels of weights, [group][panel][tap that is alive][channel of the source][panel width];
     * NULL where the weights serve as they are. */
    char *packed;
} plan;

/* ---- the plan ---- */

/* Whether the rows of pixel q + apart go on where those of pixel q end, for all taps. */
static bool mergeable(const plan *p, int64_t q)
{
    bool beside = p->per_run == 1 || p->step * p->from.column == p->per_run * p->from.image;
    return beside && td_conv_taps_follow(&p->w, q, p->apart, p->step);
}

/* Cuts the rows of a run into blocks of about equal size, whole register blocks where possible. */
static void cut_run(plan *p, int64_t column, int64_t rows)
{
    int64_t unit = p->problem->kernels->rows * (p->block_rows > BLOCK_ROWS ? 2 : 1);
    int64_t pieces = td_divide_up(rows, p->block_rows);
    int64_t piece = td_divide_up(td_divide_up(rows, pieces), unit) * unit;
    for (int64_t row = 0; row < rows; row += piece) {
        p->blocks[p->block_count++] = (row_block){ column, row, td_min64(piece, rows - row) };
    }
}

static void cut_pixel_row(plan *p)
{
    for (int64_t first = 0; first < td_min64(p->apart, p->w.size); first++) {
        for (int64_t begin = first, pixels = 1, q = first; q < p->w.size; q += p->apart, pixels++) {
            if (!mergeable(p, q)) {
                cut_run(p, begin, pixels * p->per_run);
                begin = q + p->apart;
                pixels = 0;
            }
        }
    }
}

/* Few pictures whose pixels cannot be joined make short blocks, which read the weights too often.
 */
static bool may_gather(const plan *p)
{
    return p->problem->n < SHORT_RUN && p->h.size * p->w.size > 1;
}

/* Whether more than a third of a row's pixels are in short runs. */
static bool runs_are_short(const plan *p)
{
    int64_t in_short = 0, run = 0;
    for (int64_t first = 0; first < td_min64(p->apart, p->w.size); first++) {
        for (int64_t q = first; q < p->w.size; q += p->apart) {
            run++;
            if (!mergeable(p, q)) {
                in_short += run * p->per_run < SHORT_RUN ? run : 0;
                run = 0;
            }
        }
    }
    return 3 * in_short > p->w.size;
}

static void set_runs(plan *p, bool by_picture)
{
    p->per_run = by_picture ? 1 : p->problem->n;
    p->images = by_picture ? p->problem->n : 1;
    p->apart = p->apply->backward && by_picture ? p->problem->w.stride : 1;
}

/* Runs of a row of pixels, of all pictures. */
static int64_t count_runs(const plan *p)
{
    int64_t runs = 0;
    for (int64_t q = 0; q < p->w.size; q++) {
        runs += !mergeable(p, q);
    }
    return runs * p->images;
}

/* What makes fewer runs; the same rows are in either. */
static void choose_runs(plan *p)
{
    set_runs(p, false);
    int64_t together = count_runs(p);
    set_runs(p, true);
    if (p->problem->n > 1 && together <= count_runs(p)) {
        set_runs(p, false);
    }
}

static bool packs(const plan *p)
{
    const td_conv_problem *problem = p->problem;
    if (p->apply->backward) {
        return true; /* the weights are needed transposed */
    }
    bool one_panel = problem->oc_all <= problem->kernels->panel; /* is packed as it is */
    return !one_panel && p->h.size * p->w.size * problem->n >= PACK_MIN_ROWS;
}

static plan make_plan(const td_conv_apply *apply, td_conv_space *space)
{
    const td_conv_problem *problem = apply->problem;
    bool back = apply->backward;
    plan p = { .apply = apply, .problem = problem };
    p.h = td_conv_taps_make(&problem->h, back, space);
    p.w = td_conv_taps_make(&problem->w, back, space);
    p.step = back ? 1 : problem->w.stride;
    p.from = back ? problem->y : problem->x;
    p.to = back ? problem->x : problem->y;
    p.from_channels = back ? problem->oc : problem->ic;
    p.to_channels = back ? problem->ic : problem->oc;
    p.panels = td_divide_up(p.to_channels, problem->kernels->panel);
    int64_t taps = (int64_t)p.h.kernel * p.w.kernel;
    int64_t weights = taps * p.from_channels * p.to_channels * problem->groups;
    p.panels_first = weights * (int64_t)problem->kernels->size <= SMALL_WEIGHTS;
    int64_t widths = problem->kernels->panel / p.to_channels;
    p.block_rows = BLOCK_ROWS * (widths < 1 ? 1 : td_min64(widths, MAX_WIDTHS));
    int64_t most = p.w.size * td_divide_up(problem->n, p.block_rows);
    p.blocks = td_conv_take(space, most * (int64_t)sizeof *p.blocks);
    if (packs(&p)) {
        int64_t alive =
            space->base ? (int64_t)p.h.alive * p.w.alive : (int64_t)p.h.kernel * p.w.kernel;
        p.packed =
            td_conv_take(space, problem->groups * p.panels * alive * p.from_channels *
                                    problem->kernels->panel * (int64_t)problem->kernels->size);
    }
    if (may_gather(&p)) {
        p.order = (td_conv_order){ .h = p.h,
                                   .w = p.w,
                                   .step_h = back ? problem->h.stride : 1,
                                   .step_w = back ? problem->w.stride : 1,
                                   .n = problem->n,
                                   .most = GATHER_ROWS / problem->n };
        td_conv_order_take(&p.order, space);
    }
    if (!space->base) {
        return p;
    }
    choose_runs(&p);
    p.a_row = p.per_run == 1 ? p.step * p.from.column : p.from.image;
    p.c_row = p.per_run == 1 ? p.apart * p.to.column : p.to.image;
    p.gathers = p.order.pixels && runs_are_short(&p);
    if (p.gathers) {
        td_conv_order_pixels(&p.order);
        p.block_count = p.order.block_count;
    } else {
        cut_pixel_row(&p);
    }
    return p;
}

/* ---- weights ---- */

/* Element (tap, channel of y, channel of x) of the weights of a group, at 0 of both channels. */
static int64_t weight_at(const plan *p, int64_t group, int64_t tap)
{
    const td_conv_problem *problem = p->problem;
    return tap * problem->ic * problem->oc_all + group * problem->oc;
}

static int64_t packed_at(const plan *p, int64_t group, int64_t panel, int kh, int kw)
{
    int64_t tap = (int64_t)p->h.rank[kh] * p->w.alive + p->w.rank[kw];
    int64_t taps = (int64_t)p->h.alive * p->w.alive;
    return ((group * p->panels + panel) * taps + tap) * p->from_channels *
           p->problem->kernels->panel;
}

static void pack_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
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
    int64_t first = panel * kernels->panel;
    int64_t from = weight_at(p, group, (int64_t)kh * p->w.kernel + kw) + first * result_step;
    int64_t to = packed_at(p, group, panel, kh, kw);
    kernels->pack(p->packed + to * (int64_t)kernels->size,
                  (const char *)p->apply->weights + from * (int64_t)kernels->size, p->from_channels,
                  td_min64(kernels->panel, p->to_channels - first), source_step, result_step);
}

/* ---- the product ---- */

/* The sum that is being built for one block of the result. */
typedef struct term_sum {
    const td_gemm_kernels *kernels;
    td_gemm_block block;
    int64_t depth;
    td_gemm_term terms[MAX_TERMS];
} term_sum;

static void add_up(term_sum *sum)
{
    sum->kernels->block(&sum->block);
    sum->block.accumulate = true;
    sum->block.count = 0;
    sum->depth = 0;
}

/* Adds A (rows x depth) times B to the sum, in terms that are not too deep. */
static void add_product(term_sum *sum, const char *a, const char *b, int64_t depth)
{
    int64_t size = (int64_t)sum->kernels->size;
    for (int64_t k0 = 0; k0 < depth; k0 += BLOCK_DEPTH) {
        int64_t k = td_min64(BLOCK_DEPTH, depth - k0);
        if (sum->depth + k > MAX_DEPTH || sum->block.count == MAX_TERMS) {
            add_up(sum);
        }
        sum->terms[sum->block.count++] =
            (td_gemm_term){ a + k0 * size, b + k0 * sum->block.b_row * size, k };
        sum->depth += k;
    }
}

/* The panel of weights of a tap. */
static const char *weights_of(const plan *p, int64_t group, int64_t panel, int kh, int kw)
{
    const td_gemm_kernels *kernels = p->problem->kernels;
    if (p->packed) {
        return p->packed + packed_at(p, group, panel, kh, kw) * (int64_t)kernels->size;
    }
    int64_t at = weight_at(p, group, (int64_t)kh * p->w.kernel + kw) + panel * kernels->panel;
    return (const char *)p->apply->weights + at * (int64_t)kernels->size;
}

/* What a task computes. */
typedef struct place {
    int64_t block, image, pixel_row, panel, group;
} place;

static void add_taps(const plan *p, term_sum *sum, const place *at, const row_block *rows)
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
                        weights_of(p, at->group, at->panel, kh, kw), p->from_channels);
        }
    }
}

/* The blocks of a panel follow each other, so that its weights stay in the cache; but if all
 * weights do, the panels of a block, so that its source is read and its result written once. */
static place place_of(const plan *p, int64_t task, int64_t pixel_rows, int64_t images)
{
    int64_t blocks = p->block_count * images * pixel_rows, panels = p->panels * p->problem->groups;
    int64_t panel = p->panels_first ? task % panels : task / blocks;
    int64_t block = p->panels_first ? task / panels : task % blocks;
    return (place){ block % p->block_count, block / p->block_count % images,
                    block / p->block_count / images, panel % p->panels, panel / p->panels };
}

static void block_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    const td_conv_problem *problem = p->problem;
    int64_t size = (int64_t)problem->kernels->size, width = problem->kernels->panel;
    place at = place_of(p, task, p->h.size, p->images);
    const row_block *rows = &p->blocks[at.block];
    int64_t channel = at.group * p->to_channels + at.panel * width;
    int64_t c = at.pixel_row * p->to.row + at.image * p->to.image + rows->column * p->to.column +
                rows->row * p->c_row;

    term_sum sum = { .kernels = problem->kernels };
    sum.block = (td_gemm_block){
        .terms = sum.terms,
        .a_row = p->a_row,
        .a_col = 1,
        .b_row = p->packed ? width : problem->oc_all,
        .c = (char *)p->apply->result + (c + channel) * size,
        .c_row = p->c_row,
        .m = rows->rows,
        .n = (int)td_min64(width, p->to_channels - at.panel * width),
        .accumulate = p->apply->accumulate,
    };
    add_taps(p, &sum, &at, rows);
    if (p->apply->bias) {
        sum.block.bias = (const char *)p->apply->bias + channel * size;
    }
    add_up(&sum); /* even without any term: pixels that meet no tap are written too */
}

/* ---- gathered blocks ---- */

/* Pixels [first, first + count) of the order, in one group and panel. Their sources are copied side
 * by side, with zeros where a pixel does not meet a tap, and the sums are copied back. */
typedef struct gathered {
    const plan *plan;
    int64_t group, panel;
    const int32_t *pixels;
    int64_t count;
    term_sum sum;
    _Alignas(64) char source[GATHER_ROWS * MAX_DEPTH * sizeof(double)]; /* MAX_DEPTH a row */
    _Alignas(64) char result[GATHER_ROWS * TD_GEMM_MAX_PANEL_BYTES];
} gathered;

/* Copies `bytes` for every picture of every pixel, between rows of the block and of the result. */
static void copy_result(gathered *g, bool to_block)
{
    const plan *p = g->plan;
    int64_t n = p->problem->n, size = (int64_t)p->problem->kernels->size;
    int64_t channel = g->group * p->to_channels + g->panel * p->problem->kernels->panel;
    int64_t bytes = g->sum.block.n * size, row_bytes = g->sum.block.c_row * size;
    for (int64_t row = 0; row < g->count * n; row++) {
        int64_t pixel = g->pixels[row / n];
        int64_t at = pixel / p->w.size * p->to.row + pixel % p->w.size * p->to.column +
                     row % n * p->to.image + channel;
        char *result = (char *)p->apply->result + at * size;
        char *block = g->result + row * row_bytes;
        memcpy(to_block ? block : result, to_block ? result : block, (size_t)bytes);
    }
}

/* Whether some pixel of the block meets the tap. */
static bool meets(const gathered *g, int kh, int kw)
{
    const plan *p = g->plan;
    for (int64_t i = 0; i < g->count; i++) {
        if (p->h.source[g->pixels[i] / p->w.size * p->h.kernel + kh] >= 0 &&
            p->w.source[g->pixels[i] % p->w.size * p->w.kernel + kw] >= 0) {
            return true;
        }
    }
    return false;
}

/* Channels [k0, k0 + k) of the source at a tap, into column `to` of the block. */
static void copy_source(gathered *g, int kh, int kw, int64_t k0, int64_t k, int64_t to)
{
    const plan *p = g->plan;
    int64_t n = p->problem->n, size = (int64_t)p->problem->kernels->size;
    for (int64_t i = 0; i < g->count; i++) {
        int32_t h = p->h.source[g->pixels[i] / p->w.size * p->h.kernel + kh];
        int32_t w = p->w.source[g->pixels[i] % p->w.size * p->w.kernel + kw];
        int64_t at = h * p->from.row + w * p->from.column + g->group * p->from_channels + k0;
        char *block = g->source + (i * n * MAX_DEPTH + to) * size;
        for (int64_t image = 0; image < n; image++, block += MAX_DEPTH * size) {
            if (h < 0 || w < 0) {
                memset(block, 0, (size_t)(k * size));
            } else {
                const char *from = (const char *)p->apply->source + at * size;
                memcpy(block, from + image * p->from.image * size, (size_t)(k * size));
            }
        }
    }
}

static void gather_taps(gathered *g)
{
    const plan *p = g->plan;
    int64_t size = (int64_t)p->problem->kernels->size;
    for (int kh = 0; kh < p->h.kernel; kh++) {
        for (int kw = 0; kw < p->w.kernel; kw++) {
            if (!meets(g, kh, kw)) {
                continue;
            }
            const char *b = weights_of(p, g->group, g->panel, kh, kw);
            for (int64_t k0 = 0, k; k0 < p->from_channels; k0 += k) {
                k = td_min64(MAX_DEPTH - g->sum.depth, p->from_channels - k0);
                copy_source(g, kh, kw, k0, k, g->sum.depth);
                g->sum.terms[g->sum.block.count++] =
                    (td_gemm_term){ g->source + g->sum.depth * size,
                                    b + k0 * g->sum.block.b_row * size, k };
                g->sum.depth += k;
                if (g->sum.depth == MAX_DEPTH || g->sum.block.count == MAX_TERMS) {
                    add_up(&g->sum);
                }
            }
        }
    }
}

static void gathered_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    const td_conv_problem *problem = p->problem;
    int64_t width = problem->kernels->panel, size = (int64_t)problem->kernels->size;
    place at = place_of(p, task, 1, 1);
    gathered g;
    g.plan = p;
    g.panel = at.panel;
    g.group = at.group;
    g.pixels = p->order.pixels + p->order.blocks[at.block].first;
    g.count = p->order.blocks[at.block].count;
    g.sum.kernels = problem->kernels;
    g.sum.depth = 0;
    g.sum.block = (td_gemm_block){
        .terms = g.sum.terms,
        .a_row = MAX_DEPTH,
        .a_col = 1,
        .b_row = p->packed ? width : problem->oc_all,
        .c = g.result,
        .c_row = width,
        .m = g.count * problem->n,
        .n = (int)td_min64(width, p->to_channels - g.panel * width),
        .accumulate = p->apply->accumulate,
    };
    if (p->apply->accumulate) {
        copy_result(&g, true);
    }
    gather_taps(&g);
    if (p->apply->bias) {
        int64_t channel = g.group * p->to_channels + g.panel * width;
        g.sum.block.bias = (const char *)p->apply->bias + channel * size;
    }
    add_up(&g.sum); /* even without any term: pixels that meet no tap are written too */
    copy_result(&g, false);
}

int64_t td_conv_apply_workspace(const td_conv_apply *apply)
{
    td_conv_space space = { 0 };
    make_plan(apply, &space);
    return space.used;
}

void td_conv_apply_run(td_pool *pool, const td_conv_apply *apply, void *workspace)
{
    td_conv_space space = { .base = workspace };
    plan p = make_plan(apply, &space);
    int64_t panels = apply->problem->groups * p.panels;
    double work = (double)apply->problem->groups * (double)(p.from_channels * p.to_channels) *
                  (double)(p.h.size * p.w.size) * (double)apply->problem->n *
                  (double)(p.h.alive * p.w.alive);
    double weights = (double)panels * (double)(p.h.alive * p.w.alive * p.from_channels) *
                     (double)apply->problem->kernels->panel;
    if (work + (p.packed ? PACK_COST * weights : 0) < TD_GEMM_SERIAL_WORK) {
        pool = NULL;
    }
    if (p.packed) {
        td_pool_run(pool, panels * p.h.kernel * p.w.kernel, pack_task, &p);
    }
    if (p.gathers) {
        td_pool_run(pool, panels * p.block_count, gathered_task, &p);
    } else {
        td_pool_run(pool, panels * p.h.size * p.images * p.block_count, block_task, &p);
    }
}
