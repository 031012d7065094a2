/* The largest along one dimension or of all, and where it is. */
#include "autograd/ops/op.h"

/* dy where the (first) largest was, zero elsewhere. */
static void max_backward(td_node *node, const td_tensor *dy)
{
    const int *dim = td_params_of(node);
    const td_tensor *index = td_saved(node, 0);
    td_grad_slot slot = td_input_grad(node, 0);
    td_tensor kept = td_op_reshaped(dy, td_shape_of(index), td_node_site(node));
    if (!slot.accumulate) {
        td_kernels_for(dy)->fill(slot.grad, 0.0);
    }
    td_kernels_for(dy)->scatter_add(slot.grad, &kept, index, *dim);
}

static td_tensor *max_along(const char *name, td_tensor *x, int dim, bool keep, td_site at)
{
    TD_REQUIRE(x->shape[dim] > 0, at, "%s: dimension %d of x%s is empty, so it has no largest",
               name, dim, TD_SHAPE_TEXT(x));
    const td_kernels *kernels = td_kernels_for(x);
    td_shape shape = td_op_reduced_shape(x, TD_SHAPE(dim), keep, at);
    td_tensor *y = td_op_new(shape, x->dtype, x, at);
    td_tensor kept = td_op_reshaped(y, td_op_kept_shape(x, TD_SHAPE(dim), at), at);
    kernels->reduce(TD_REDUCE_MAX, &kept, x, false);
    td_tensor *index = NULL;
    if (td_needs_grad(x) && td_grad_enabled()) {
        index = td_op_new(td_op_kept_shape(x, TD_SHAPE(dim), at), TD_I64, x, at);
        kernels->argmax(index, x, dim);
    }
    return TD_RECORD(at, .op = name, .backward = max_backward, .out = y, .inputs = { x },
                     .saved = { index }, TD_PARAMS(&dim));
}

td_tensor *td_max_dim_at(td_tensor *x, int dim, bool keep, td_site at)
{
    x = td_op_input(x, "max_dim", "x", TD_RULE_OF(max_dim), at);
    return max_along("max_dim", x, td_check_dim(x, dim, at), keep, at);
}

td_tensor *td_max_at(td_tensor *x, td_site at)
{
    x = td_op_input(x, "max", "x", TD_RULE_OF(max), at);
    TD_REQUIRE(td_numel(x) > 0, at, "max: x%s is empty, so it has no largest", TD_SHAPE_TEXT(x));
    return max_along("max", td_reshape_at(x, TD_SHAPE(-1), at), 0, false, at);
}

td_tensor *td_argmax_at(td_tensor *x, int dim, bool keep, td_site at)
{
    td_check_tensor(x, "argmax", "x", at);
    if (td_is_half(x->dtype)) {
        x = td_op_input(x, "argmax", "x", TD_RULE_OF(argmax), at);
    }
    dim = td_check_dim(x, dim, at);
    TD_REQUIRE(x->shape[dim] > 0, at, "argmax: dimension %d of x%s is empty, so it has no largest",
               dim, TD_SHAPE_TEXT(x));
    td_shape shape = td_op_reduced_shape(x, TD_SHAPE(dim), keep, at);
    td_tensor *index = td_op_new(shape, TD_I64, x, at);
    td_tensor kept = td_op_reshaped(index, td_op_kept_shape(x, TD_SHAPE(dim), at), at);
    td_kernels_for(x)->argmax(&kept, x, dim);
    return TD_RECORD(at, .op = "argmax", .out = index, .inputs = { x }, TD_PARAMS(&dim));
}

td_tensor *td_count_top_at(td_tensor *x, td_tensor *labels, int64_t k, td_site at)
{
    td_check_tensor(x, "count_top", "x", at);
    td_check_tensor(labels, "count_top", "labels", at);
    TD_REQUIRE(td_is_float(x->dtype) && x->ndim == 2 && labels->dtype == TD_I64 &&
                   labels->ndim == 1 && labels->shape[0] == x->shape[0] &&
                   td_same_device(td_device_of(x), td_device_of(labels)),
               at, "count_top: %s and %s: they must be floats [N,C] and i64 [N], on one device",
               td_describe(x), td_describe(labels));
    TD_REQUIRE(k >= 0, at, "count_top: k is %lld: among how many it counts is at least 0",
               (long long)k);
    if (td_is_half(x->dtype)) {
        x = td_op_input(x, "count_top", "x", TD_RULE_OF(count_top), at);
    }
    td_tensor *count = td_op_new(TD_SCALAR, TD_I64, x, at);
    td_kernels_for(x)->count_top(count, x, labels, k);
    return TD_RECORD(at, .op = "count_top", .out = count, .inputs = { x, labels });
}
