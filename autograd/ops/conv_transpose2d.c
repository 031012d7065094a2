/* Transposed convolution: what a convolution of the same options does with a gradient. So forward
 * is the convolution's gradient by its input, and backward the convolution and its gradient by the
 * weight. */
#include "autograd/fused.h"
#include "autograd/ops/op.h"

static void conv_transpose2d_backward(td_node *node, const td_tensor *dy)
{
    const td_conv2d_params *params = td_params_of(node);
    const td_kernels *kernels = td_kernels_for(dy);
    if (td_input_needs_grad(node, 0)) {
        const td_tensor *x = td_node_input(node, 0);
        td_tensor *dx =
            td_step_new(td_shape_of(x), x->dtype, TD_IMAGE, td_device_of(dy), td_node_site(node));
        kernels->conv2d(dx, dy, td_saved(node, 1), NULL, params);
        td_input_grad_is(node, 0, dx);
    }
    td_grad_slot dw = td_input_grad(node, 1);
    if (dw.grad != NULL) {
        kernels->conv2d_grad_weight(dw.grad, td_saved(node, 0), dy, params, dw.accumulate);
    }
    td_op_grad_channel_sum(node, 2, dy, 1);
}

static void transposed_check(const td_tensor *x, const td_tensor *w, const td_tensor *b,
                             int64_t groups, td_site at)
{
    td_check_float(w, "conv_transpose2d", "the weight", at);
    td_check_mixed(x, w, "conv_transpose2d", at);
    TD_REQUIRE(x->ndim == 4 && w->ndim == 4 && x->shape[1] == w->shape[0] && groups >= 1 &&
                   w->shape[0] % groups == 0,
               at,
               "conv_transpose2d: x%s and weight%s with %lld groups must be [N,C,H,W] and "
               "[C,out/groups,KH,KW], and groups must divide C",
               TD_SHAPE_TEXT(x), TD_SHAPE_TEXT(w), (long long)groups);
    td_op_check_bias("conv_transpose2d", x, w, b, w->shape[1] * groups, at);
}

static td_shape transposed_output_shape(const td_tensor *x, const td_tensor *w,
                                        const td_conv2d_params *p, const int more[2], td_site at)
{
    td_shape shape = TD_SHAPE(x->shape[0], w->shape[1] * p->groups, 0, 0);
    for (int d = 0; d < 2; d++) {
        int64_t size = (x->shape[2 + d] - 1) * p->stride[d] - 2 * (int64_t)p->pad[d] +
                       p->dilation[d] * (w->shape[2 + d] - 1) + more[d] + 1;
        TD_REQUIRE(more[d] < p->stride[d], at,
                   "conv_transpose2d: output_padding %d must be less than the stride %d", more[d],
                   p->stride[d]);
        TD_REQUIRE(size > 0 && x->shape[2 + d] > 0 && w->shape[2 + d] > 0, at,
                   "conv_transpose2d: x%s and weight%s, padding %d,%d, leave nothing",
                   TD_SHAPE_TEXT(x), TD_SHAPE_TEXT(w), p->pad[0], p->pad[1]);
        shape.dim[2 + d] = size;
    }
    return shape;
}

td_tensor *td_conv_transpose2d_at(td_conv_transpose2d_options o, td_site at)
{
    const char *op = "conv_transpose2d";
    td_conv2d_params params = { .groups = o.groups != 0 ? o.groups : 1, .math = td_math_now() };
    int more[2];
    td_op_pair(o.stride, o.stride_hw, 1, 1, op, "stride", params.stride, at);
    td_op_pair(o.padding, o.padding_hw, 0, 0, op, "padding", params.pad, at);
    td_op_pair(o.dilation, o.dilation_hw, 1, 1, op, "dilation", params.dilation, at);
    td_op_pair(o.output_padding, o.output_padding_hw, 0, 0, op, "output_padding", more, at);
    td_tensor *x = td_op_input(o.x, op, "x", TD_RULE_OF(conv_transpose2d), at);
    td_tensor *w = o.w, *b = o.b;
    transposed_check(x, w, b, params.groups, at);
    const td_kernels *kernels = td_kernels_for(x);
    td_tensor *y = td_step_new(transposed_output_shape(x, w, &params, more, at), x->dtype, TD_IMAGE,
                               td_device_of(x), at);
    if (b != NULL) { /* the kernel adds to it */
        td_tensor column = td_op_reshaped(b, TD_SHAPE(b->shape[0], 1, 1), at);
        td_tensor wide = td_op_expanded(&column, td_shape_of(y));
        kernels->copy(y, &wide);
    }
    kernels->conv2d_grad_input(y, x, w, &params, b != NULL);
    return TD_RECORD(
        at, .op = op, .backward = conv_transpose2d_backward, .out = y, .inputs = { x, w, b },
        .saved = { td_needs_grad(w) ? x : NULL, td_needs_grad(x) ? w : NULL }, TD_PARAMS(&params));
}
