/* How backward-weights is cut into tasks: spans of the result times pieces of the rows of dy. */
#include "tensor/cpu/conv_reduce.h"

enum {
    SPAN_BYTES = 256 << 10, /* of dw in a span: they stay in the cache */
    WANTED_TASKS = 32,
    LEAST_TASKS = 8,
    LEAST_PIECES = 8,        /* so many are allowed, however large dw is */
    LEAST_BLOCKS = 4,        /* of a piece: enough to be worth a partial result */
    PARTIAL_BYTES = 4 << 20, /* of all partial results, at most; */
    PARTIAL_SHARE = 8,       /* or this share of x and dy, if that is more */
    NEAR_BYTES = 16 << 20,   /* x and dy so small stay in a cache: at most LEAST_PIECES then */
    STAGE_BYTES = 4 << 20,   /* of x and dy, read by all spans while they are in a cache */
    PACK_ROWS = 140,         /* rows of dy are packed if more channels times taps read them */
};

static int64_t reduce_plan_size_of(const td_reduce_plan *p)
{
    return (int64_t)p->problem->kernels->size;
}

static int64_t reduce_plan_taps_of(const td_reduce_plan *p)
{
    return (int64_t)p->problem->h.kernel * p->problem->w.kernel;
}

static void reduce_plan_set_groups(td_reduce_plan *p)
{
    const td_conv_problem *problem = p->problem;
    int64_t together = problem->sharing > 0 ? problem->sharing : 1;
    p->groups = td_divide_up(problem->groups, together);
    p->x_channels = together * problem->ic;
    p->y_channels = together * problem->oc;
    p->panels = td_divide_up(p->y_channels, problem->kernels->panel);
    p->width = td_conv_panel_width(problem->kernels, p->y_channels);
    if (problem->sharing > 0) {
        p->lanes = td_conv_groups_lanes(together, problem->ic, problem->oc);
    }
}

/* Cuts dw into tiles and spans. A span has about as many input as output channels, so that x and dy
 * are read equally often. Spans are `parts` times smaller than SPAN_BYTES. */
static void reduce_plan_cut_result(td_reduce_plan *p, int64_t parts)
{
    const td_conv_problem *problem = p->problem;
    int64_t numbers =
                td_divide_up(SPAN_BYTES / reduce_plan_size_of(p), parts) / reduce_plan_taps_of(p),
            side = 16;
    while (side * side < numbers) {
        side *= 2;
    }
    int64_t most = td_min64(side, TD_REDUCE_TILE);
    p->tiles = problem->ic > 0 && problem->sharing == 0 ? td_divide_up(problem->ic, most) : 1;
    int64_t ic = td_divide_up(problem->ic > 0 ? problem->ic : 1, p->tiles);
    int64_t wanted = td_divide_up(side, ic);
    p->span.tiles = td_divide_up(p->tiles, td_divide_up(p->tiles, wanted));
    wanted = numbers / (p->span.tiles * ic * p->width);
    wanted = wanted > 1 ? wanted : 1;
    p->span.panels = td_divide_up(p->panels, td_divide_up(p->panels, wanted));
    wanted /= p->panels * td_divide_up(p->tiles, p->span.tiles);
    p->span.groups = p->groups == 1 || wanted < 2 ? 1 : td_min64(wanted, p->groups);
    p->span.count = td_divide_up(p->groups, p->span.groups) *
                    td_divide_up(p->panels, p->span.panels) * td_divide_up(p->tiles, p->span.tiles);
}

/* Pieces of the rows: so many that there are enough tasks. */
static void reduce_plan_cut_rows(td_reduce_plan *p, int64_t bytes_read)
{
    bool near = bytes_read < NEAR_BYTES;
    int64_t bytes =
        PARTIAL_BYTES > bytes_read / PARTIAL_SHARE ? PARTIAL_BYTES : bytes_read / PARTIAL_SHARE;
    int64_t most = p->dw_size > 0 ? bytes / (p->dw_size * reduce_plan_size_of(p)) : 1;
    most = most > LEAST_PIECES && !near ? most : LEAST_PIECES;
    td_reduce_cut *cut = &p->cut;
    int64_t wanted =
        td_min64(td_divide_up(WANTED_TASKS, p->span.count), cut->blocks / LEAST_BLOCKS);
    int64_t pieces = td_min64(wanted, most);
    pieces = pieces > 1 ? pieces : 1;
    cut->per_piece = td_divide_up(cut->blocks, pieces);
    cut->pieces = cut->blocks > 0 ? td_divide_up(cut->blocks, cut->per_piece) : 1;
}

static void reduce_plan_cut(td_reduce_plan *p, int64_t bytes_read)
{
    const td_conv_problem *problem = p->problem;
    reduce_plan_cut_result(p, 1);
    reduce_plan_cut_rows(p, bytes_read);
    for (int64_t parts = 2; p->span.count * p->cut.pieces < LEAST_TASKS && parts <= 64;
         parts *= 2) {
        reduce_plan_cut_result(p, parts);
    }
    bool few_products =
        reduce_plan_taps_of(p) == 1; /* with more taps computing takes longer than reading */
    bool staged = few_products && p->span.count > 1 && p->cut.blocks > 0;
    p->cut.stage =
        td_divide_up(p->cut.per_piece, staged ? td_divide_up(bytes_read, STAGE_BYTES) : 1);
    int64_t read = td_divide_up(problem->ic, p->tiles) * p->span.tiles * reduce_plan_taps_of(p);
    p->packs =
        problem->oc_all > problem->kernels->panel && problem->sharing == 0 && read > PACK_ROWS;
}

td_reduce_plan td_reduce_plan_make(const td_conv_reduce *reduce, td_conv_space *space)
{
    const td_conv_problem *problem = reduce->problem;
    td_reduce_plan p = { .reduce = reduce, .problem = problem };
    p.h = td_conv_taps_make(&problem->h, false, space);
    p.w = td_conv_taps_make(&problem->w, false, space);
    p.a_col = problem->n == 1 ? problem->w.stride * problem->x.column : problem->x.image;
    p.cut.rows = p.h.size * p.w.size * problem->n;
    p.cut.blocks = td_divide_up(p.cut.rows, TD_REDUCE_ROWS);
    p.dw_size = reduce_plan_taps_of(&p) * problem->ic * problem->oc_all;
    reduce_plan_set_groups(&p);
    int64_t x = problem->h.in * problem->w.in * problem->ic, y = p.h.size * p.w.size * problem->oc;
    reduce_plan_cut(&p, problem->n * problem->groups * (x + y) * reduce_plan_size_of(&p));
    if (p.cut.pieces > 1) {
        p.partial = td_conv_take(space, p.cut.pieces * p.dw_size * reduce_plan_size_of(&p));
    }
    return p;
}
