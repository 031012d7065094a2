/* Convolution (cross-correlation, as everywhere in the field) of images in the device's layout. */
#include "autograd/fused.h"
#include "autograd/ops/op.h"

static void conv2d_backward(td_node *node, const td_tensor *dy)
{
    const td_conv2d_params *params = td_params_of(node);
    const td_kernels *kernels = td_kernels_for(dy);
    td_grad_slot dx = td_input_grad(node, 0), dw = td_input_grad(node, 1);
    if (dx.grad != NULL) {
        kernels->conv2d_grad_input(dx.grad, dy, td_saved(node, 1), params, dx.accumulate);
    }
    if (dw.grad != NULL) {
        kernels->conv2d_grad_weight(dw.grad, dy, td_saved(node, 0), params, dw.accumulate);
    }
    td_op_grad_channel_sum(node, 2, dy, 1);
}

static void conv2d_check(const td_tensor *x, const td_tensor *w, const td_tensor *b, int64_t groups,
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
    td_op_check_bias("conv2d", x, w, b, w->shape[0], at);
}

static td_conv2d_params read_options(const td_conv2d_options *o, td_site at)
{
    td_conv2d_params params = { .groups = o->groups != 0 ? o->groups : 1, .math = td_math_now() };
    td_op_pair(o->stride, o->stride_hw, 1, 1, "conv2d", "stride", params.stride, at);
    td_op_pair(o->padding, o->padding_hw, 0, 0, "conv2d", "padding", params.pad, at);
    td_op_pair(o->dilation, o->dilation_hw, 1, 1, "conv2d", "dilation", params.dilation, at);
    return params;
}

static td_shape conv2d_output_shape(const td_tensor *x, const td_tensor *w,
                                    const td_conv2d_params *p, td_site at)
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

/* Different padding at the two ends of a dimension: the kernel pads both ends by the smaller
 * number, and the rest is added to x, which is copied for that. */
static td_tensor *pad_sides(td_tensor *x, const td_tensor *w, const td_conv2d_options *o,
                            td_conv2d_params *p, td_site at)
{
    bool given = o->pads[0] != 0 || o->pads[1] != 0 || o->pads[2] != 0 || o->pads[3] != 0;
    if (!given && !o->same) {
        return x;
    }
    TD_REQUIRE(!(given && o->same) && p->pad[0] == 0 && p->pad[1] == 0, at,
               "conv2d: give one of .padding, .pads and .same");
    int64_t before[4] = { 0 }, after[4] = { 0 };
    for (int d = 0; d < 2; d++) {
        before[2 + d] = o->pads[d];
        after[2 + d] = o->pads[2 + d];
        if (o->same) {
            td_op_same_padding(x->shape[2 + d], w->shape[2 + d], p->stride[d], p->dilation[d],
                               &before[2 + d], &after[2 + d]);
        }
        TD_REQUIRE(before[2 + d] >= 0 && after[2 + d] >= 0, at,
                   "conv2d: pads %d,%d,%d,%d must not be negative", o->pads[0], o->pads[1],
                   o->pads[2], o->pads[3]);
        p->pad[d] = (int)(before[2 + d] < after[2 + d] ? before[2 + d] : after[2 + d]);
        before[2 + d] -= p->pad[d];
        after[2 + d] -= p->pad[d];
    }
    return td_op_padded(x, before, after, 0.0, at);
}

td_tensor *td_conv2d_at(td_conv2d_options options, td_site at)
{
    td_conv2d_params params = read_options(&options, at);
    td_tensor *x = td_op_input(options.x, "conv2d", "x", TD_RULE_OF(conv2d), at);
    td_tensor *w = options.w, *b = options.b;
    conv2d_check(x, w, b, params.groups, at);
    x = pad_sides(x, w, &options, &params, at);
    td_shape shape = conv2d_output_shape(x, w, &params, at);
    td_tensor *y = td_step_new(shape, x->dtype, TD_IMAGE, td_device_of(x), at);
    td_kernels_for(x)->conv2d(y, x, w, b, &params);
    return TD_RECORD(at, .op = "conv2d", .backward = conv2d_backward, .can_split = true, .out = y,
                     .inputs = { x, w, b },
                     .saved = { td_needs_grad(w) ? x : NULL, td_needs_grad(x) ? w : NULL },
                     TD_PARAMS(&params));
}
