/*
 * Backward-weights: for every tap, dw (ic x oc) is the sum over pixels of x^T (ic x n) times dy
 * (n x oc). With pixels and pictures taken as one long list of rows, it is one product whose inner
 * dimension is that list, and for each tap the rows whose pixel does not exist are left out.
 *
 * The result is cut into tiles, and the list of rows into pieces, by conv_reduce_plan.c.
 */
#include "tensor/cpu/conv_reduce_plan.h"

#include <string.h>

enum {
    TILE_TAPS = 64, /* taps of which a tile remembers whether it has been written */
    CLEAR_BYTES = 65536,
    CLEAR_TASKS = 8,
    MOST_UNPACKED = TD_REDUCE_TILE + 12, /* channels times taps, those that read a row of dy; tiles
                                            of one tap may be as large */
};

typedef td_conv_reduce_plan plan;

static bool alive(const plan *p, int kh, int kw)
{
    return p->h.rank[kh] >= 0 && p->w.rank[kw] >= 0;
}

/* ---- one piece of one tile ---- */

typedef struct tile {
    const plan *plan;
    int64_t group, panel, channel; /* channel: first input channel in the group */
    int64_t piece;
    int64_t ic, oc;          /* size */
    bool started[TILE_TAPS]; /* taps whose tile has been written: only then can be added to it */
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
        int64_t taps = (int64_t)p->h.alive * p->w.alive;
        tap = t->piece * taps + (int64_t)p->h.rank[kh] * p->w.alive + p->w.rank[kw];
        base = p->partial;
    }
    int64_t column = t->group * p->y_channels + t->panel * problem->kernels->panel;
    return base + ((tap * problem->ic + t->channel) * problem->oc_all + column) * size;
}

static bool overwrites(const plan *p)
{
    return p->partial || !p->reduce->accumulate;
}

static void clear_tile(tile *t, int kh, int kw)
{
    int64_t size = (int64_t)t->plan->problem->kernels->size;
    char *to = tile_at(t, kh, kw);
    for (int64_t c = 0; c < t->ic; c++) {
        memset(to + c * t->plan->problem->oc_all * size, 0, (size_t)(t->oc * size));
    }
}

/* Whether the tap's tile already holds something to add to. The few taps of a usual kernel are
 * remembered; the tiles of others are cleared before. */
static bool has_started(const tile *t, int kh, int kw)
{
    int64_t tap = (int64_t)kh * t->plan->w.kernel + kw;
    return tap >= TILE_TAPS || t->started[tap];
}

/* Before the first block (blocks_done false): clears the tiles of taps that are not remembered.
 * After the last one: those of taps that met nothing. Dead taps are left to clear_task. */
static void clear_tiles(tile *t, bool blocks_done)
{
    const plan *p = t->plan;
    for (int kh = 0; kh < p->h.kernel; kh++) {
        for (int kw = 0; kw < p->w.kernel; kw++) {
            int64_t tap = (int64_t)kh * p->w.kernel + kw;
            bool due = blocks_done ? !has_started(t, kh, kw) : tap >= TILE_TAPS;
            if (due && alive(p, kh, kw)) {
                clear_tile(t, kh, kw);
            }
        }
    }
}

/* A block of rows: some pictures of some pixels, and where its panel of dy lies. */
typedef struct row_block {
    int64_t image, images;
    int64_t pixel, pixels;
    const char *dy;
    int64_t dy_pixel, dy_image; /* strides */
} row_block;

/* The rows that a tap takes of a block, as runs of x beside runs of dy. */
typedef struct run_list {
    td_gemm_term terms[TD_REDUCE_ROWS];
    int count;
    int64_t rows;
    const char *next_x, *next_dy; /* where the last run would go on */
} run_list;

static void add_run(run_list *runs, const char *x, const char *dy, int64_t k, int64_t x_bytes,
                    int64_t dy_bytes)
{
    if (x == runs->next_x && dy == runs->next_dy) {
        runs->terms[runs->count - 1].k += k;
    } else {
        runs->terms[runs->count++] = (td_gemm_term){ x, dy, k };
    }
    runs->rows += k;
    runs->next_x = x + x_bytes;
    runs->next_dy = dy + dy_bytes;
}

/* Columns [begin, end) of a row of pixels, the first of which is `pixel`. */
static void runs_of_pixel_row(const tile *t, const row_block *rows, run_list *runs, int64_t pixel,
                              int64_t begin, int64_t end, int kh, int kw)
{
    const plan *p = t->plan;
    const td_conv_problem *problem = p->problem;
    int64_t size = (int64_t)problem->kernels->size;
    int64_t x_step = problem->w.stride * problem->x.column; /* to the next pixel */
    int64_t k = rows->images * p->a_col, dy_step = rows->images * rows->dy_image;
    int64_t source_h = p->h.source[pixel / p->w.size * p->h.kernel + kh];
    int64_t first = begin > p->w.first[kw] ? begin : p->w.first[kw];
    int64_t count = td_min64(end, p->w.end[kw]) - first;
    if (source_h < 0 || count <= 0) {
        return;
    }
    int64_t source_w = p->w.source[first * p->w.kernel + kw];
    const char *x = (const char *)p->reduce->x +
                    (source_h * problem->x.row + source_w * problem->x.column +
                     rows->image * problem->x.image + t->group * p->x_channels + t->channel) *
                        size;
    const char *dy = rows->dy + (pixel + first - begin - rows->pixel) * rows->dy_pixel * size;
    bool together = k == x_step && dy_step == rows->dy_pixel;
    int64_t pieces = together ? 1 : count;
    int64_t at_once = together ? count : 1;
    for (int64_t i = 0; i < pieces; i++) {
        add_run(runs, x + i * x_step * size, dy + i * rows->dy_pixel * size, at_once * rows->images,
                at_once * k * size, at_once * dy_step * size);
    }
}

/* Finds the rows of the block whose pixel exists at the tap. */
static int runs_of_tap(const tile *t, const row_block *rows, int kh, int kw, run_list *runs)
{
    int64_t width = t->plan->w.size, last = rows->pixel + rows->pixels;
    runs->count = 0;
    runs->rows = 0;
    runs->next_x = runs->next_dy = NULL;
    for (int64_t pixel = rows->pixel; pixel < last;) {
        int64_t begin = pixel % width, end = td_min64(width, begin + last - pixel);
        runs_of_pixel_row(t, rows, runs, pixel, begin, end, kh, kw);
        pixel += end - begin;
    }
    return runs->count;
}

static void multiply(const tile *t, const td_gemm_block *block)
{
    const td_conv_problem *problem = t->plan->problem;
    if (problem->sharing == 0) {
        problem->kernels->block(block);
        return;
    }
    if (problem->pixels) {
        td_conv_pixels_sum(&t->plan->transposed, block);
        return;
    }
    td_gemm_lanes lanes = t->plan->lanes;
    lanes.window = (int)(t->oc / problem->oc * problem->ic); /* the last may be fewer */
    problem->kernels->grouped_sums(block, &lanes);
}

/* Adds the products of a block; `next`: the block after it, or NULL. */
static void add_block(tile *t, const row_block *rows, const row_block *next)
{
    const plan *p = t->plan;
    run_list runs, next_runs;
    td_gemm_block block = {
        .terms = runs.terms,
        .a_row = 1,
        .a_col = p->a_col,
        .b_row = rows->dy_image,
        .c_row = p->problem->oc_all,
        .m = t->ic,
        .n = (int)t->oc,
    };
    for (int kh = 0; kh < p->h.kernel; kh++) {
        for (int kw = 0; kw < p->w.kernel; kw++) {
            if (!alive(p, kh, kw)) {
                continue;
            }
            block.count = runs_of_tap(t, rows, kh, kw, &runs);
            if (block.count > 0) {
                block.c = tile_at(t, kh, kw);
                block.accumulate = has_started(t, kh, kw);
                if (next && runs_of_tap(t, next, kh, kw, &next_runs) > 0) {
                    block.next = next_runs.terms;
                    block.next_rows = next_runs.rows;
                    /* In a sweep others fetch the same columns. */
                    block.next_m = p->sweeps && t->panel > 0 ? 0 : block.m;
                    block.next_n = p->sweeps && t->channel > 0 ? 0 : block.n;
                }
                multiply(t, &block);
                int64_t tap = (int64_t)kh * p->w.kernel + kw;
                if (tap < TILE_TAPS) {
                    t->started[tap] = true;
                }
            }
        }
    }
}

static row_block block_of_rows(const tile *t, int64_t i)
{
    const plan *p = t->plan;
    const td_conv_problem *problem = p->problem;
    row_block rows = { .image = i / p->pixel_blocks * p->images,
                       .pixel = i % p->pixel_blocks * p->pixels,
                       .dy_pixel = problem->y.column,
                       .dy_image = p->by_picture ? problem->y.column : problem->y.image };
    rows.images = td_min64(p->images, problem->n - rows.image);
    rows.pixels = td_min64(p->pixels, p->h.size * p->w.size - rows.pixel);
    int64_t column = t->group * p->y_channels + t->panel * problem->kernels->panel;
    int64_t at = rows.pixel * problem->y.column + rows.image * problem->y.image + column;
    rows.dy = (const char *)p->reduce->dy + at * (int64_t)problem->kernels->size;
    return rows;
}

/* Copies the block's panel of dy to where its rows are dense. */
static void pack_rows(const tile *t, row_block *rows, char *packed)
{
    const td_gemm_kernels *kernels = t->plan->problem->kernels;
    int64_t size = (int64_t)kernels->size, per_pixel = rows->images * kernels->panel;
    for (int64_t i = 0; i < rows->pixels; i++) {
        kernels->pack(packed + i * per_pixel * size, rows->dy + i * rows->dy_pixel * size,
                      rows->images, t->oc, rows->dy_image, 1);
    }
    rows->dy = packed;
    rows->dy_pixel = per_pixel;
    rows->dy_image = kernels->panel;
}

/* Tile `index` of the input channels, before its first block. */
static tile open_tile(const plan *p, int64_t group, int64_t panel, int64_t index, int64_t piece)
{
    const td_conv_problem *problem = p->problem;
    int64_t width = problem->kernels->panel;
    tile t = { .plan = p, .group = group, .panel = panel, .piece = piece };
    t.channel = td_conv_reduce_channel(p, index);
    t.ic = td_conv_reduce_channel(p, index + 1) - t.channel;
    int64_t left = problem->oc_all - t.group * p->y_channels;
    t.oc = td_min64(left, p->y_channels);
    if (!problem->pixels) {
        t.oc = td_min64(t.oc, td_min64(width, p->y_channels - t.panel * width));
    }
    if (overwrites(p)) {
        clear_tiles(&t, false);
    } else {
        memset(t.started, true, sizeof t.started);
    }
    return t;
}

static void close_tile(tile *t)
{
    if (overwrites(t->plan)) {
        clear_tiles(t, true);
    }
}

/* Dense rows of dy stay in the cache better: worth a copy where it is read often. */
static bool should_pack(const tile *t)
{
    const td_conv_problem *problem = t->plan->problem;
    return problem->oc_all > problem->kernels->panel && problem->sharing == 0 &&
           t->ic * t->plan->h.alive * t->plan->w.alive > MOST_UNPACKED;
}

/* The tiles of a piece follow each other, and of these the ones with the same rows of weights: a
 * thread's share are some pixels, or some rows (tensor/cpu/pool.h). */
static void tile_task(const plan *p, int64_t task)
{
    int64_t of_group = p->panels * p->tiles, of_piece = td_conv_reduce_tiles(p);
    int64_t index = task % of_piece, channels = index % of_group / p->panels;
    tile t = open_tile(p, index / of_group, index % p->panels, channels, task / of_piece);
    _Alignas(64) char packed[TD_REDUCE_ROWS * TD_GEMM_MAX_PANEL_BYTES];
    bool packs_dy = should_pack(&t);
    int64_t begin = t.piece * p->blocks_per_piece;
    int64_t end = td_min64(p->blocks, begin + p->blocks_per_piece);
    for (int64_t i = begin; i < end; i++) {
        row_block rows = block_of_rows(&t, i), next;
        if (packs_dy) {
            pack_rows(&t, &rows, packed);
        }
        bool fetches = p->fetches && !packs_dy && i + 1 < end;
        if (fetches) {
            next = block_of_rows(&t, i + 1);
        }
        add_block(&t, &rows, fetches ? &next : NULL);
    }
    close_tile(&t);
}

/* All tiles of a piece, block by block. */
static void sweep_task(const plan *p, int64_t piece)
{
    _Alignas(64) char packed[TD_REDUCE_ROWS * TD_GEMM_MAX_PANEL_BYTES];
    tile tiles[TD_REDUCE_SWEPT_TILES];
    int64_t count = td_conv_reduce_tiles(p);
    for (int64_t i = 0; i < count; i++) { /* of one group */
        tiles[i] = open_tile(p, 0, i / p->tiles, i % p->tiles, piece);
    }
    bool packs_dy = should_pack(&tiles[0]);
    int64_t begin = piece * p->blocks_per_piece;
    int64_t end = td_min64(p->blocks, begin + p->blocks_per_piece);
    for (int64_t b = begin; b < end; b++) {
        row_block rows, next;
        for (int64_t i = 0; i < count; i++) {
            if (!packs_dy || tiles[i].channel == 0) {
                rows = block_of_rows(&tiles[i], b);
            }
            if (packs_dy && tiles[i].channel == 0) { /* for all tiles of the panel */
                pack_rows(&tiles[i], &rows, packed);
            }
            bool fetches = p->fetches && b + 1 < end;
            if (fetches) {
                next = block_of_rows(&tiles[i], b + 1);
            }
            add_block(&tiles[i], &rows, fetches ? &next : NULL);
        }
    }
    for (int64_t i = 0; i < count; i++) {
        close_tile(&tiles[i]);
    }
}

/* Pieces of the taps' gradients, of which those of taps that meet nothing must be cleared. */
static int64_t clear_pieces(const plan *p, int64_t *of_tap)
{
    const td_conv_problem *problem = p->problem;
    int64_t bytes = problem->ic * problem->oc_all * (int64_t)problem->kernels->size;
    *of_tap = td_divide_up(bytes, CLEAR_BYTES);
    return (int64_t)p->h.kernel * p->w.kernel * *of_tap;
}

/* Few: a thread takes several of many at once, and tiles, which take long, are among them. */
static int64_t clear_tasks(const plan *p)
{
    int64_t taps = (int64_t)p->h.kernel * p->w.kernel, of_tap;
    if (p->reduce->accumulate || p->partial || taps == (int64_t)p->h.alive * p->w.alive) {
        return 0;
    }
    return td_min64(clear_pieces(p, &of_tap), CLEAR_TASKS);
}

/* Clears a share of the gradients of taps that meet nothing. */
static void clear_task(const plan *p, int64_t task)
{
    const td_conv_problem *problem = p->problem;
    int64_t of_tap, pieces = clear_pieces(p, &of_tap), share = td_divide_up(pieces, CLEAR_TASKS);
    int64_t bytes = problem->ic * problem->oc_all * (int64_t)problem->kernels->size;
    for (int64_t i = task * share; i < td_min64(pieces, (task + 1) * share); i++) {
        int64_t tap = i / of_tap, begin = i % of_tap * CLEAR_BYTES;
        if (!alive(p, (int)(tap / p->w.kernel), (int)(tap % p->w.kernel))) {
            memset((char *)p->reduce->dw + tap * bytes + begin, 0,
                   (size_t)td_min64(CLEAR_BYTES, bytes - begin));
        }
    }
}

/* Among the tiles stand the tasks that clear, evenly: each thread has its share of both. */
static void tile_or_clear_task(void *ctx, int64_t task)
{
    const plan *p = ctx;
    int64_t clears = clear_tasks(p), all = p->tile_tasks + clears;
    int64_t before = task * clears / all; /* of those */
    if ((task + 1) * clears / all > before) {
        clear_task(p, before);
    } else if (p->sweeps) {
        sweep_task(p, task - before);
    } else {
        tile_task(p, task - before);
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
    td_conv_reduce_plan_make(reduce, &space);
    return space.used;
}

void td_conv_reduce_run(td_pool *pool, const td_conv_reduce *reduce, void *workspace)
{
    td_conv_space space = { .base = workspace };
    plan p = td_conv_reduce_plan_make(reduce, &space);
    const td_conv_problem *problem = p.problem;
    double work = (double)(p.h.size * p.w.size) * (double)(problem->n * problem->groups) *
                  (double)(problem->ic * problem->oc) * (double)(p.h.alive * p.w.alive);
    if (work < TD_GEMM_SERIAL_WORK) {
        pool = NULL;
    }
    td_pool_run(pool, p.tile_tasks + clear_tasks(&p), tile_or_clear_task, &p);
    if (p.partial) {
        int64_t taps = (int64_t)p.h.kernel * p.w.kernel;
        td_pool_run(pool, taps * td_divide_up(problem->ic, COMBINE_ROWS), combine_task, &p);
    }
}
