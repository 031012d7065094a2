/* Sums and means, of all elements or along dimensions; variances and norms. */
#include "autograd/ops/op.h"
#include "autograd/ops/shapes.h"
#include "tensor/extend.h"

#include <math.h>

/* x's shape with sizes of 1 along dims; none are all. */
static td_shape kept_shape(const td_tensor *x, td_shape dims, td_site at)
{
    td_shape shape = td_shape_of(x);
    for (int i = 0; i < dims.ndim; i++) {
        shape.dim[td_check_dim(x, (int)dims.dim[i], at)] = 1;
    }
    for (int d = 0; d < shape.ndim && dims.ndim == 0; d++) {
        shape.dim[d] = 1;
    }
    return shape;
}

/* The shape of the result, where `kept` is its shape if dimensions are kept. */
static td_shape reduced_shape(const td_tensor *x, td_shape kept, td_shape dims, bool keep)
{
    if (keep) {
        return kept;
    }
    bool gone[TD_MAX_DIMS] = { false };
    for (int i = 0; i < dims.ndim; i++) {
        gone[dims.dim[i] < 0 ? dims.dim[i] + x->ndim : dims.dim[i]] = true;
    }
    td_shape shape = { .ndim = 0 };
    for (int d = 0; d < kept.ndim; d++) {
        if (!gone[d] && dims.ndim > 0) {
            shape.dim[shape.ndim++] = kept.dim[d];
        }
    }
    return shape;
}

/* Every element that was summed gets the sum's gradient: dy, expanded. */
static void reduce_backward(td_node *node, const td_tensor *dy)
{
    const td_reduce_params *params = td_params_of(node);
    const td_tensor *x = td_node_input(node, 0);
    const td_tensor *scaled = dy;
    if (params->scale != 1.0) {
        td_tensor *t = td_step_new_like(dy, td_node_site(node));
        td_kernels_of(td_device_of(dy))->unary(TD_UNARY_mul_scalar, t, dy, params->scale, 0.0);
        scaled = t;
    }
    td_tensor kept = td_op_reshaped(scaled, params->kept, td_node_site(node));
    td_tensor wide = td_op_expanded(&kept, td_shape_of(x));
    td_input_grad_is(node, 0, &wide);
}

static td_tensor *reduce(const char *name, td_reduce_op op, td_tensor *x, td_shape dims, bool keep,
                         td_site at)
{
    td_shape kept = kept_shape(x, dims, at);
    td_tensor *y = td_step_new(reduced_shape(x, kept, dims, keep), x->dtype, TD_ROW_MAJOR,
                               td_device_of(x), at);
    td_tensor view = td_op_reshaped(y, kept, at);
    td_kernels_of(td_device_of(x))->reduce(op, &view, x, false);
    double count = 1.0;
    for (int d = 0; d < x->ndim; d++) {
        count *= kept.dim[d] == x->shape[d] ? 1.0 : (double)x->shape[d];
    }
    td_reduce_params params = { kept, op == TD_REDUCE_MEAN ? 1.0 / count : 1.0 };
    return TD_RECORD(at, .op = name, .backward = reduce_backward, .out = y, .inputs = { x },
                     .params = &params, .params_size = sizeof params);
}

/* td_NAME_at(x, the arguments that follow). */
#define REDUCTION(NAME, OP, DIMS, KEEP, ...)                                                       \
    td_tensor *td_##NAME##_at(td_tensor *x, __VA_ARGS__)                                           \
    {                                                                                              \
        x = td_op_input(x, #NAME, "x", TD_RULE_OF(NAME), at);                                      \
        return reduce(#NAME, TD_REDUCE_##OP, x, DIMS, KEEP, at);                                   \
    }
REDUCTION(sum, SUM, TD_ALL_DIMS, false, td_site at)
REDUCTION(mean, MEAN, TD_ALL_DIMS, false, td_site at)
REDUCTION(sum_dim, SUM, TD_DIMS(dim), keep, int dim, bool keep, td_site at)
REDUCTION(mean_dim, MEAN, TD_DIMS(dim), keep, int dim, bool keep, td_site at)
REDUCTION(sum_dims, SUM, dims, keep, td_shape dims, bool keep, td_site at)
REDUCTION(mean_dims, MEAN, dims, keep, td_shape dims, bool keep, td_site at)

/* ---- variances and norms ---- */

/* dx = dy x / y, and 0 where y is 0: the only y that is equal to -y. */
static void norm_backward(td_node *node, const td_tensor *dy)
{
    const td_reduce_params *params = td_params_of(node);
    td_site at = td_node_site(node);
    const td_tensor *x = td_saved(node, 0), *y = td_saved(node, 1);
    const td_kernels *kernels = td_kernels_of(td_device_of(dy));
    td_tensor *ratio = td_step_new_like(y, at), *negative = td_step_new_like(y, at);
    td_tensor *is_zero = td_step_new(td_shape_of(y), TD_U8, TD_ROW_MAJOR, td_device_of(y), at);
    kernels->binary(TD_BINARY_div, ratio, dy, y);
    kernels->unary(TD_UNARY_neg, negative, y, 0.0, 0.0);
    kernels->compare(TD_COMPARE_eq, is_zero, y, negative);
    td_tensor *safe = td_step_new_like(y, at), *dx = td_step_new_like(x, at);
    kernels->where(safe, is_zero, NULL, ratio);
    td_tensor view = td_op_reshaped(safe, params->kept, at);
    td_tensor wide = td_op_expanded(&view, td_shape_of(x));
    kernels->binary(TD_BINARY_mul, dx, x, &wide);
    td_input_grad_is(node, 0, dx);
}

td_tensor *td_norm_at(td_tensor *x, td_shape dims, bool keep, td_site at)
{
    x = td_op_input(x, "norm", "x", TD_RULE_OF(norm), at);
    const td_kernels *kernels = td_kernels_of(td_device_of(x));
    td_shape kept = kept_shape(x, dims, at);
    td_tensor *y = td_step_new(reduced_shape(x, kept, dims, keep), x->dtype, TD_ROW_MAJOR,
                               td_device_of(x), at);
    td_tensor *squares = td_step_new_like(x, at);
    td_tensor view = td_op_reshaped(y, kept, at);
    kernels->binary(TD_BINARY_mul, squares, x, x);
    kernels->reduce(TD_REDUCE_SUM, &view, squares, false);
    kernels->unary(TD_UNARY_sqrt, y, y, 0.0, 0.0);
    return TD_RECORD(at, .op = "norm", .backward = norm_backward, .out = y, .inputs = { x },
                     .saved = { x, y }, .params = &(td_reduce_params){ kept, 1.0 },
                     .params_size = sizeof(td_reduce_params));
}

/* x - mean, and in *freedom the number of values that each result is made of, less the correction.
 */
static td_tensor *from_mean(td_tensor *x, td_shape dims, double correction, double *freedom,
                            td_site at)
{
    int64_t results = td_shape_numel(kept_shape(x, dims, at));
    double count = results > 0 ? (double)(td_numel(x) / results) : 0.0;
    *freedom = count > correction ? count - correction : 0.0;
    return td_sub_at(x, td_mean_dims_at(x, dims, true, at), at);
}

td_tensor *td_var_at(td_tensor *x, td_shape dims, double correction, bool keep, td_site at)
{
    double freedom;
    x = td_op_input(x, "var", "x", TD_RULE_OF(var), at);
    td_tensor *d = from_mean(x, dims, correction, &freedom, at);
    td_tensor *sum = td_sum_dims_at(td_mul_at(d, d, at), dims, keep, at);
    return td_mul_scalar_at(sum, 1.0 / freedom, at);
}

/* The length of x - mean, whose gradient is 0 where all values are equal. */
td_tensor *td_std_at(td_tensor *x, td_shape dims, double correction, bool keep, td_site at)
{
    double freedom;
    x = td_op_input(x, "std", "x", TD_RULE_OF(std), at);
    td_tensor *d = from_mean(x, dims, correction, &freedom, at);
    return td_mul_scalar_at(td_norm_at(d, dims, keep, at), 1.0 / sqrt(freedom), at);
}
