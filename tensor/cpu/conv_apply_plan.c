/*
 * How forward and backward-data are cut into tasks, each some rows of the result times some panels
 * of its channels. Everything here follows from the shapes; threads only decide who computes what.
 */
#include "tensor/cpu/conv_apply.h"

enum {
    BLOCK_ROWS = 64,       /* of the result in a block */
    SHORT_SUM = 128,       /* products: with so few a block has MANY_ROWS rows */
    MANY_ROWS = 126,       /* also of wide panels, whose weights take long to load */
    WHOLE_ROWS = 128,      /* where sums are not cut */
    SPAN_BYTES = 5 << 19,  /* of weights that a task reads */
    WIDE_PANEL = 32,       /* columns: one panel's part of a block then fills the L1 cache */
    WIDE_SPAN = 1 << 19,   /* bytes: SPAN_BYTES where panels are wide or sums are whole */
    WANTED_TASKS = 8,      /* at least, if there are enough rows */
    AHEAD_ROWS = 192,      /* of the result in all: weights are packed for all of them beforehand */
    PAST_BYTES = 24 << 20, /* of a result that is written past the caches */
    LINE = 64,
};

/* Costs, as numbers of rows: of reading a block's weights; of a block, at least; of adding a sum to
 * the result. */
static const double WEIGHTS_COST = 4, LEAST_COST = 4, ADD_COST = 8;

static double cost_of(double rows)
{
    return (rows > LEAST_COST ? rows : LEAST_COST) + WEIGHTS_COST;
}

/* Of blocks of classes, in rows times taps. */
static double cost_of_classes(const td_apply_plan *p)
{
    double cost = 0;
    for (int64_t i = 0; i < p->classes.count; i++) {
        const td_conv_class *c = &p->classes.list[i];
        int64_t blocks = td_divide_up(c->rows, BLOCK_ROWS);
        double taps = (double)(c->h->taps * c->w->taps);
        cost += taps * (double)blocks * cost_of((double)c->rows / (double)blocks);
    }
    return cost;
}

/* Of strips of pixels, likewise. */
static double cost_of_strips(const td_apply_plan *p, int64_t strips)
{
    const td_conv_problem *problem = p->problem;
    double adding = 1 + ADD_COST / (double)td_min64(p->group.depth, TD_APPLY_DEPTH), cost = 0;
    for (int kh = 0; kh < problem->h.kernel; kh++) {
        for (int kw = 0; kw < problem->w.kernel; kw++) {
            double met = (double)(td_conv_tap_meets(&problem->h, kh) * problem->n) *
                         (double)td_conv_tap_meets(&problem->w, kw);
            cost += met > 0 ? (double)strips * cost_of(met / (double)strips) * adding : 0;
        }
    }
    return cost;
}

static void apply_plan_set_groups(td_apply_plan *p)
{
    const td_conv_problem *problem = p->problem;
    bool back = p->apply->backward;
    int64_t together = problem->sharing > 0 ? problem->sharing : 1;
    p->group.count = td_divide_up(problem->groups, together);
    p->group.source_channels = together * (back ? problem->oc : problem->ic);
    p->group.depth = p->whole ? p->apply->mixed->depth : p->group.source_channels / together;
    p->group.from_channels = together * p->group.depth;
    p->group.to_channels = together * (back ? problem->ic : problem->oc);
    p->group.panels = td_divide_up(p->group.to_channels, problem->kernels->panel);
    p->group.all_panels = p->group.panels * p->group.count;
    p->width = p->whole ? problem->kernels->panel
                        : td_conv_panel_width(problem->kernels, p->group.to_channels);
    if (problem->sharing > 0) {
        p->lanes = td_conv_groups_lanes(together, p->group.depth, p->group.to_channels / together);
    }
}

/* Rows of a block: so few that there are several tasks. */
static int64_t rows_of_block(const td_apply_plan *p)
{
    const td_conv_problem *problem = p->problem;
    int64_t unit = problem->kernels->rows, rows = problem->n;
    rows *= p->classes.h.taps.size * p->classes.w.taps.size;
    int64_t wanted = td_divide_up(WANTED_TASKS, p->group.all_panels);
    bool is_short = p->group.depth * problem->h.kernel * problem->w.kernel <= SHORT_SUM;
    bool wide = problem->kernels->panel > WIDE_PANEL;
    int64_t most = p->whole ? WHOLE_ROWS : is_short || wide ? MANY_ROWS : BLOCK_ROWS;
    return td_min64(td_divide_up(td_divide_up(rows, wanted), unit) * unit, most);
}

/* Whether the result is so large that nobody will find it in a cache, and its lines are whole. */
static bool writes_past(const td_apply_plan *p)
{
    int64_t size = (int64_t)p->problem->kernels->size;
    int64_t rows = p->classes.h.taps.size * p->classes.w.taps.size * p->problem->n;
    return !p->apply->accumulate && !p->by_taps && !p->whole && p->problem->sharing == 0 &&
           p->group.to_channels * size % LINE == 0 && (uintptr_t)p->apply->result % LINE == 0 &&
           rows * p->group.to_channels * p->group.count * size >= PAST_BYTES;
}

/* Cuts the rows into strips or blocks, and the panels into spans. */
static void apply_plan_cut(td_apply_plan *p, int64_t rows)
{
    const td_conv_problem *problem = p->problem;
    const td_conv_taps *h = &p->classes.h.taps, *w = &p->classes.w.taps;
    p->strip_pixels = rows / problem->n > 1 ? rows / problem->n : 1;
    p->blocks = td_divide_up(h->size * w->size, p->strip_pixels);
    p->by_taps = problem->n <= BLOCK_ROWS && problem->sharing == 0 && !p->whole &&
                 cost_of_strips(p, p->blocks) < cost_of_classes(p);
    if (!p->by_taps) {
        td_conv_classes_cut(&p->classes);
        p->blocks = p->classes.blocks;
    }
    int64_t weights = (int64_t)h->alive * w->alive * p->group.depth * p->width *
                      (int64_t)problem->kernels->size; /* of a panel, in bytes */
    bool wide = problem->kernels->panel > WIDE_PANEL;
    int64_t spans = td_divide_up(4 * WANTED_TASKS, p->blocks);
    int64_t bytes = wide || p->whole ? WIDE_SPAN : SPAN_BYTES;
    int64_t least = td_divide_up(p->group.all_panels * weights, bytes);
    spans = spans > least ? spans : least;
    p->span = td_divide_up(p->group.all_panels, td_min64(spans, p->group.all_panels));
    p->beside = wide ? 1 : p->span;
    p->past = writes_past(p);
}

static td_conv_strides in_bytes(const td_conv_strides *s, int64_t size)
{
    return (td_conv_strides){ s->row * size, s->column * size, s->image * size };
}

/* Takes memory for the weights. */
static void take_room(td_apply_plan *p, td_conv_space *space)
{
    const td_gemm_kernels *kernels = p->problem->kernels;
    const td_conv_taps *h = &p->classes.h.taps, *w = &p->classes.w.taps;
    const td_conv_mixed *mixed = p->apply->mixed;
    bool many = h->size * w->size * p->problem->n >= AHEAD_ROWS;
    if (td_apply_needs_packing(p) && (p->problem->sharing > 0 || p->whole || many)) {
        int64_t count = p->group.all_panels * h->alive * w->alive * p->group.depth * p->width;
        p->packed_low = p->whole && mixed->low ? count : 0;
        p->packed = td_conv_take(space, (count + p->packed_low) * (int64_t)kernels->size);
    }
}

td_apply_plan td_apply_plan_make(const td_conv_apply *apply, td_conv_space *space)
{
    const td_conv_problem *problem = apply->problem;
    const td_conv_mixed *mixed = apply->mixed;
    int64_t size = (int64_t)problem->kernels->size;
    bool back = apply->backward;
    td_apply_plan p = { .apply = apply, .problem = problem, .whole = mixed != NULL };
    td_conv_classes_make(&p.classes, problem, back, space);
    p.weight_size = mixed ? (int64_t)td_dtype_size(mixed->weights) : size;
    p.to_size = mixed ? (int64_t)td_dtype_size(mixed->result) : size;
    p.from = in_bytes(back ? &problem->y : &problem->x, size);
    p.to = in_bytes(back ? &problem->x : &problem->y, p.to_size);
    apply_plan_set_groups(&p);
    int64_t rows = rows_of_block(&p);
    td_conv_classes_take(&p.classes, rows, problem->kernels->rows, space);
    take_room(&p, space);
    if (space->base) {
        apply_plan_cut(&p, rows);
    }
    return p;
}
