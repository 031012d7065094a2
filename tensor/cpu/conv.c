#include "tensor/cpu/conv_internal.h"
#include "tensor/cpu/conv_wino.h"

#include <math.h>

enum {
    /* Up to this many input channels, the taps of a row are multiplied as one: a tap alone would
     * be too short a sum. The padding at the sides is multiplied then, and nowhere else. */
    ROWS_MAX_CHANNELS = 8,
    SHORT_SIDES = 8, /* pixels */
};

/* ---- taps ---- */

/* The pixel that pixel q meets at a tap, or -1. */
static int64_t source_pixel(const td_conv_axis *axis, bool backward, int64_t q, int tap)
{
    if (!backward) {
        int64_t in = q * axis->stride - axis->pad + (int64_t)tap * axis->dilation;
        return in >= 0 && in < axis->in ? in : -1;
    }
    int64_t shifted = q + axis->pad - (int64_t)tap * axis->dilation;
    if (shifted < 0 || shifted % axis->stride != 0) {
        return -1;
    }
    return shifted / axis->stride < axis->out ? shifted / axis->stride : -1;
}

int64_t td_conv_tap_meets(const td_conv_axis *axis, int tap)
{
    int64_t offset = axis->pad - (int64_t)tap * axis->dilation;
    int64_t first = offset > 0 ? td_divide_up(offset, axis->stride) : 0;
    int64_t most = axis->in - 1 + offset;
    int64_t last = most < 0 ? -1 : td_min64(most / axis->stride, axis->out - 1);
    return last >= first ? last - first + 1 : 0;
}

int64_t td_conv_axis_meets(const td_conv_axis *axis)
{
    int64_t all = 0;
    for (int tap = 0; tap < axis->kernel; tap++) {
        all += td_conv_tap_meets(axis, tap);
    }
    return all;
}

td_conv_taps td_conv_taps_make(const td_conv_axis *axis, bool backward, td_conv_space *space)
{
    td_conv_taps taps = { .size = backward ? axis->in : axis->out, .kernel = axis->kernel };
    taps.source = td_conv_take(space, taps.size * taps.kernel * (int64_t)sizeof(int32_t));
    taps.rank = td_conv_take(space, taps.kernel * (int64_t)sizeof(int32_t));
    taps.first = td_conv_take(space, taps.kernel * (int64_t)sizeof(int32_t));
    taps.end = td_conv_take(space, taps.kernel * (int64_t)sizeof(int32_t));
    if (!space->base) {
        return taps;
    }
    for (int tap = 0; tap < taps.kernel; tap++) {
        taps.first[tap] = taps.end[tap] = 0;
        for (int64_t q = 0; q < taps.size; q++) {
            int64_t source = source_pixel(axis, backward, q, tap);
            taps.source[q * taps.kernel + tap] = (int32_t)source;
            if (source >= 0) {
                taps.first[tap] = taps.end[tap] > 0 ? taps.first[tap] : (int32_t)q;
                taps.end[tap] = (int32_t)q + 1;
            }
        }
        taps.rank[tap] = taps.end[tap] > 0 ? taps.alive++ : -1;
    }
    return taps;
}

td_turns td_conv_turns(const td_conv_problem *problem, const td_conv_taps *h, const td_conv_taps *w,
                       int64_t blocks, int64_t panels, int threads)
{
    /* Of one group, as all are alike. */
    int64_t x = problem->ic * problem->h.in * problem->w.in;
    int64_t y = problem->oc * problem->h.out * problem->w.out;
    int64_t weights = problem->ic * problem->oc * h->alive * w->alive;
    return td_turns_make(blocks, panels, weights, problem->n * (x + y), threads);
}

bool td_conv_taps_follow(const td_conv_taps *taps, int64_t q, int64_t apart, int step)
{
    if (q + apart >= taps->size) {
        return false;
    }
    const int32_t *here = taps->source + q * taps->kernel, *next = here + apart * taps->kernel;
    for (int tap = 0; tap < taps->kernel; tap++) {
        if (here[tap] < 0 ? next[tap] >= 0 : next[tap] != here[tap] + step) {
            return false;
        }
    }
    return true;
}

/* ---- descriptions ---- */

static td_conv_strides dense(int64_t width, int64_t n, int64_t channels)
{
    return (td_conv_strides){ width * n * channels, n * channels, channels };
}

static td_conv_problem problem_of(const td_conv2d_desc *d)
{
    return (td_conv_problem){
        .dtype = d->dtype,
        .kernels = td_gemm_kernels_for(d->dtype),
        .n = d->n,
        .groups = d->groups,
        .ic = d->ic / d->groups,
        .oc = d->oc / d->groups,
        .oc_all = d->oc,
        .h = { d->ih, d->oh, d->kh, d->stride_h, d->pad_h, d->dil_h },
        .w = { d->iw, d->ow, d->kw, d->stride_w, d->pad_w, d->dil_w },
        .x = dense(d->iw, d->n, d->ic),
        .y = dense(d->ow, d->n, d->oc),
    };
}

static bool depthwise(const td_conv2d_desc *d)
{
    return d->groups == d->ic && d->groups == d->oc && d->groups > 1;
}

/* Where every pixel of y meets one of x, its own, all of them are as pictures of one pixel. */
static td_conv_problem without_space(const td_conv2d_desc *d)
{
    td_conv_problem p = problem_of(d);
    if (d->kh == 1 && d->kw == 1 && d->stride_h == 1 && d->stride_w == 1 && d->pad_h == 0 &&
        d->pad_w == 0) {
        p.n *= d->ih * d->iw;
        p.h = p.w = (td_conv_axis){ 1, 1, 1, 1, 0, 1 };
        p.x = dense(1, p.n, d->ic);
        p.y = dense(1, p.n, d->oc);
    }
    return p;
}

static bool uses_rows(const td_conv2d_desc *d)
{
    return d->groups == 1 && d->ic <= ROWS_MAX_CHANNELS && d->kw > 1 && d->dil_w == 1;
}

/* The convolution over x as td_conv_rows leaves it: the KW taps of a row are now KW*ic channels,
 * which begin stride_w*ic further on for each pixel. */
static td_conv_problem problem_over_rows(const td_conv2d_desc *d)
{
    td_conv_problem p = problem_of(d);
    int64_t padded = d->iw + 2 * (int64_t)d->pad_w;
    p.ic = d->kw * d->ic;
    p.w = (td_conv_axis){ padded - d->kw + 1, d->ow, 1, d->stride_w, 0, 1 };
    p.x = (td_conv_strides){ d->n * padded * d->ic, d->ic, padded * d->ic };
    return p;
}

static bool empty(const td_conv2d_desc *d, td_conv2d_pass pass)
{
    switch (pass) {
    case TD_CONV2D_FORWARD:
        return d->n == 0 || d->oc == 0 || d->oh == 0 || d->ow == 0;
    case TD_CONV2D_BACKWARD_DATA:
        return d->n == 0 || d->ic == 0 || d->ih == 0 || d->iw == 0;
    case TD_CONV2D_BACKWARD_WEIGHTS:
        return d->oc == 0 || d->ic == 0 || d->kh == 0 || d->kw == 0;
    case TD_CONV2D_BACKWARD_BIAS:
        break;
    }
    return d->oc == 0;
}

/* ---- which way ---- */

typedef enum way {
    WAY_WINOGRAD,
    WAY_DEPTHWISE,
    WAY_NARROW, /* taps in the place of the result's few channels */
    WAY_FEW,    /* all taps as one list */
    WAY_THIN,   /* backward-weights with vectors along x's channels */
    WAY_ROWS,   /* the taps of a row as channels */
    WAY_GROUPS, /* several groups as one */
    WAY_DIRECT,
} way;

/* A pass of a convolution: the way, and the problem as that sees it. */
typedef struct route {
    way way;
    td_conv_problem given, problem;
    int64_t joined; /* groups */
    int64_t
        prepared; /* bytes at the begin of the workspace: rows, or the weights of joined groups */
    int64_t rows; /* the same if it is rows, or 0 */
} route;

static td_conv_narrow_pass narrow_pass(td_conv2d_pass pass)
{
    return pass == TD_CONV2D_FORWARD         ? TD_CONV_NARROW_FORWARD
           : pass == TD_CONV2D_BACKWARD_DATA ? TD_CONV_NARROW_DATA
                                             : TD_CONV_NARROW_WEIGHTS;
}

static bool uses_winograd(const td_conv2d_desc *d, td_conv2d_pass pass)
{
    return d->winograd != TD_WINOGRAD_NEVER && td_wino_possible(d) &&
           (d->winograd == TD_WINOGRAD_ALWAYS || td_wino_wins(d, pass));
}

/* Whether few channels become few others: then rows of taps are long enough for sums in vectors. */
static bool rows_sum(const td_conv2d_desc *d, td_conv2d_pass pass)
{
    if (pass != TD_CONV2D_FORWARD || !uses_rows(d)) {
        return false;
    }
    td_conv_problem rows = problem_over_rows(d);
    return td_conv_dots_win(&rows, false);
}

/* Whether the pixels of a row, which meet all taps in the middle and fewer towards the sides, are
 * too few for so many products. */
static bool has_short_sides(const td_conv2d_desc *d)
{
    int64_t parts = 1 + 2 * td_divide_up(d->pad_w, d->stride_w);
    return d->pad_w > 0 && d->n * d->ow < SHORT_SIDES * td_min64(parts, d->ow);
}

static void take_rows(const td_conv2d_desc *d, route *r)
{
    r->problem = problem_over_rows(d);
    r->rows = td_conv_rows_bytes(d);
    r->prepared = r->rows;
}

/* Whether vectors run along x's channels, or along rows of taps of them. */
static bool finds_thin(const td_conv2d_desc *d, route *r)
{
    /* In products of a vector: copying a number into rows. */
    static const double COPY_COST = 0.7;
    double few = INFINITY, rows = INFINITY, thin = td_conv_thin_cost(&r->given);
    if (td_conv_few_wins(&r->given)) {
        few = td_conv_few_cost(&r->given);
    }
    if (uses_rows(d)) {
        td_conv_problem over_rows = problem_over_rows(d);
        rows = td_conv_thin_cost(&over_rows) +
               COPY_COST * (double)(d->n * d->ih) * (double)(d->iw * d->ic);
    }
    if (thin == INFINITY || few <= fmin(thin, rows)) {
        return false;
    }
    r->way = WAY_THIN;
    if (rows < thin) {
        take_rows(d, r);
    }
    return true;
}

static route find_route(const td_conv2d_desc *d, td_conv2d_pass pass)
{
    bool back = pass == TD_CONV2D_BACKWARD_DATA;
    route r = { .way = WAY_DIRECT, .given = depthwise(d) ? problem_of(d) : without_space(d) };
    r.problem = r.given;
    if (uses_winograd(d, pass)) {
        r.way = WAY_WINOGRAD;
    } else if (depthwise(d)) {
        r.way = WAY_DEPTHWISE;
    } else if (td_conv_pixels_win(&r.given, pass)) {
        r.problem.pixels = true;
        r.problem.sharing = td_conv_pixels_groups(&r.given, pass == TD_CONV2D_BACKWARD_WEIGHTS);
    } else if (pass == TD_CONV2D_BACKWARD_WEIGHTS && finds_thin(d, &r)) {
        return r;
    } else if (!rows_sum(d, pass) && td_conv_narrow_wins(&r.given, narrow_pass(pass))) {
        r.way = WAY_NARROW;
    } else if (pass != TD_CONV2D_BACKWARD_WEIGHTS && !rows_sum(d, pass) &&
               td_conv_dots_win(&r.given, back)) {
        r.way = WAY_DIRECT;
    } else if (!back && !rows_sum(d, pass) && td_conv_few_wins(&r.given)) {
        r.way = WAY_FEW;
        if (pass == TD_CONV2D_BACKWARD_WEIGHTS && uses_rows(d) && has_short_sides(d)) {
            take_rows(d, &r);
        }
    } else if (!back && uses_rows(d)) {
        r.way = WAY_ROWS;
        take_rows(d, &r);
    } else {
        int64_t from = back ? r.given.oc : r.given.ic, to = back ? r.given.ic : r.given.oc;
        r.problem.sharing = td_conv_groups_sharing(&r.given, from, to);
        r.joined = td_conv_groups_joined(&r.given, from, to);
        if (r.problem.sharing == 0 && r.joined > 1) {
            r.way = WAY_GROUPS;
            r.problem = td_conv_groups_join(&r.given, r.joined);
            r.prepared = td_conv_groups_bytes(&r.given, r.joined);
        }
    }
    return r;
}

static int64_t apply_workspace(const route *r, bool backward)
{
    td_conv_apply apply = { .problem = &r->problem, .backward = backward };
    switch (r->way) {
    case WAY_DEPTHWISE:
        return td_conv_depthwise_apply_workspace(&apply);
    case WAY_NARROW:
        return td_conv_narrow_apply_workspace(&apply);
    case WAY_FEW:
        return r->prepared + td_conv_few_apply_workspace(&apply);
    default:
        return r->prepared + td_conv_apply_workspace(&apply);
    }
}

static int64_t reduce_workspace(const route *r)
{
    td_conv_reduce reduce = { .problem = &r->problem };
    switch (r->way) {
    case WAY_DEPTHWISE:
        return td_conv_depthwise_reduce_workspace(&reduce);
    case WAY_NARROW:
        return td_conv_narrow_reduce_workspace(&reduce);
    case WAY_FEW:
        return r->prepared + td_conv_few_reduce_workspace(&reduce);
    case WAY_THIN:
        return r->prepared + td_conv_thin_workspace(&reduce);
    default:
        return r->prepared + td_conv_reduce_workspace(&reduce);
    }
}

size_t td_conv2d_workspace(const td_conv2d_desc *desc, td_conv2d_pass pass)
{
    if (empty(desc, pass)) {
        return 0;
    }
    if (pass == TD_CONV2D_BACKWARD_BIAS) {
        return (size_t)td_conv_bias_workspace(desc->oh * desc->ow * desc->n, desc->oc);
    }
    route r = find_route(desc, pass);
    if (r.way == WAY_WINOGRAD) {
        return (size_t)td_wino_workspace(&(td_wino_conv){ .desc = desc, .pass = pass });
    }
    return (size_t)(pass == TD_CONV2D_BACKWARD_WEIGHTS
                        ? reduce_workspace(&r)
                        : apply_workspace(&r, pass == TD_CONV2D_BACKWARD_DATA));
}

/* ---- passes ---- */

static void run_apply(td_pool *pool, const route *r, const td_conv2d_desc *desc,
                      td_conv_apply *apply, char *workspace)
{
    apply->problem = &r->problem;
    if (r->rows > 0) {
        td_conv_rows_run(pool, &(td_conv_rows){ desc, apply->source, workspace });
        apply->source = workspace;
    }
    switch (r->way) {
    case WAY_DEPTHWISE:
        td_conv_depthwise_apply_run(pool, apply, workspace);
        return;
    case WAY_NARROW:
        td_conv_narrow_apply_run(pool, apply, workspace);
        return;
    case WAY_FEW:
        td_conv_few_apply_run(pool, apply, workspace + r->prepared);
        return;
    case WAY_GROUPS:
        td_conv_groups_spread(&r->given, r->joined, workspace, apply->weights);
        apply->weights = workspace;
        break;
    default:
        break;
    }
    td_conv_apply_run(pool, apply, workspace + r->prepared);
}

void td_conv2d_forward(td_pool *pool, const td_conv2d_desc *desc, const void *x, const void *w,
                       const void *bias, void *y, void *workspace)
{
    if (empty(desc, TD_CONV2D_FORWARD)) {
        return;
    }
    route r = find_route(desc, TD_CONV2D_FORWARD);
    if (r.way == WAY_WINOGRAD) {
        td_wino_conv conv = {
            .desc = desc, .pass = TD_CONV2D_FORWARD, .x = x, .w = w, .y = y, .bias = bias
        };
        td_wino_run(pool, &conv, workspace);
        return;
    }
    td_conv_apply apply = { .source = x, .weights = w, .bias = bias, .result = y };
    run_apply(pool, &r, desc, &apply, workspace);
}

void td_conv2d_backward_data(td_pool *pool, const td_conv2d_desc *desc, const void *dy,
                             const void *w, void *dx, bool accumulate, void *workspace)
{
    if (empty(desc, TD_CONV2D_BACKWARD_DATA)) {
        return;
    }
    route r = find_route(desc, TD_CONV2D_BACKWARD_DATA);
    if (r.way == WAY_WINOGRAD) {
        td_wino_conv conv = { .desc = desc,
                              .pass = TD_CONV2D_BACKWARD_DATA,
                              .x = dx,
                              .w = w,
                              .y = dy,
                              .accumulate = accumulate };
        td_wino_run(pool, &conv, workspace);
        return;
    }
    td_conv_apply apply = {
        .backward = true, .source = dy, .weights = w, .result = dx, .accumulate = accumulate
    };
    run_apply(pool, &r, desc, &apply, workspace);
}

/* The weights' gradient of joined groups, and of that what belongs to groups. */
static void run_joined_reduce(td_pool *pool, const route *r, const td_conv_reduce *reduce,
                              char *workspace)
{
    td_conv_reduce whole = *reduce;
    whole.dw = workspace;
    whole.accumulate = false;
    td_conv_reduce_run(pool, &whole, workspace + r->prepared);
    td_conv_groups_collect(&r->given, r->joined, reduce->dw, workspace, reduce->accumulate);
}

void td_conv2d_backward_weights(td_pool *pool, const td_conv2d_desc *desc, const void *x,
                                const void *dy, void *dw, bool accumulate, void *workspace)
{
    if (empty(desc, TD_CONV2D_BACKWARD_WEIGHTS)) {
        return;
    }
    route r = find_route(desc, TD_CONV2D_BACKWARD_WEIGHTS);
    td_conv_reduce reduce = {
        .problem = &r.problem, .x = x, .dy = dy, .dw = dw, .accumulate = accumulate
    };
    if (r.rows > 0) {
        td_conv_rows_run(pool, &(td_conv_rows){ desc, x, workspace });
        reduce.x = workspace;
    }
    switch (r.way) {
    case WAY_WINOGRAD:
        td_wino_run(pool,
                    &(td_wino_conv){ .desc = desc,
                                     .pass = TD_CONV2D_BACKWARD_WEIGHTS,
                                     .x = x,
                                     .w = dw,
                                     .y = dy,
                                     .accumulate = accumulate },
                    workspace);
        return;
    case WAY_DEPTHWISE:
        td_conv_depthwise_reduce_run(pool, &reduce, workspace);
        return;
    case WAY_NARROW:
        td_conv_narrow_reduce_run(pool, &reduce, workspace);
        return;
    case WAY_FEW:
        td_conv_few_reduce_run(pool, &reduce, (char *)workspace + r.prepared);
        return;
    case WAY_THIN:
        td_conv_thin_run(pool, &reduce, (char *)workspace + r.prepared);
        return;
    case WAY_GROUPS:
        run_joined_reduce(pool, &r, &reduce, workspace);
        return;
    case WAY_ROWS:
    case WAY_DIRECT:
        break;
    }
    td_conv_reduce_run(pool, &reduce, (char *)workspace + r.prepared);
}

void td_conv2d_backward_bias(td_pool *pool, const td_conv2d_desc *desc, const void *dy, void *db,
                             bool accumulate, void *workspace)
{
    if (!empty(desc, TD_CONV2D_BACKWARD_BIAS)) {
        td_conv_bias_run(pool, desc->dtype, desc->oh * desc->ow * desc->n, desc->oc, dy, db,
                         accumulate, workspace);
    }
}
