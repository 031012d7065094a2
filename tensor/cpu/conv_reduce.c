/*
 * Backward-weights. docs/convolutions.md has the ideas.
 *
 * For every tap, dw (ic x oc) is x^T (ic x rows) times dy (rows x oc). A row is a pixel of an
 * image; the product takes the rows of dy that meet the tap, and the rows of x that they meet. dy
 * is cut into blocks of rows. In a block, the rows that meet a tap are a few runs, in which x and
 * dy both go on in equal steps: each run is a term of one product.
 *
 * A task computes a span of dw, which stays in the second-level cache, from a piece of the blocks,
 * which it reads once. The cut into pieces depends on the shapes only. If there are several pieces,
 * each has a partial result, and the partial results are added in order afterwards.
 *
 * Each span needs its channels of all rows of x and dy, and several spans need the same channels.
 * So with 1x1 taps there are stages: in each one all tasks go through the next few blocks, which
 * come from memory once and then from a cache.
 */
#include "tensor/cpu/conv_reduce.h"

#include <string.h>

enum {
    COMBINE = 16384, /* elements of dw in a task of combine_task */
};

static int64_t conv_reduce_size_of(const td_reduce_plan *p)
{
    return (int64_t)p->problem->kernels->size;
}

/* ---- rows ---- */

/* Runs of rows of x and of dy, as terms of a product. */
typedef struct run_list {
    td_gemm_term terms[TD_REDUCE_ROWS];
    int count;
    int64_t x_step, dy_step; /* bytes */
} run_list;

/* Adds k rows: to the last run, if they continue it. */
static void conv_reduce_add_run(run_list *runs, const char *x, const char *dy, int64_t k)
{
    td_gemm_term *last = runs->count > 0 ? &runs->terms[runs->count - 1] : NULL;
    if (last && (const char *)last->a + last->k * runs->x_step == x &&
        (const char *)last->b + last->k * runs->dy_step == dy) {
        last->k += k;
    } else {
        runs->terms[runs->count++] = (td_gemm_term){ x, dy, k };
    }
}

/* Rows [row, end) of dy. The first one lies at `dy`, and rows are dy_row elements apart. */
typedef struct row_block {
    int64_t row, end;
    const char *dy;
    int64_t dy_row;
} row_block;

/* Finds the runs of a block's rows that meet a tap. x_channel: the first channel of x. */
static void conv_reduce_find_runs(const td_reduce_plan *p, const row_block *b, int64_t x_channel,
                                  int kh, int kw, run_list *runs)
{
    const td_conv_problem *problem = p->problem;
    int64_t n = problem->n, size = conv_reduce_size_of(p), width = p->w.size, k;
    runs->count = 0;
    runs->x_step = p->a_col * size;
    runs->dy_step = b->dy_row * size;
    bool together = problem->w.stride == 1 || n == 1; /* pixels of a line follow each other */
    for (int64_t row = b->row, line_end; row < b->end; row = line_end) {
        int64_t line = row / (width * n), first = line * width * n; /* of y; its first row */
        line_end = td_min64(first + width * n, b->end);
        int64_t h = p->h.source[line * p->h.kernel + kh];
        int64_t end = h < 0 ? 0 : td_min64(first + p->w.end[kw] * n, line_end);
        int64_t at = first + p->w.first[kw] * n; /* the first row that meets the tap */
        at = at > row ? at : row;
        int64_t column = (at - first) / n, image = (at - first) % n;
        for (; at < end; at += k, column++, image = 0) {
            k = together ? end - at : td_min64(n - image, end - at);
            int64_t x = h * problem->x.row +
                        p->w.source[column * p->w.kernel + kw] * problem->x.column +
                        image * problem->x.image + x_channel;
            conv_reduce_add_run(runs, (const char *)p->reduce->x + x * size,
                                b->dy + (at - b->row) * b->dy_row * size, k);
        }
    }
}

/* ---- a task ---- */

/* A tile of dw: input channels [channel, channel + ic) of a group, and the output channels of a
 * panel. */
typedef struct tile {
    int64_t x_channel, y_channel; /* its first channels, counted through all groups */
    int64_t ic, oc, channel;
} tile;

static tile tile_at(const td_reduce_plan *p, int64_t group, int64_t panel, int64_t i)
{
    const td_conv_problem *problem = p->problem;
    int64_t unit = problem->kernels->rows, units = td_divide_up(problem->ic, unit);
    tile t = { .channel = td_min64(i * units / p->tiles * unit, problem->ic) };
    t.ic = td_min64((i + 1) * units / p->tiles * unit, problem->ic) - t.channel;
    t.y_channel = group * p->y_channels + panel * problem->kernels->panel;
    t.x_channel = group * p->x_channels + t.channel;
    t.oc = td_min64(problem->oc_all, (group + 1) * p->y_channels) - t.y_channel;
    t.oc = td_min64(t.oc, problem->kernels->panel);
    return t;
}

typedef struct work {
    const td_reduce_plan *plan;
    char *dw;
    bool overwrites;
    int64_t a_row[TD_REDUCE_TILE + 16], c_row[TD_REDUCE_TILE + 16];
    run_list runs;
    _Alignas(64) char packed[TD_REDUCE_ROWS * TD_GEMM_MAX_PANEL_BYTES];
} work;

static void conv_reduce_multiply(work *w, const tile *t, char *c, bool accumulate, int64_t b_row)
{
    const td_reduce_plan *p = w->plan;
    const td_conv_problem *problem = p->problem;
    td_gemm_block product = { .terms = w->runs.terms,
                              .count = w->runs.count,
                              .a_row = w->a_row,
                              .c_row = w->c_row,
                              .a_col = p->a_col,
                              .b_row = b_row,
                              .c = c,
                              .m = t->ic,
                              .n = (int)t->oc,
                              .accumulate = accumulate };
    if (problem->sharing > 0) {
        td_gemm_lanes lanes = p->lanes; /* the last group may have fewer channels */
        lanes.window = (int)(t->oc / problem->oc * problem->ic);
        problem->kernels->grouped_sums(&product, &lanes);
        return;
    }
    problem->kernels->block(&product);
}

/* Adds a block to a tile; `first`: nothing has been written yet. */
static void conv_reduce_add_block(work *w, const tile *t, const row_block *rows, bool first)
{
    const td_reduce_plan *p = w->plan;
    int64_t size = conv_reduce_size_of(p), row = p->problem->oc_all * size;
    for (int kh = 0; kh < p->h.kernel; kh++) {
        for (int kw = 0; kw < p->w.kernel; kw++) {
            if (p->h.rank[kh] < 0 || p->w.rank[kw] < 0) {
                continue; /* combine_task clears it */
            }
            int64_t tap = (int64_t)kh * p->w.kernel + kw;
            char *c = w->dw + (tap * p->problem->ic + t->channel) * row + t->y_channel * size;
            conv_reduce_find_runs(p, rows, t->x_channel, kh, kw, &w->runs);
            if (w->runs.count > 0) {
                conv_reduce_multiply(w, t, c, !(first && w->overwrites), rows->dy_row);
            }
            for (int64_t i = 0; first && w->overwrites && w->runs.count == 0 && i < t->ic; i++) {
                memset(c + i * row, 0, (size_t)(t->oc * size));
            }
        }
    }
}

/* A block of dy, in the columns of a tile's panel; packed if its rows are read often. */
static row_block conv_reduce_block_at(work *w, int64_t index, const tile *t)
{
    const td_reduce_plan *p = w->plan;
    int64_t size = conv_reduce_size_of(p), oc = p->problem->oc_all;
    row_block b = { .row = index * TD_REDUCE_ROWS, .dy_row = oc };
    b.end = td_min64(b.row + TD_REDUCE_ROWS, p->cut.rows);
    b.dy = (const char *)p->reduce->dy + (b.row * oc + t->y_channel) * size;
    if (p->packs) {
        p->problem->kernels->pack(w->packed, p->width, b.dy, b.end - b.row, t->oc, oc, 1);
        b.dy = w->packed;
        b.dy_row = p->width;
    }
    return b;
}

/* Groups, panels and tiles [first, end) of a task. */
typedef struct span {
    int64_t group, group_end, panel, panel_end, tile, tile_end;
} span;

static span span_at(const td_reduce_plan *p, int64_t index)
{
    int64_t across = td_divide_up(p->tiles, p->span.tiles);
    int64_t of_group = td_divide_up(p->panels, p->span.panels) * across;
    span s = { .group = index / of_group * p->span.groups,
               .panel = index % of_group / across * p->span.panels,
               .tile = index % across * p->span.tiles };
    s.group_end = td_min64(p->groups, s.group + p->span.groups);
    s.panel_end = td_min64(p->panels, s.panel + p->span.panels);
    s.tile_end = td_min64(p->tiles, s.tile + p->span.tiles);
    return s;
}

/* Adds a block of rows to all tiles of a span. */
static void add_to_span(work *w, const span *s, int64_t block, bool first)
{
    for (int64_t group = s->group; group < s->group_end; group++) {
        for (int64_t panel = s->panel; panel < s->panel_end; panel++) {
            tile t = tile_at(w->plan, group, panel, s->tile);
            row_block rows = conv_reduce_block_at(w, block, &t);
            for (int64_t i = s->tile; i < s->tile_end; i++) {
                t = tile_at(w->plan, group, panel, i);
                conv_reduce_add_block(w, &t, &rows, first);
            }
        }
    }
}

static void span_task(void *ctx, int64_t task)
{
    const td_reduce_plan *p = ctx;
    int64_t size = conv_reduce_size_of(p), piece = task / p->span.count;
    span s = span_at(p, task % p->span.count);
    work w;
    w.plan = p;
    w.overwrites = p->partial || !p->reduce->accumulate;
    w.dw = p->partial ? p->partial + piece * p->dw_size * size : p->reduce->dw;
    for (int64_t i = 0; i < TD_REDUCE_TILE + 16; i++) {
        w.a_row[i] = i * size;
        w.c_row[i] = i * p->problem->oc_all * size;
    }
    const td_reduce_cut *cut = &p->cut;
    int64_t begin = piece * cut->per_piece, end = td_min64(begin + cut->per_piece, cut->blocks);
    int64_t stage_end = td_min64(begin + cut->done + cut->stage, end);
    for (int64_t i = begin + cut->done; i < stage_end; i++) {
        add_to_span(&w, &s, i, i == begin);
    }
}

/* ---- clearing and adding up ---- */

/* Makes numbers zero. Those that are zero already are only read: pages that nobody has written stay
 * the system's page of zeros, so a gradient that is always zero takes no memory and no bandwidth.
 */
static void conv_reduce_clear(char *to, int64_t bytes)
{
    enum { PAGE = 4096 };
    for (int64_t at = 0; at < bytes; at += PAGE) {
        size_t count = (size_t)td_min64(PAGE, bytes - at);
        bool zero = to[at] == 0 && memcmp(to + at, to + at + 1, count - 1) == 0;
        if (!zero) {
            memset(to + at, 0, count);
        }
    }
}

/* Adds the partial results of some elements of a tap's dw; or clears them if the tap meets nothing.
 */
static void combine_task(void *ctx, int64_t task)
{
    const td_conv_combine *c = ctx;
    int64_t size = (int64_t)td_dtype_size(c->dtype), taps = (int64_t)c->h->kernel * c->w->kernel;
    int64_t of_tap = td_divide_up(c->tap_size, COMBINE), tap = task / of_tap;
    int64_t first = task % of_tap * COMBINE, count = td_min64(COMBINE, c->tap_size - first);
    first += tap * c->tap_size;
    char *dw = (char *)c->dw + first * size;
    if (c->h->rank[tap / c->w->kernel] < 0 || c->w->rank[tap % c->w->kernel] < 0) {
        if (!c->accumulate) {
            conv_reduce_clear(dw, count * size);
        }
        return;
    }
    for (int64_t piece = 0; c->partial && piece < c->pieces; piece++) {
        const char *from = (const char *)c->partial + (piece * taps * c->tap_size + first) * size;
        if (piece == 0 && !c->accumulate) {
            memcpy(dw, from, (size_t)(count * size));
        } else if (c->dtype == TD_F32) {
            for (int64_t i = 0; i < count; i++) {
                ((float *)dw)[i] += ((const float *)from)[i];
            }
        } else {
            for (int64_t i = 0; i < count; i++) {
                ((double *)dw)[i] += ((const double *)from)[i];
            }
        }
    }
}

void td_conv_combine_run(td_pool *pool, const td_conv_combine *c)
{
    int64_t taps = (int64_t)c->h->kernel * c->w->kernel;
    if (c->partial || (int64_t)c->h->alive * c->w->alive < taps) {
        td_pool_run(pool, taps * td_divide_up(c->tap_size, COMBINE), combine_task, (void *)c);
    }
}

/* ---- running ---- */

void td_conv_reduce_run(td_pool *pool, const td_conv_reduce *reduce, td_conv_space *space)
{
    td_reduce_plan p = td_reduce_plan_make(reduce, space);
    if (!space->base) {
        return;
    }
    const td_conv_problem *problem = p.problem;
    double products = (double)p.cut.rows * (double)(problem->ic * problem->oc_all) *
                      (double)p.h.alive * (double)p.w.alive;
    if (products < TD_GEMM_SERIAL_WORK) {
        pool = NULL;
    }
    td_reduce_cut *cut = &p.cut;
    for (cut->done = 0; cut->done < cut->per_piece && cut->blocks > 0; cut->done += cut->stage) {
        td_pool_run(pool, p.span.count * cut->pieces, span_task, &p);
    }
    /* Without images no tap meets any. */
    for (int kh = 0; cut->rows == 0 && kh < p.h.kernel; kh++) {
        p.h.rank[kh] = -1;
        p.h.alive = 0;
    }
    td_conv_combine_run(pool, &(td_conv_combine){ .dtype = problem->dtype,
                                                  .h = &p.h,
                                                  .w = &p.w,
                                                  .tap_size = problem->ic * problem->oc_all,
                                                  .dw = reduce->dw,
                                                  .partial = p.partial,
                                                  .pieces = p.cut.pieces,
                                                  .accumulate = reduce->accumulate });
}
