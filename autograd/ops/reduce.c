/* Sums and means, of all elements or along dimensions; variances and norms. */
#include "autograd/ops/op.h"
#include "autograd/ops/shapes.h"

#include <math.h>

/* Every element that was summed gets the sum's gradient: dy, expanded. */
static void reduce_backward(td_node *node, const td_tensor *dy)
{
    const td_reduce_params *params = td_params_of(node);
    const td_tensor *x = td_node_input(node, 0);
    const td_tensor *scaled = dy;
    if (params->scale != 1.0) {
        td_tensor *t = td_step_new_like(dy, td_node_site(node));
        td_kernels_for(dy)->unary(TD_UNARY_mul_scalar, t, dy, params->scale, 0.0);
        scaled = t;
    }
    td_tensor kept = td_op_reshaped(scaled, params->kept, td_node_site(node));
    td_tensor wide = td_op_expanded(&kept, td_shape_of(x));
    td_input_grad_is(node, 0, &wide);
}

static td_tensor *reduce(const char *name, td_reduce_op op, td_tensor *x, td_shape dims, bool keep,
                         td_site at)
{
    td_shape kept = td_op_kept_shape(x, dims, at);
    td_tensor *y = td_op_new(td_op_reduced_shape(x, dims, keep, at), x->dtype, x, at);
    td_tensor view = td_op_reshaped(y, kept, at);
    td_kernels_for(x)->reduce(op, &view, x, false);
    double count = 1.0;
    for (int d = 0; d < x->ndim; d++) {
        count *= kept.dim[d] == x->shape[d] ? 1.0 : (double)x->shape[d];
    }
    td_reduce_params params = { kept, op == TD_REDUCE_MEAN ? 1.0 / count : 1.0 };
    return TD_RECORD(at, .op = name, .backward = reduce_backward, .out = y, .inputs = { x },
                     TD_PARAMS(&params));
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
    const td_kernels *kernels = td_kernels_for(dy);
    td_tensor *ratio = td_step_new_like(y, at), *negative = td_step_new_like(y, at);
    td_tensor *is_zero = td_op_new(td_shape_of(y), TD_U8, y, at);
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
    const td_kernels *kernels = td_kernels_for(x);
    td_shape kept = td_op_kept_shape(x, dims, at);
    td_tensor *y = td_op_new(td_op_reduced_shape(x, dims, keep, at), x->dtype, x, at);
    td_tensor *squares = td_step_new_like(x, at);
    td_tensor view = td_op_reshaped(y, kept, at);
    kernels->binary(TD_BINARY_mul, squares, x, x);
    kernels->reduce(TD_REDUCE_SUM, &view, squares, false);
    kernels->unary(TD_UNARY_sqrt, y, y, 0.0, 0.0);
    return TD_RECORD(at, .op = "norm", .backward = norm_backward, .out = y, .inputs = { x },
                     .saved = { x, y }, TD_PARAMS(&(td_reduce_params){ kept, 1.0 }));
}

/* x - mean, and in *freedom the number of values that each result is made of, less the correction.
 */
static td_tensor *from_mean(td_tensor *x, td_shape dims, double correction, double *freedom,
                            td_site at)
{
    int64_t results = td_shape_numel(td_op_kept_shape(x, dims, at));
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
