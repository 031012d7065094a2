/* The same elements, in row-major order, in another shape: a view where strides allow. */
#include "autograd/ops/op.h"

static void reshape_backward(td_node *node, const td_tensor *dy)
{
    td_tensor dx = td_op_reshaped(dy, td_shape_of(td_node_input(node, 0)), td_node_site(node));
    td_input_grad_is(node, 0, &dx);
}

/* Puts the size that is missing in place of -1. */
static td_shape resolve(const td_tensor *x, td_shape shape, td_site at)
{
    int unknown = -1;
    for (int d = 0; d < shape.ndim; d++) {
        if (shape.dim[d] == -1 && unknown < 0) {
            unknown = d;
        } else {
            TD_REQUIRE(shape.dim[d] >= 0, at,
                       "reshape: x%s to %s: sizes must not be negative; at most one may be -1",
                       TD_SHAPE_TEXT(x), td_describe_shape(shape));
        }
    }
    int64_t numel = td_numel(x);
    if (unknown >= 0) {
        td_shape others = shape;
        others.dim[unknown] = 1;
        int64_t known = td_shape_numel(others);
        TD_REQUIRE(known > 0 && numel % known == 0, at,
                   "reshape: x%s to %s: no size in place of -1 gives %lld elements",
                   TD_SHAPE_TEXT(x), td_describe_shape(shape), (long long)numel);
        shape.dim[unknown] = numel / known;
    }
    TD_REQUIRE(td_shape_numel(shape) == numel, at, "reshape: x%s to %s: %lld elements to %lld",
               TD_SHAPE_TEXT(x), td_describe_shape(shape), (long long)numel,
               (long long)td_shape_numel(shape));
    return shape;
}

static td_tensor *reshape(const char *name, td_tensor *x, td_shape shape, td_site at)
{
    int64_t stride[TD_MAX_DIMS];
    td_tensor *base = x;
    if (!td_op_view_strides(x, shape, stride)) {
        base = td_op_row_major(x, at);
        td_layout_strides(td_device_of(x), TD_ROW_MAJOR, shape, stride);
    }
    return TD_RECORD(at, .op = name, .backward = reshape_backward,
                     .out = td_step_view(base, base->offset, shape, stride, at), .inputs = { x });
}

td_tensor *td_reshape_at(td_tensor *x, td_shape shape, td_site at)
{
    td_check_tensor(x, "reshape", "x", at);
    return reshape("reshape", x, resolve(x, shape, at), at);
}

td_tensor *td_flatten_at(td_tensor *x, int start_dim, td_site at)
{
    td_check_tensor(x, "flatten", "x", at);
    if (x->ndim == 0) {
        return reshape("flatten", x, TD_SHAPE(1), at);
    }
    int start = td_check_dim(x, start_dim, at);
    td_shape shape = td_shape_of(x);
    for (int d = start + 1; d < x->ndim; d++) {
        shape.dim[start] *= x->shape[d];
    }
    shape.ndim = start + 1;
    return reshape("flatten", x, shape, at);
}
