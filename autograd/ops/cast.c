/* Another dtype; between float dtypes gradients flow, each in its own tensor's dtype. */
#include "autograd/ops/op.h"

static void cast_backward(td_node *node, const td_tensor *dy)
{
    const td_tensor *x = td_node_input(node, 0);
    td_tensor *dx = td_op_new(td_shape_of(x), x->dtype, x, td_node_site(node));
    td_strides_like(dy, dx->stride);
    td_kernels_for(x)->copy(dx, dy);
    td_input_grad_is(node, 0, dx);
}

td_tensor *td_cast_at(td_tensor *x, td_dtype dtype, td_site at)
{
    td_check_tensor(x, "cast", "x", at);
    td_tensor *y = td_op_new(td_shape_of(x), dtype, x, at);
    td_strides_like(x, y->stride); /* dense in x's order */
    td_kernels_for(x)->copy(y, x);
    bool differentiable = td_is_float(x->dtype) && td_is_float(dtype);
    return TD_RECORD(at, .op = "cast", .backward = differentiable ? cast_backward : NULL, .out = y,
                     .inputs = { x });
}
