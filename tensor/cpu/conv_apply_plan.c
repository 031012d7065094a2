/*
 * Forward and backward-data: how the result is cut, and whether weights are packed.
 */
#include "tensor/cpu/conv_apply.h"

#include <math.h>

enum {
    GATHER_TASKS = 8,          /* at least, if there are enough rows */
    DOTS_WIDTH = 32,           /* channels in a panel of dots */
    BLOCK_ROWS = 64,           /* of the result */
    MAX_WIDTHS = 4,            /* a block of narrow rows has up to so many times more of them */
    PACK_MIN_ROWS = 192,       /* of the result, in all: packing the weights must pay */
    SHORT_RUN = 12,            /* rows; below that a run wastes the weights that it reads */
    SMALL_WEIGHTS = 512 << 10, /* bytes that stay in the cache while all of them pass by */
    FEW_ROWS = 32,             /* of the result */
    SHALLOW = 64,              /* products in a tap */
    SHORT_CALL = 9,            /* rows */
    WIDE_PANEL = 32,           /* columns */
    EVEN_TASKS = 2,            /* a multiple of it */
    LINE = 64,                 /* bytes of a line of the cache */
    PAST_BYTES = 24 << 20,     /* of a result that is written past the caches */
    AHEAD_BYTES = 16 << 20, /* of a result that is fetched before short sums are written to it, */
    SHALLOW_SUM = 32,       /* products at most, */
    AHEAD_ROWS = 24,        /* in blocks of so many rows, so that all channels follow soon */
};

/* Cost of a product whose operands are found in tables, beside which it must be less. */
static const double LISTED = 0.95, NARROW_LISTED = 0.75, MANY_CLASSES = 1.5;
/* Of a panel, in vectors. */
static const double PANEL_COST = 0.3;

/* Whether the rows of pixel q + apart go on where those of pixel q end, for all taps. */
static bool mergeable(const td_conv_apply_plan *p, int64_t q)
{
    bool beside = p->per_run == 1 || p->step * p->from.column == p->per_run * p->from.image;
    return beside && td_conv_taps_follow(&p->w, q, p->apart, p->step);
}

/* Cuts the rows of a run into blocks of about equal size, whole register blocks where possible. */
static void cut_run(td_conv_apply_plan *p, int64_t column, int64_t rows)
{
    const td_gemm_kernels *kernels = p->problem->kernels;
    int64_t unit = kernels->rows * (p->block_rows > BLOCK_ROWS ? 2 : 1);
    if (p->problem->pixels) {
        unit = kernels->panel;
    }
    int64_t pieces = td_divide_up(rows, p->block_rows);
    int64_t piece = td_divide_up(td_divide_up(rows, pieces), unit) * unit;
    for (int64_t row = 0; row < rows; row += piece) {
        p->blocks[p->block_count++] =
            (td_conv_row_block){ column, row, td_min64(piece, rows - row) };
    }
}

static void cut_pixel_row(td_conv_apply_plan *p)
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
static bool may_gather(const td_conv_apply_plan *p)
{
    return p->problem->n < SHORT_RUN && p->h.size * p->w.size > 1 && p->problem->sharing == 0;
}

/* Whether more than a third of a row's pixels are in short runs. */
static bool runs_are_short(const td_conv_apply_plan *p)
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

static int taps_met(const td_conv_taps *t, int64_t q)
{
    int met = 0;
    for (int tap = 0; tap < t->kernel; tap++) {
        met += t->source[q * t->kernel + tap] >= 0;
    }
    return met;
}

/* Rows times taps of a row of pixels, as blocks cost them. */
static double cost_of_runs(const td_conv_apply_plan *p)
{
    double cost = 0;
    for (int64_t first = 0; first < td_min64(p->apart, p->w.size); first++) {
        for (int64_t q = first, pixels = 1; q < p->w.size; q += p->apart, pixels++) {
            if (!mergeable(p, q)) {
                int64_t rows = pixels * p->per_run;
                cost += (double)(rows > SHORT_RUN ? rows : SHORT_RUN) * taps_met(&p->w, q);
                pixels = 0;
            }
        }
    }
    return cost * (double)p->images;
}

/* Whether strips cost less than blocks; sets them, and the cost. */
static bool strips_win(td_conv_apply_plan *p, double *cost)
{
    *cost = cost_of_runs(p);
    if (!td_conv_strips_possible(p)) {
        return false;
    }
    p->strips = td_conv_strips_make(p);
    double strips = td_conv_strips_cost(p);
    bool win = strips < *cost;
    *cost = win ? strips : *cost;
    return win;
}

/* Whether pixels from anywhere, found in tables, are faster than strips, which cost so much, or
 * than copying them. */
static bool lists_win(const td_conv_apply_plan *p, double strips)
{
    if (p->dots || !p->problem->kernels->indexed) {
        return false;
    }
    double cost = td_conv_order_cost(&p->order, true);
    if (!p->in_strips) { /* copies may have rows of zeros, and so be larger blocks */
        return cost <= MANY_CLASSES * td_conv_order_cost(&p->order, false);
    }
    /* To fill the tables takes longer than calls of the kernel for many rows. */
    int64_t line = p->w.size / p->strips.apart * p->strips.per_pixel;
    int64_t call = p->strips.pixels_together ? line : p->strips.per_pixel;
    int64_t rows = p->h.size * p->w.size * p->problem->n;
    /* Beside few products in a step, looking up takes longer. */
    const td_gemm_kernels *kernels = p->problem->kernels;
    bool narrow = p->to_channels <= kernels->lanes || kernels->panel < WIDE_PANEL;
    bool shallow = p->depth <= (narrow ? SHALLOW / 2 : SHALLOW);
    if (rows < FEW_ROWS || (!shallow && (narrow || call >= SHORT_CALL))) {
        return false;
    }
    double others = 0;
    for (int64_t q = 0; q < p->h.size; q++) {
        others += strips * taps_met(&p->h, q);
    }
    return cost < (narrow ? NARROW_LISTED : LISTED) * others;
}

static void set_runs(td_conv_apply_plan *p, bool by_picture)
{
    p->per_run = by_picture ? 1 : p->problem->n;
    p->images = by_picture ? p->problem->n : 1;
    p->apart = p->apply->backward && by_picture ? p->problem->w.stride : 1;
}

/* Runs of a row of pixels, of all pictures. */
static int64_t count_runs(const td_conv_apply_plan *p)
{
    int64_t runs = 0;
    for (int64_t q = 0; q < p->w.size; q++) {
        runs += !mergeable(p, q);
    }
    return runs * p->images;
}

/* What makes fewer runs; the same rows are in either. */
static void choose_runs(td_conv_apply_plan *p)
{
    set_runs(p, false);
    int64_t together = count_runs(p);
    set_runs(p, true);
    if (p->problem->n > 1 && together <= count_runs(p)) {
        set_runs(p, false);
    }
}

static bool packs(const td_conv_apply_plan *p)
{
    const td_conv_problem *problem = p->problem;
    if (problem->pixels) {
        return false;
    }
    if (p->dots || p->apply->backward) {
        return p->dots != p->apply->backward; /* the weights are needed transposed */
    }
    bool one_panel = problem->oc_all <= problem->kernels->panel; /* is packed as it is */
    return !one_panel && problem->sharing == 0 &&
           p->h.size * p->w.size * problem->n >= PACK_MIN_ROWS;
}

/* Groups that share a vector are a group of all their channels, one panel wide; only a tap is as
 * deep as each of them. */
static void set_groups(td_conv_apply_plan *p)
{
    const td_conv_problem *problem = p->problem;
    bool back = p->apply->backward;
    int64_t together = problem->sharing > 0 ? problem->sharing : 1;
    p->groups = td_divide_up(problem->groups, together);
    p->depth = back ? problem->oc : problem->ic;
    p->from_channels = together * p->depth;
    p->to_channels = together * (back ? problem->ic : problem->oc);
    if (problem->pixels) {
        p->transposed = (td_conv_pixels){ .kernels = problem->kernels,
                                          .from = p->depth,
                                          .to = p->to_channels / together,
                                          .w_from = back ? 1 : problem->oc_all,
                                          .w_to = back ? problem->oc_all : 1,
                                          .w_group = problem->oc };
    } else if (problem->sharing > 0) {
        p->lanes = td_conv_groups_lanes(together, p->depth, p->to_channels / together);
    }
}

/* Pixels of a gathered block: so many that there are enough blocks for several threads. */
static int64_t gathered_pixels(const td_conv_apply_plan *p)
{
    int64_t n = p->problem->n, wanted = td_divide_up(GATHER_TASKS, p->groups * p->panels);
    int64_t pixels = td_divide_up(p->h.size * p->w.size, wanted);
    int64_t least = td_divide_up(p->problem->kernels->rows, n);
    return td_min64(TD_GATHER_ROWS / n, pixels > least ? pixels : least);
}

/* Pixels of a listed block: rows of whole tiles. */
static int64_t listed_unit(const td_conv_apply_plan *p)
{
    const td_gemm_kernels *kernels = p->problem->kernels;
    int64_t rows = 2 * p->to_channels <= kernels->panel ? 2 * kernels->rows : kernels->rows;
    int64_t unit = 1;
    while (unit * p->problem->n % rows != 0) {
        unit++;
    }
    return unit * p->problem->n <= TD_GATHER_ROWS ? unit : 1;
}

/* Columns of a panel where weights stay as they are and rows are few: then there are hardly more
 * tasks than panels, which should go round. */
static int64_t even_width(const td_conv_apply_plan *p)
{
    const td_gemm_kernels *kernels = p->problem->kernels;
    int64_t vectors = td_divide_up(p->to_channels, kernels->lanes),
            most = kernels->panel / kernels->lanes;
    int64_t best = most;
    double least = INFINITY;
    for (int64_t v = most; v > most / 2 && v > 1; v--) {
        double turns = (double)td_divide_up(p->groups * td_divide_up(vectors, v), EVEN_TASKS);
        double cost = turns * ((double)v + PANEL_COST);
        best = cost < least ? v : best;
        least = cost < least ? cost : least;
    }
    return best * kernels->lanes;
}

static void set_panels(td_conv_apply_plan *p)
{
    const td_conv_problem *problem = p->problem;
    int64_t size = (int64_t)problem->kernels->size;
    p->dots = problem->sharing == 0 && td_conv_dots_win(problem, p->apply->backward);
    p->most_depth = p->dots ? TD_DOTS_DEPTH : TD_APPLY_DEPTH;
    p->width = problem->pixels                 ? p->to_channels
               : p->dots && p->apply->backward ? DOTS_WIDTH
                                               : problem->kernels->panel;
    int64_t rows = p->h.size * p->w.size * problem->n;
    if (!packs(p) && !p->dots && problem->sharing == 0 && rows <= BLOCK_ROWS) {
        p->width = even_width(p);
    }
    p->panels = td_divide_up(p->to_channels, p->width);
    int64_t taps = (int64_t)p->h.kernel * p->w.kernel;
    p->panels_first = taps * p->depth * p->to_channels * p->groups * size <= SMALL_WEIGHTS;
    int64_t widths = problem->pixels        ? MAX_WIDTHS
                     : problem->sharing > 0 ? 1
                                            : problem->kernels->panel / p->to_channels;
    p->block_rows = BLOCK_ROWS * (widths < 1 ? 1 : td_min64(widths, MAX_WIDTHS));
}

/* How blocks are written. A large result is pushed out of the caches before anybody reads it; and
 * where a sum is short, the processor waits for what it is about to overwrite. */
static td_gemm_store way_to_store(const td_conv_apply_plan *p)
{
    const td_conv_problem *problem = p->problem;
    int64_t size = (int64_t)problem->kernels->size, channels = p->to_channels * p->groups;
    int64_t bytes = p->h.size * p->w.size * problem->n * channels * size;
    bool plain = problem->sharing == 0 && !p->dots && !p->apply->accumulate;
    bool lines = p->to_channels * size % LINE == 0 && (uintptr_t)p->apply->result % LINE == 0;
    if (plain && lines && bytes >= PAST_BYTES) {
        return TD_GEMM_STORE_PAST;
    }
    bool shallow = p->depth * p->h.kernel * p->w.kernel <= SHALLOW_SUM;
    return plain && shallow && bytes >= AHEAD_BYTES ? TD_GEMM_STORE_AHEAD : TD_GEMM_STORE;
}

static void take_memory(td_conv_apply_plan *p, td_conv_space *space)
{
    const td_conv_problem *problem = p->problem;
    bool back = p->apply->backward;
    p->store = way_to_store(p);
    if (p->store == TD_GEMM_STORE_AHEAD) {
        p->block_rows = AHEAD_ROWS;
    }
    /* Measured without addresses, on which the way to store depends. */
    int64_t most = p->w.size * td_divide_up(problem->n, td_min64(p->block_rows, AHEAD_ROWS));
    p->blocks = td_conv_take(space, most * (int64_t)sizeof *p->blocks);
    if (packs(p)) {
        int64_t alive =
            space->base ? (int64_t)p->h.alive * p->w.alive : (int64_t)p->h.kernel * p->w.kernel;
        p->packed =
            td_conv_take(space, p->groups * p->panels * alive * p->depth * problem->kernels->panel *
                                    (int64_t)problem->kernels->size);
    }
    if (may_gather(p)) {
        p->order = (td_conv_order){ .h = p->h,
                                    .w = p->w,
                                    .step_h = back ? problem->h.stride : 1,
                                    .step_w = back ? problem->w.stride : 1,
                                    .n = problem->n,
                                    .most = gathered_pixels(p) };
        td_conv_order_take(&p->order, space);
    }
}

static void order_pixels(td_conv_apply_plan *p)
{
    td_conv_order *o = &p->order;
    o->exact = p->lists;
    o->unit = p->lists ? listed_unit(p) : 1;
    o->most = o->most > o->unit ? o->most / o->unit * o->unit : o->unit;
    td_conv_order_pixels(o);
    p->block_count = o->block_count;
}

/* Into strips, gathered or listed blocks, or blocks. */
static void cut_result(td_conv_apply_plan *p)
{
    double cost;
    p->in_strips = strips_win(p, &cost);
    bool from_anywhere = p->order.pixels && (p->in_strips || runs_are_short(p));
    p->lists = from_anywhere && lists_win(p, cost);
    p->in_strips = p->in_strips && !p->lists;
    p->gathers = from_anywhere && !p->in_strips && !p->lists;
    if (p->in_strips) {
        p->block_count = p->strips.column_parts;
    } else if (p->gathers || p->lists) {
        order_pixels(p);
    } else {
        cut_pixel_row(p);
    }
}

td_conv_apply_plan td_conv_apply_plan_make(const td_conv_apply *apply, td_conv_space *space)
{
    const td_conv_problem *problem = apply->problem;
    bool back = apply->backward;
    td_conv_apply_plan p = { .apply = apply, .problem = problem };
    p.h = td_conv_taps_make(&problem->h, back, space);
    p.w = td_conv_taps_make(&problem->w, back, space);
    p.step = back ? 1 : problem->w.stride;
    p.from = back ? problem->y : problem->x;
    p.to = back ? problem->x : problem->y;
    set_groups(&p);
    set_panels(&p);
    take_memory(&p, space);
    if (space->base) {
        choose_runs(&p);
        p.a_row = p.per_run == 1 ? p.step * p.from.column : p.from.image;
        p.c_row = p.per_run == 1 ? p.apart * p.to.column : p.to.image;
        cut_result(&p);
    }
    return p;
}
