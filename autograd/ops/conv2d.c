/* Convolution (cross-correlation, as everywhere in the field) of images in the device's layout. */
#include "autograd/ops/op.h"

/* The taps of one direction that meet a pixel and not only padding: [*first, *first + *count) has
 * them all. */
static void live_taps(int64_t size, int64_t out, int64_t kernel, int stride, int pad, int dilation,
                      int64_t *first, int64_t *count)
{
    *first = *count = 0;
    for (int64_t k = 0; k < kernel; k++) {
        bool meets = false;
        for (int64_t o = 0; o < out && !meets; o++) {
            int64_t at = o * stride - pad + k * dilation;
            meets = at >= 0 && at < size;
        }
        if (meets) {
            *first = *count == 0 ? k : *first;
            *count = k - *first + 1;
        }
    }
}

/* Of a filter the taps that meet pixels: the rest is neither read nor gets a gradient. */
typedef struct live_filter {
    td_conv2d_params params; /* of the convolution with these taps alone */
    td_shape shape;
    int64_t stride[4];
    int64_t begin, end; /* their elements of the whole */
} live_filter;

/* On small images most of a filter may meet nothing: a 3x3 filter on 1x1 images is its middle.
 * False if nothing can be left out, or what is left is not one piece of memory (on GPUs taps are
 * not, but of a single filter). */
static bool find_live(live_filter *live, const td_tensor *w, const td_tensor *x, const td_tensor *y,
                      const td_conv2d_params *params)
{
    int64_t first[2], count[2];
    for (int d = 0; d < 2; d++) {
        live_taps(x->shape[2 + d], y->shape[2 + d], w->shape[2 + d], params->stride[d],
                  params->pad[d], params->dilation[d], &first[d], &count[d]);
        if (count[d] == 0 || params->pad[d] < first[d] * params->dilation[d]) {
            return false;
        }
    }
    bool all_rows = count[0] == w->shape[2], all_columns = count[1] == w->shape[3];
    int64_t tap = w->shape[0] * w->shape[1];
    if ((all_rows && all_columns) || (count[0] > 1 && !all_columns) ||
        !td_is_layout(w, TD_FILTER) || w->stride[2] != tap * w->shape[3]) {
        return false;
    }
    live->begin = (first[0] * w->shape[3] + first[1]) * tap;
    live->end = live->begin + count[0] * count[1] * tap;
    live->shape = TD_SHAPE(w->shape[0], w->shape[1], count[0], count[1]);
    td_layout_strides(td_device_of(w), TD_FILTER, live->shape, live->stride);
    live->params = *params;
    for (int d = 0; d < 2; d++) {
        live->params.pad[d] -= (int)first[d] * params->dilation[d];
    }
    return true;
}

/* These taps of the filter, or of its gradient: a header for the time of a call. */
static td_tensor live_taps_of(const live_filter *live, const td_tensor *w)
{
    td_tensor view = td_op_with_shape(w, live->shape, live->stride);
    view.offset += live->begin;
    return view;
}

static void weight_gradient(td_node *node, const td_tensor *dy, const td_tensor *x,
                            const td_conv2d_params *params, const live_filter *live)
{
    const td_kernels *kernels = td_kernels_of(td_device_of(dy));
    td_grad_slot dw =
        live != NULL ? td_input_grad_part(node, 1, live->begin, live->end) : td_input_grad(node, 1);
    if (dw.grad == NULL) {
        return;
    }
    if (live == NULL) {
        kernels->conv2d_grad_weight(dw.grad, dy, x, params, dw.accumulate);
        return;
    }
    td_tensor taps = live_taps_of(live, dw.grad);
    kernels->conv2d_grad_weight(&taps, dy, x, &live->params, dw.accumulate);
}

static void input_gradient(td_node *node, const td_tensor *dy, const td_tensor *w,
                           const td_conv2d_params *params, const live_filter *live)
{
    const td_kernels *kernels = td_kernels_of(td_device_of(dy));
    td_grad_slot dx = td_input_grad(node, 0);
    if (dx.grad == NULL) {
        return;
    }
    if (live == NULL) {
        kernels->conv2d_grad_input(dx.grad, dy, w, params, dx.accumulate);
        return;
    }
    td_tensor taps = live_taps_of(live, w);
    kernels->conv2d_grad_input(dx.grad, dy, &taps, &live->params, dx.accumulate);
}

static void conv2d_backward(td_node *node, const td_tensor *dy)
{
    const td_conv2d_params *params = td_params_of(node);
    live_filter live;
    const live_filter *part =
        find_live(&live, td_node_input(node, 1), td_node_input(node, 0), dy, params) ? &live : NULL;
    input_gradient(node, dy, td_saved(node, 1), params, part);
    if (td_input_needs_grad(node, 1)) {
        weight_gradient(node, dy, td_saved(node, 0), params, part);
    }
    if (td_input_needs_grad(node, 2)) {
        td_op_grad_channel_sum(node, 2, dy, 1);
    }
}

static void check(const td_tensor *x, const td_tensor *w, const td_tensor *b, int64_t groups,
                  td_site at)
{
    td_check_float(w, "conv2d", "the weight", at);
    td_check_mixed(x, w, "conv2d", at);
    TD_REQUIRE(x->ndim == 4 && w->ndim == 4, at,
               "conv2d: x%s and weight%s must be [N,C,H,W] and [out,C/groups,KH,KW]",
               TD_SHAPE_TEXT(x), TD_SHAPE_TEXT(w));
    TD_REQUIRE(groups >= 1 && x->shape[1] % groups == 0 && w->shape[0] % groups == 0, at,
               "conv2d: %lld groups do not divide the channels of x%s and weight%s",
               (long long)groups, TD_SHAPE_TEXT(x), TD_SHAPE_TEXT(w));
    TD_REQUIRE(x->shape[1] == w->shape[1] * groups, at,
               "conv2d: x%s does not fit weight%s with %lld groups: x must have %lld channels",
               TD_SHAPE_TEXT(x), TD_SHAPE_TEXT(w), (long long)groups,
               (long long)(w->shape[1] * groups));
    if (b != NULL) {
        td_check_float(b, "conv2d", "the bias", at);
        td_check_mixed(x, b, "conv2d", at);
        TD_REQUIRE(b->ndim == 1 && b->shape[0] == w->shape[0], at,
                   "conv2d: bias%s does not fit weight%s: it must be [out] ([%lld])",
                   TD_SHAPE_TEXT(b), TD_SHAPE_TEXT(w), (long long)w->shape[0]);
    }
}

static td_conv2d_params read_options(const td_conv2d_options *options, td_site at)
{
    td_conv2d_options given = options != NULL ? *options : (td_conv2d_options){ .groups = 1 };
    td_conv2d_params params = { .groups = given.groups != 0 ? given.groups : 1,
                                .math = td_math_now() };
    td_op_pair(given.stride, 1, 1, "conv2d", "stride", params.stride, at);
    td_op_padding(given.padding, "conv2d", params.pad, at);
    td_op_pair(given.dilation, 1, 1, "conv2d", "dilation", params.dilation, at);
    return params;
}

static td_shape output_shape(const td_tensor *x, const td_tensor *w, const td_conv2d_params *p,
                             td_site at)
{
    td_shape shape = TD_SHAPE(x->shape[0], w->shape[0], 0, 0);
    for (int d = 0; d < 2; d++) {
        TD_REQUIRE(w->shape[2 + d] > 0, at, "conv2d: weight%s has an empty kernel",
                   TD_SHAPE_TEXT(w));
        shape.dim[2 + d] = td_op_windows(x->shape[2 + d], w->shape[2 + d], p->stride[d], p->pad[d],
                                         p->dilation[d]);
    }
    TD_REQUIRE(shape.dim[2] > 0 && shape.dim[3] > 0, at,
               "conv2d: the kernel of weight%s, padding %d,%d, dilation %d,%d, is larger than x%s",
               TD_SHAPE_TEXT(w), p->pad[0], p->pad[1], p->dilation[0], p->dilation[1],
               TD_SHAPE_TEXT(x));
    return shape;
}

td_tensor *(td_conv2d)(td_tensor *x, td_tensor *w, td_tensor *b, const td_conv2d_options *options,
                       td_site at)
{
    td_conv2d_params params = read_options(options, at);
    x = td_op_input(x, "conv2d", "x", TD_RULE_OF(conv2d), at);
    check(x, w, b, params.groups, at);
    td_shape shape = output_shape(x, w, &params, at);
    td_tensor *y = td_step_new(shape, x->dtype, TD_IMAGE, td_device_of(x), at), *sums = NULL;
    if (options != NULL && options->sums != NULL) {
        td_shape pair = TD_SHAPE(2, shape.dim[1]);
        *options->sums = sums = td_step_new(pair, TD_F64, TD_ROW_MAJOR, td_device_of(x), at);
    }
    live_filter live;
    td_tensor taps;
    bool part = find_live(&live, w, x, y, &params);
    if (part) {
        taps = live_taps_of(&live, w);
    }
    td_kernels_of(td_device_of(x))
        ->conv2d(y, x, part ? &taps : w, b, part ? &live.params : &params, sums);
    return td_record(
        &(td_record_args){
            .op = "conv2d",
            .backward = conv2d_backward,
            .out = y,
            .inputs = { x, w, b },
            .input_count = 3,
            .saved = { td_needs_grad(w) ? x : NULL, td_needs_grad(x) ? w : NULL },
            .saved_count = 2,
            .params = &params,
            .params_size = sizeof params,
        },
        at);
}
