/* Convolution on the CPU: chooses the way of each pass by shape and instruction set. */
#include "tensor/cpu/conv_bf16.h"
#include "tensor/cpu/conv_wino.h"

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

int64_t td_conv_meetings(const td_conv_axis *axis)
{
    int64_t count = 0;
    for (int tap = 0; tap < axis->kernel; tap++) {
        count += td_conv_tap_meets(axis, tap);
    }
    return count;
}

td_conv_taps td_conv_taps_make(const td_conv_axis *axis, bool backward, td_conv_space *space)
{
    td_conv_taps taps = { .size = backward ? axis->in : axis->out, .kernel = axis->kernel };
    taps.source = td_conv_take(space, taps.size * taps.kernel * (int64_t)sizeof(int32_t));
    taps.rank = td_conv_take(space, taps.kernel * (int64_t)sizeof(int32_t));
    taps.first = td_conv_take(space, taps.kernel * (int64_t)sizeof(int32_t));
    taps.end = td_conv_take(space, taps.kernel * (int64_t)sizeof(int32_t));
    for (int tap = 0; tap < taps.kernel; tap++) {
        int rank = td_conv_tap_meets(axis, tap) > 0 ? taps.alive++ : -1;
        if (!space->base) {
            continue;
        }
        taps.rank[tap] = rank;
        taps.first[tap] = taps.end[tap] = 0;
        for (int64_t q = 0; q < taps.size; q++) {
            int64_t source = source_pixel(axis, backward, q, tap);
            taps.source[q * taps.kernel + tap] = (int32_t)source;
            if (source >= 0) {
                taps.first[tap] = taps.end[tap] > 0 ? taps.first[tap] : (int32_t)q;
                taps.end[tap] = (int32_t)q + 1;
            }
        }
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

/* ---- descriptions ---- */

static td_conv_strides dense(int64_t width, int64_t n, int64_t channels)
{
    return (td_conv_strides){ width * n * channels, n * channels, channels };
}

td_conv_problem td_conv_problem_of(const td_conv2d_desc *d)
{
    return (td_conv_problem){
        .dtype = d->dtype,
        .kernels = td_gemm_kernels_for(d->bf16 ? TD_BF16 : d->dtype),
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

/* With 1x1 taps, stride 1 and no padding, pixels count as images of one pixel. */
static td_conv_problem view_of(const td_conv2d_desc *d)
{
    td_conv_problem p = td_conv_problem_of(d);
    if (depthwise(d)) {
        return p;
    }
    if (d->kh == 1 && d->kw == 1 && d->stride_h == 1 && d->stride_w == 1 && d->pad_h == 0 &&
        d->pad_w == 0) {
        p.n *= d->ih * d->iw;
        p.h = p.w = (td_conv_axis){ 1, 1, 1, 1, 0, 1 };
        p.x = dense(1, p.n, d->ic);
        p.y = dense(1, p.n, d->oc);
    }
    p.sharing = td_conv_groups_sharing(&p);
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
    }
    return true;
}

/* ---- a pass ---- */

static void run_weights(td_pool *pool, const td_conv2d_call *call, const td_conv_problem *problem,
                        td_conv_space *space)
{
    td_conv_reduce reduce = { .problem = problem,
                              .x = call->x,
                              .dy = call->y,
                              .dw = (void *)call->w,
                              .accumulate = call->accumulate };
    (depthwise(call->desc) ? td_conv_depthwise_reduce : td_conv_reduce_run)(pool, &reduce, space);
}

static void run_images(td_pool *pool, const td_conv2d_call *call, const td_conv_problem *problem,
                       td_conv_space *space)
{
    bool back = call->pass == TD_CONV2D_BACKWARD_DATA;
    td_conv_apply apply = { .problem = problem,
                            .backward = back,
                            .source = back ? call->y : call->x,
                            .weights = call->w,
                            .bias = back ? NULL : call->bias,
                            .result = (void *)(back ? call->x : call->y),
                            .accumulate = back && call->accumulate };
    (depthwise(call->desc) ? td_conv_depthwise_apply : td_conv_apply_run)(pool, &apply, space);
}

/* Runs a pass in the way that its shape and the instruction set decide. A space that only measures
 * says what the pass needs, and nothing is computed. */
static void run_pass(td_pool *pool, const td_conv2d_call *call, td_conv_space *space)
{
    const td_conv2d_desc *d = call->desc;
    bool allowed = d->winograd != TD_WINOGRAD_NEVER && td_wino_possible(d);
    if (d->bf16) {
        td_conv_bf16_run(pool, call, space);
    } else if (empty(d, call->pass)) {
        return;
    } else if (allowed && (d->winograd == TD_WINOGRAD_ALWAYS || td_wino_wins(d, call->pass))) {
        td_wino_run(pool, call, space);
    } else {
        td_conv_problem problem = view_of(d);
        bool weights = call->pass == TD_CONV2D_BACKWARD_WEIGHTS;
        (weights ? run_weights : run_images)(pool, call, &problem, space);
    }
}

size_t td_conv2d_workspace(const td_conv2d_desc *desc, td_conv2d_pass pass)
{
    td_conv_space space = { 0 };
    run_pass(NULL, &(td_conv2d_call){ .desc = desc, .pass = pass }, &space);
    return (size_t)space.used;
}

void td_conv2d_run(td_pool *pool, const td_conv2d_call *call, void *workspace)
{
    run_pass(pool, call, &(td_conv_space){ .base = workspace });
}
