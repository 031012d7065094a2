/* Other orders of the dimensions: views. */
#include "autograd/ops/op.h"

/* The gradient is seen in the opposite order. params: int order[ndim]. */
static void permute_backward(td_node *node, const td_tensor *dy)
{
    const int *order = td_params_of(node);
    td_tensor dx = *dy;
    for (int d = 0; d < dy->ndim; d++) {
        dx.shape[order[d]] = dy->shape[d];
        dx.stride[order[d]] = dy->stride[d];
    }
    td_input_grad_is(node, 0, &dx);
}

static td_tensor *permute(const char *name, td_tensor *x, const int *order, td_site at)
{
    td_shape shape = { .ndim = x->ndim };
    int64_t stride[TD_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++) {
        shape.dim[d] = x->shape[order[d]];
        stride[d] = x->stride[order[d]];
    }
    return TD_RECORD(at, .op = name, .backward = permute_backward,
                     .out = td_step_view(x, x->offset, shape, stride, at), .inputs = { x },
                     .params = order, .params_size = (size_t)x->ndim * sizeof *order);
}

td_tensor *td_permute_at(td_tensor *x, const int *order, td_site at)
{
    td_check_tensor(x, "permute", "x", at);
    int resolved[TD_MAX_DIMS];
    bool seen[TD_MAX_DIMS] = { false };
    for (int d = 0; d < x->ndim; d++) {
        resolved[d] = td_check_dim(x, order[d], at);
        TD_REQUIRE(
            !seen[resolved[d]], at,
            "permute: dimension %d appears twice in the order for x%s; each must appear once",
            resolved[d], TD_SHAPE_TEXT(x));
        seen[resolved[d]] = true;
    }
    return permute("permute", x, resolved, at);
}

td_tensor *td_transpose_at(td_tensor *x, int dim0, int dim1, td_site at)
{
    td_check_tensor(x, "transpose", "x", at);
    int order[TD_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++) {
        order[d] = d;
    }
    dim0 = td_check_dim(x, dim0, at);
    dim1 = td_check_dim(x, dim1, at);
    order[dim0] = dim1;
    order[dim1] = dim0;
    return permute("transpose", x, order, at);
}
