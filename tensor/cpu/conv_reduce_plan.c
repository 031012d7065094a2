#include "tensor/cpu/conv_reduce_plan.h"

enum {
    BLOCK_IMAGES = 64, /* at most; of as many pixels as make up TD_REDUCE_ROWS */
    SMALL_TILE = 32,   /* input channels in a tile where there are few tiles */
    WANTED_TASKS = 32,
    LEAST_TASKS = 2, /* of smaller tiles if need be */
    MIN_BLOCKS = 4,  /* blocks of rows in a piece: enough to be worth a partial result */
    /* Of x and dy: so many do not wait in a cache. Twice as many for small tiles, where fetching
     * costs more beside few products. */
    FETCH_BYTES = 8 << 20,
    /* Results that are swept: so large where x and dy come from memory, and so large where the L3
     * cache may hold them, and less is gained. */
    SWEPT_BYTES = 640 << 10,
    SWEPT_NEAR_BYTES = 320 << 10,
    L3_BYTES = 24 << 20,
    SWEPT_PARTIAL = 4 << 20, /* bytes of partial results; or, where those are more, */
    SWEPT_SHARE = 8,         /* this share of x and dy; but always */
    SWEPT_PIECES = 8,        /* so many pieces */
};

/* Input channels in a tile: as many as leave enough tasks, since dy is packed for every tile; whole
 * register blocks. `small`: below SMALL_TILE, too, rather than leave a thread without a task. */
static int64_t tile_size(int64_t ic, int64_t panels, int rows, bool small)
{
    int64_t most = TD_REDUCE_TILE;
    while (most > SMALL_TILE && panels * td_divide_up(ic, most) < WANTED_TASKS) {
        most /= 2;
    }
    while (small && most > rows && panels * td_divide_up(ic, most) < LEAST_TASKS) {
        most /= 2;
    }
    int64_t even = td_divide_up(ic, td_divide_up(ic, most));
    return td_divide_up(even, rows) * rows;
}

/* At stride 1 the pictures of neighbouring pixels lie one stride apart, all in one run; otherwise
 * a run is the pictures of one pixel, or the pixels of one picture's row, if those are more. */
static bool rows_by_picture(const td_conv_problem *problem)
{
    bool together = problem->w.stride * problem->x.column == problem->n * problem->x.image;
    return problem->n == 1 || (!together && problem->n < problem->w.out);
}

/* Of x and dy. */
static int64_t bytes_read(const td_conv_reduce_plan *p)
{
    const td_conv_problem *problem = p->problem;
    int64_t pixels_x = problem->h.in * problem->w.in, pixels_y = p->h.size * p->w.size;
    int64_t elements =
        problem->n * problem->groups * (pixels_x * problem->ic + pixels_y * problem->oc);
    return elements * (int64_t)problem->kernels->size;
}

/* Several taps read what they need more than once, and wait less. */
static bool should_fetch(const td_conv_reduce_plan *p)
{
    return p->h.kernel * p->w.kernel == 1 && p->problem->sharing == 0 &&
           bytes_read(p) >= FETCH_BYTES * (p->tile < SMALL_TILE ? 2 : 1);
}

/* Of the register blocks each tile has as many as another, or one more: tiles that take as long as
 * each other are dealt out to threads evenly. */
int64_t td_conv_reduce_channel(const td_conv_reduce_plan *p, int64_t tile)
{
    int64_t rows = p->problem->kernels->rows, blocks = td_divide_up(p->problem->ic, rows);
    return td_min64(tile * blocks / p->tiles * rows, p->problem->ic);
}

int64_t td_conv_reduce_tiles(const td_conv_reduce_plan *p)
{
    return p->groups * p->panels * p->tiles;
}

static int64_t result_bytes(const td_conv_reduce_plan *p)
{
    return (int64_t)p->h.kernel * p->w.kernel * p->problem->ic * p->problem->oc_all *
           (int64_t)p->problem->kernels->size;
}

static bool should_sweep(const td_conv_reduce_plan *p)
{
    int64_t tiles = td_conv_reduce_tiles(p);
    int64_t most = bytes_read(p) >= L3_BYTES ? SWEPT_BYTES : SWEPT_NEAR_BYTES;
    return p->problem->sharing == 0 && p->groups == 1 && tiles > 1 &&
           tiles <= TD_REDUCE_SWEPT_TILES && result_bytes(p) <= most &&
           bytes_read(p) >= FETCH_BYTES && p->blocks >= MIN_BLOCKS * SWEPT_PIECES;
}

static int64_t wanted_pieces(const td_conv_reduce_plan *p)
{
    if (!p->sweeps) {
        return td_divide_up(WANTED_TASKS, td_conv_reduce_tiles(p));
    }
    int64_t share = bytes_read(p) / SWEPT_SHARE;
    int64_t fit = (share > SWEPT_PARTIAL ? share : SWEPT_PARTIAL) / result_bytes(p);
    return fit > WANTED_TASKS ? WANTED_TASKS : fit > SWEPT_PIECES ? fit : SWEPT_PIECES;
}

td_conv_reduce_plan td_conv_reduce_plan_make(const td_conv_reduce *reduce, td_conv_space *space)
{
    const td_conv_problem *problem = reduce->problem;
    td_conv_reduce_plan p = { .reduce = reduce, .problem = problem };
    p.h = td_conv_taps_make(&problem->h, false, space);
    p.w = td_conv_taps_make(&problem->w, false, space);
    p.by_picture = rows_by_picture(problem);
    p.a_col = p.by_picture ? problem->w.stride * problem->x.column : problem->x.image;
    int64_t together = problem->sharing > 0 ? problem->sharing : 1;
    p.groups = td_divide_up(problem->groups, together);
    p.x_channels = together * problem->ic;
    p.y_channels = together * problem->oc;
    if (problem->pixels) {
        p.transposed =
            (td_conv_pixels){ .kernels = problem->kernels, .from = problem->ic, .to = problem->oc };
    } else if (problem->sharing > 0) {
        p.lanes = td_conv_groups_lanes(together, problem->ic, problem->oc);
    }
    p.panels = problem->pixels ? 1 : td_divide_up(p.y_channels, problem->kernels->panel);
    p.tile = tile_size(problem->ic, p.groups * p.panels, problem->kernels->rows, false);
    p.tiles = td_divide_up(problem->ic, p.tile);

    int64_t all_pixels = p.h.size * p.w.size;
    int64_t most_images = problem->h.in * problem->w.in > 1 ? BLOCK_IMAGES : TD_REDUCE_ROWS;
    int64_t image_blocks = p.by_picture ? problem->n : td_divide_up(problem->n, most_images);
    p.images = image_blocks > 0 ? td_divide_up(problem->n, image_blocks) : 1;
    p.pixels = TD_REDUCE_ROWS / p.images;
    p.pixel_blocks = td_divide_up(all_pixels, p.pixels);
    p.blocks = p.pixel_blocks * image_blocks;

    p.sweeps = should_sweep(&p);
    if (p.sweeps) { /* tiles are no tasks then */
        p.tile = tile_size(problem->ic, WANTED_TASKS, problem->kernels->rows, false);
    } else if (problem->sharing == 0) { /* those that do are one tile */
        p.tile = tile_size(problem->ic, p.groups * p.panels, problem->kernels->rows, true);
    }
    p.tiles = td_divide_up(problem->ic, p.tile);
    int64_t pieces = td_min64(wanted_pieces(&p), p.blocks / MIN_BLOCKS);
    p.blocks_per_piece = td_divide_up(p.blocks, pieces > 1 ? pieces : 1);
    p.pieces = pieces > 1 ? td_divide_up(p.blocks, p.blocks_per_piece) : 1;
    p.tile_tasks = p.pieces * (p.sweeps ? 1 : td_conv_reduce_tiles(&p));
    if (p.pieces > 1) {
        int64_t alive =
            space->base ? (int64_t)p.h.alive * p.w.alive : (int64_t)p.h.kernel * p.w.kernel;
        p.partial = td_conv_take(space, p.pieces * alive * problem->ic * problem->oc_all *
                                            (int64_t)problem->kernels->size);
    }
    p.fetches = should_fetch(&p);
    return p;
}
