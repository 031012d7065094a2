/* Pooling of [N,C,H,W]: the largest or the mean of each window. */
#include "autograd/fused.h"
#include "autograd/ops/op.h"

#include <math.h>
#include <string.h>

/* ---- what they share ---- */

td_pool2d_params td_op_pool_params(const td_tensor *x, const td_pool2d_options *options,
                                   const char *op, td_site at)
{
    TD_REQUIRE(x->ndim == 4, at, "%s: x%s must be [N,C,H,W]", op, TD_SHAPE_TEXT(x));
    td_pool2d_params params = { .count_include_pad = !options->exclude_pad,
                                .ceil_mode = options->ceil_mode };
    td_op_pair(options->kernel, options->kernel_hw, 0, 1, op, "kernel", params.kernel, at);
    td_op_pair(options->padding, options->padding_hw, 0, 0, op, "padding", params.pad, at);
    if (options->stride == 0 && options->stride_hw[0] == 0 && options->stride_hw[1] == 0) {
        memcpy(params.stride, params.kernel, sizeof params.stride);
    } else {
        td_op_pair(options->stride, options->stride_hw, 0, 1, op, "stride", params.stride, at);
    }
    for (int d = 0; d < 2; d++) {
        TD_REQUIRE(params.pad[d] <= params.kernel[d] / 2, at,
                   "%s: padding %d,%d with kernel %d,%d: padding can be at most half the kernel",
                   op, params.pad[0], params.pad[1], params.kernel[0], params.kernel[1]);
    }
    return params;
}

/* ceil_mode: a last window may reach up to stride - 1 places beyond the padding, if it begins
 * inside the image or the padding before it. */
static int64_t pool_windows(int64_t size, const td_pool2d_params *p, int d, int dilation)
{
    int64_t beyond = p->ceil_mode ? p->stride[d] - 1 : 0;
    int64_t count = td_op_windows(size + beyond, p->kernel[d], p->stride[d], p->pad[d], dilation);
    bool begins_outside = p->ceil_mode && (count - 1) * p->stride[d] >= size + p->pad[d];
    return begins_outside ? count - 1 : count;
}

td_tensor *td_op_pool_output(const td_tensor *x, const td_pool2d_params *p, td_dtype dtype,
                             const char *op, td_site at)
{
    td_shape shape = td_shape_of(x);
    for (int d = 0; d < 2; d++) {
        shape.dim[2 + d] = pool_windows(x->shape[2 + d], p, d, 1);
    }
    TD_REQUIRE(shape.dim[2] > 0 && shape.dim[3] > 0, at,
               "%s: a kernel of %d by %d, padding %d,%d, is larger than x%s", op, p->kernel[0],
               p->kernel[1], p->pad[0], p->pad[1], TD_SHAPE_TEXT(x));
    return td_step_new(shape, dtype, TD_IMAGE, td_device_of(x), at);
}

/* ---- the largest ---- */

td_pool2d_params td_op_max_pool_params(const td_tensor *x, const td_pool2d_options *options,
                                       const char *op, td_site at)
{
    td_pool2d_params params = td_op_pool_params(x, options, op, at);
    TD_REQUIRE(params.kernel[0] * (int64_t)params.kernel[1] <= 255, at,
               "%s: a kernel of %d by %d has more than 255 places", op, params.kernel[0],
               params.kernel[1]);
    return params;
}

static void max_pool2d_backward(td_node *node, const td_tensor *dy)
{
    td_grad_slot slot = td_input_grad(node, 0);
    td_kernels_for(dy)->max_pool2d_grad(slot.grad, dy, td_saved(node, 0), td_params_of(node),
                                        slot.accumulate);
}

/* Along one side: the windows' places next to each other in a new dimension, and their maximum. For
 * windows that the kernel does not take; the first largest wins here, too. */
static td_tensor *max_of_taps(td_tensor *x, const td_pool2d_params *p, int d, int dilation,
                              td_site at)
{
    int64_t count = pool_windows(x->shape[2 + d], p, d, dilation), stride = p->stride[d];
    int64_t end = (count - 1) * stride + (int64_t)dilation * (p->kernel[d] - 1) + 1;
    int64_t before[4] = { 0 }, after[4] = { 0 }, missing = end - x->shape[2 + d] - p->pad[d];
    before[2 + d] = p->pad[d];
    after[2 + d] = missing > 0 ? missing : 0;
    TD_REQUIRE(count > 0, at, "max_pool2d: a kernel of %d by %d, padding %d,%d, is larger than x%s",
               p->kernel[0], p->kernel[1], p->pad[0], p->pad[1], TD_SHAPE_TEXT(x));
    td_tensor *padded = td_op_padded(x, before, after, -INFINITY, at);
    td_shape shape = td_shape_of(x);
    shape.dim[2 + d] = count;
    td_shape with_tap = { .ndim = 5,
                          .dim = { shape.dim[0], shape.dim[1], 1, shape.dim[2], shape.dim[3] } };
    td_tensor **taps = td_step_bytes((size_t)p->kernel[d] * sizeof *taps);
    for (int k = 0; k < p->kernel[d]; k++) {
        int64_t first = (int64_t)k * dilation;
        taps[k] = td_slice_at(padded, 2 + d, first, first + (count - 1) * stride + 1, stride, at);
        taps[k] = td_reshape_at(taps[k], with_tap, at);
    }
    return td_max_dim_at(td_cat_at(taps, p->kernel[d], 2, at), 2, false, at);
}

td_tensor *td_max_pool2d_at(td_pool2d_options options, td_site at)
{
    td_tensor *x = td_op_input(options.x, "max_pool2d", "x", TD_RULE_OF(max_pool2d), at);
    td_pool2d_params params = td_op_pool_params(x, &options, "max_pool2d", at);
    int dilation[2];
    td_op_pair(options.dilation, options.dilation_hw, 1, 1, "max_pool2d", "dilation", dilation, at);
    bool dilated = dilation[0] > 1 || dilation[1] > 1;
    if (dilated || params.kernel[0] * (int64_t)params.kernel[1] > 255) {
        td_tensor *rows = max_of_taps(x, &params, 1, dilation[1], at);
        return td_cast_at(max_of_taps(rows, &params, 0, dilation[0], at), x->dtype, at);
    }
    td_tensor *y = td_op_pool_output(x, &params, x->dtype, "max_pool2d", at);
    td_tensor *index = NULL; /* where the largest was, in one byte */
    if (td_needs_grad(x) && td_grad_enabled()) {
        index = td_op_pool_output(x, &params, TD_U8, "max_pool2d", at);
    }
    td_kernels_for(x)->max_pool2d(y, index, x, &params);
    return TD_RECORD(at, .op = "max_pool2d", .backward = max_pool2d_backward, .out = y,
                     .inputs = { x }, .saved = { index }, TD_PARAMS(&params));
}

/* ---- the mean ---- */

static void avg_pool2d_backward(td_node *node, const td_tensor *dy)
{
    td_grad_slot slot = td_input_grad(node, 0);
    td_kernels_for(dy)->avg_pool2d_grad(slot.grad, dy, td_params_of(node), slot.accumulate);
}

static td_tensor *avg_pool2d(const char *name, td_tensor *x, const td_pool2d_params *params,
                             td_site at)
{
    td_tensor *y = td_op_pool_output(x, params, x->dtype, name, at);
    td_kernels_for(x)->avg_pool2d(y, x, params);
    return TD_RECORD(at, .op = name, .backward = avg_pool2d_backward, .out = y, .inputs = { x },
                     TD_PARAMS(params));
}

td_tensor *td_avg_pool2d_at(td_pool2d_options options, td_site at)
{
    td_tensor *x = td_op_input(options.x, "avg_pool2d", "x", TD_RULE_OF(avg_pool2d), at);
    td_pool2d_params params = td_op_pool_params(x, &options, "avg_pool2d", at);
    TD_REQUIRE(options.dilation <= 1 && options.dilation_hw[0] <= 1 && options.dilation_hw[1] <= 1,
               at, "avg_pool2d: dilation is for the maximum");
    return avg_pool2d("avg_pool2d", x, &params, at);
}

td_tensor *td_global_avg_pool2d_at(td_tensor *x, td_site at)
{
    x = td_op_input(x, "global_avg_pool2d", "x", TD_RULE_OF(global_avg_pool2d), at);
    TD_REQUIRE(x->ndim == 4 && x->shape[2] > 0 && x->shape[3] > 0, at,
               "global_avg_pool2d: x%s must be [N,C,H,W] with H and W at least 1",
               TD_SHAPE_TEXT(x));
    int height = (int)x->shape[2], width = (int)x->shape[3];
    td_pool2d_params params = {
        .kernel = { height, width },
        .stride = { height, width },
        .count_include_pad = true,
    };
    return avg_pool2d("global_avg_pool2d", x, &params, at);
}
