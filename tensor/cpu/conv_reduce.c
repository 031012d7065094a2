/*
 * Backward-weights: for every tap, dw (ic x oc) is the sum over pixels of x^T (ic x n) times dy
 * (n x oc). With pixels and pictures taken as one long list of rows, it is one product whose inner
 * dimension is that list, and for each tap the rows whose pixel does not exist are left out.
 *
 * The result is cut into tiles, some input channels times one panel of output channels, all taps.
 * Where there are too few tiles to go round, the list of rows is cut as well, at places that depend
 * on the shapes only; the pieces make partial results, which are added in order afterwards.
 */
#include "tensor/cpu/conv_internal.h"

#include <string.h>

enum {
    BLOCK_ROWS = 128, /* rows of dy that the taps share while they are in the L1 cache */
    TILE_CHANNELS = 64,
    WANTED_TASKS = 32,
    MIN_BLOCKS = 4, /* blocks of rows in a piece, so that a partial result is worth its memory */
    MAX_PANEL_BYTES = 256,
};

typedef struct plan {
    const td_conv_reduce *reduce;
    const td_conv_problem *problem;
    td_conv_taps h, w;
    int64_t rows;             /* of dy: pixels times pictures */
    int64_t a_col;            /* from row to row of x, within a run */
    int64_t panels;           /* of a group's output channels */
    int64_t tiles;            /* of a group's input channels */
    int64_t pieces;           /* of the rows */
    int64_t blocks_per_piece; /* whole blocks; the last piece may have fewer */
    char *partial;            /* [piece][tap that is alive][ic][oc of all groups], or NULL: dw */
} plan;

static plan make_plan(const td_conv_reduce *reduce, td_conv_space *space)
{
    const td_conv_problem *problem = reduce->problem;
    plan p = { .reduce = reduce, .problem = problem };
    p.h = td_conv_taps_make(&problem->h, false, space);
    p.w = td_conv_taps_make(&problem->w, false, space);
    p.rows = p.h.size * p.w.size * problem->n;
    p.a_col = problem->n == 1 ? problem->w.stride * problem->x.column : problem->x.image;
    p.panels = td_divide_up(problem->oc, problem->kernels->panel);
    p.tiles = td_divide_up(problem->ic, TILE_CHANNELS);

    int64_t blocks = td_divide_up(p.rows, BLOCK_ROWS);
    int64_t wanted = td_divide_up(WANTED_TASKS, problem->groups * p.panels * p.tiles);
    int64_t pieces = td_min64(wanted, blocks / MIN_BLOCKS);
    p.blocks_per_piece = td_divide_up(blocks, pieces > 1 ? pieces : 1);
    p.pieces = pieces > 1 ? td_divide_up(blocks, p.blocks_per_piece) : 1;
    if (p.pieces > 1) {
        int64_t alive =
            space->base ? (int64_t)p.h.alive * p.w.alive : (int64_t)p.h.kernel * p.w.kernel;
        p.partial = td_conv_take(space, p.pieces * alive * problem->ic * problem->oc_all *
                                            (int64_t)problem->kernels->size);
    }
    return p;
}

/* ---- one piece of one tile ---- */

typedef struct tile {
    const plan *plan;
    int64_t group, panel, channel; /* channel: first input channel in the group */
    int64_t piece;
    int64_t ic, oc; /* size */
} tile;

/* Where the tile of a tap lies: in dw, or in the partial result of the piece. */
static char *tile_at(const tile *t, int kh, int kw)
{
    const plan *p = t->plan;
    const td_conv_problem *problem = p->problem;
    int64_t size = (int64_t)problem->kernels->size;
    int64_t tap = (int64_t)kh * p->w.kernel + kw;
    char *base = p->reduce->dw;
    if (p->partial) {
        int64_t alive = (int64_t)p->h.alive * p->w.alive;
        tap = t->piece * alive + (int64_t)p->h.rank[kh] * p->w.alive + p->w.rank[kw];
        base = p->partial;
    }
    int64_t column = t->group * problem->oc + t->panel * problem->kernels->panel;
    return base + ((tap * problem->ic + t->channel) * problem->oc_all + column) * size;
}

static bool alive(const plan *p, int kh, int kw)
{
    return p->h.rank[kh] >= 0 && p->w.rank[kw] >= 0;
}

static void clear_tile(const tile *t)
{
    const plan *p = t->plan;
    int64_t size = (int64_t)p->problem->kernels->size;
    for (int kh = 0; kh < p->h.kernel; kh++) {
        for (int kw = 0; kw < p->w.kernel; kw++) {
            if (p->partial && !alive(p, kh, kw)) {
                continue;
            }
            char *to = tile_at(t, kh, kw);
            for (int64_t c = 0; c < t->ic; c++) {
                memset(to + c * p->problem->oc_all * size, 0, (size_t)(t->oc * size));
            }
        }
    }
}

/* A block of rows of dy: where its panel lies, and from row to row. */
typedef struct row_block {
    int64_t begin, end;
    const char *dy;
    int64_t dy_row;
} row_block;

/* Finds the rows of the block whose pixel exists at the tap, as runs of x beside runs of dy. */
static int runs_of_tap(const tile *t, const row_block *rows, int kh, int kw, td_gemm_term *terms)
{
    const plan *p = t->plan;
    const td_conv_problem *problem = p->problem;
    int64_t size = (int64_t)problem->kernels->size;
    const char *x = (const char *)p->reduce->x + (t->group * problem->ic + t->channel) * size;
    const char *next_x = NULL, *next_dy = NULL; /* where a run would go on */
    int count = 0;
    for (int64_t row = rows->begin; row < rows->end;) {
        int64_t pixel = row / problem->n, image = row % problem->n;
        int64_t k = td_min64(problem->n - image, rows->end - row);
        int32_t source_h = p->h.source[pixel / p->w.size * p->h.kernel + kh];
        int32_t source_w = p->w.source[pixel % p->w.size * p->w.kernel + kw];
        if (source_h >= 0 && source_w >= 0) {
            const char *a = x + (source_h * problem->x.row + source_w * problem->x.column +
                                 image * problem->x.image) *
                                    size;
            const char *b = rows->dy + (row - rows->begin) * rows->dy_row * size;
            if (a == next_x && b == next_dy) {
                terms[count - 1].k += k;
            } else {
                terms[count++] = (td_gemm_term){ a, b, k };
            }
            next_x = a + k * p->a_col * size;
            next_dy = b + k * rows->dy_row * size;
        }
        row += k;
    }
    return count;
}

static void add_block(const tile *t, const row_block *rows)
{
    const plan *p = t->plan;
    td_gemm_term terms[BLOCK_ROWS];
    td_gemm_block block = {
        .terms = terms,
        .a_row = 1,
        .a_col = p->a_col,
        .b_row = rows->dy_row,
        .c_row = p->problem->oc_all,
        .m = t->ic,
        .n = (int)t->oc,
        .accumulate = true,
    };
    for (int kh = 0; kh < p->h.kernel; kh++) {
        for (int kw = 0; kw < p->w.kernel; kw++) {
            if (!alive(p, kh, kw)) {
                continue;
            }
            block.count = runs_of_tap(t, rows, kh, kw, terms);
            if (block.count > 0) {
                block.c = tile_at(t, kh, kw);
                p->problem->kernels->block(&block);
            }
        }
    }
}

static void tile_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    const td_conv_problem *problem = p->problem;
    int64_t size = (int64_t)problem->kernels->size, width = problem->kernels->panel;
    tile t = { .plan = p };
    t.piece = task % p->pieces;
    t.channel = task / p->pieces % p->tiles * TILE_CHANNELS;
    t.panel = task / p->pieces / p->tiles % p->panels;
    t.group = task / p->pieces / p->tiles / p->panels;
    t.ic = td_min64(TILE_CHANNELS, problem->ic - t.channel);
    t.oc = td_min64(width, problem->oc - t.panel * width);
    if (p->partial || !p->reduce->accumulate) {
        clear_tile(&t);
    }

    _Alignas(64) char packed[BLOCK_ROWS * MAX_PANEL_BYTES];
    int64_t begin = t.piece * p->blocks_per_piece * BLOCK_ROWS;
    int64_t end = td_min64(p->rows, begin + p->blocks_per_piece * BLOCK_ROWS);
    int64_t column = t.group * problem->oc + t.panel * width;
    for (int64_t row = begin; row < end; row += BLOCK_ROWS) {
        row_block rows = { row, td_min64(row + BLOCK_ROWS, end), NULL, problem->oc_all };
        rows.dy = (const char *)p->reduce->dy + (row * problem->oc_all + column) * size;
        if (problem->oc_all > width) { /* dense rows stay in the cache better */
            problem->kernels->pack(packed, rows.dy, rows.end - rows.begin, t.oc, problem->oc_all,
                                   1);
            rows.dy = packed;
            rows.dy_row = width;
        }
        add_block(&t, &rows);
    }
}

/* ---- partial results ---- */

enum { COMBINE_ROWS = 16 };

/* dw[i] = (accumulate ? dw[i] : 0) + the pieces in order, `step` apart. */
#define COMBINE(name, elem)                                                                        \
    static void name(elem *restrict dw, const elem *restrict partial, int64_t count,               \
                     int64_t pieces, int64_t step, bool accumulate)                                \
    {                                                                                              \
        if (!accumulate) {                                                                         \
            memcpy(dw, partial, (size_t)count * sizeof *dw);                                       \
        }                                                                                          \
        for (int64_t p = accumulate ? 0 : 1; p < pieces; p++) {                                    \
            for (int64_t i = 0; i < count; i++) {                                                  \
                dw[i] += partial[p * step + i];                                                    \
            }                                                                                      \
        }                                                                                          \
    }

COMBINE(combine_f32, float)
COMBINE(combine_f64, double)

/* Some rows (input channels) of one tap of dw. */
static void combine_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    const td_conv_problem *problem = p->problem;
    int64_t size = (int64_t)problem->kernels->size;
    int64_t blocks = td_divide_up(problem->ic, COMBINE_ROWS);
    int64_t first = task % blocks * COMBINE_ROWS;
    int64_t tap = task / blocks;
    int kh = (int)(tap / p->w.kernel), kw = (int)(tap % p->w.kernel);
    int64_t count = td_min64(COMBINE_ROWS, problem->ic - first) * problem->oc_all;
    char *dw = (char *)p->reduce->dw + (tap * problem->ic + first) * problem->oc_all * size;
    if (!alive(p, kh, kw)) {
        if (!p->reduce->accumulate) {
            memset(dw, 0, (size_t)(count * size));
        }
        return;
    }
    int64_t tap_size = problem->ic * problem->oc_all;
    int64_t rank = (int64_t)p->h.rank[kh] * p->w.alive + p->w.rank[kw];
    int64_t step = (int64_t)p->h.alive * p->w.alive * tap_size;
    const char *partial = p->partial + (rank * tap_size + first * problem->oc_all) * size;
    if (problem->dtype == TD_F32) {
        combine_f32((float *)dw, (const float *)partial, count, p->pieces, step,
                    p->reduce->accumulate);
    } else {
        combine_f64((double *)dw, (const double *)partial, count, p->pieces, step,
                    p->reduce->accumulate);
    }
}

int64_t td_conv_reduce_workspace(const td_conv_reduce *reduce)
{
    td_conv_space space = { 0 };
    make_plan(reduce, &space);
    return space.used;
}

void td_conv_reduce_run(td_pool *pool, const td_conv_reduce *reduce, void *workspace)
{
    td_conv_space space = { .base = workspace };
    plan p = make_plan(reduce, &space);
    const td_conv_problem *problem = p.problem;
    double work = (double)(p.rows * problem->groups) * (double)(problem->ic * problem->oc) *
                  (double)(p.h.alive * p.w.alive);
    if (work < TD_GEMM_SERIAL_WORK) {
        pool = NULL;
    }
    td_pool_run(pool, problem->groups * p.panels * p.tiles * p.pieces, tile_task, &p);
    if (p.partial) {
        int64_t taps = (int64_t)p.h.kernel * p.w.kernel;
        td_pool_run(pool, taps * td_divide_up(problem->ic, COMBINE_ROWS), combine_task, &p);
    }
}
