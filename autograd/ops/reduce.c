/* Sums and means, of all elements or along one dimension. */
#include "autograd/ops/op.h"
#include "tensor/extend.h"

typedef struct reduce_params {
    int dim; /* or TD_OP_ALL_DIMS */
    double scale;
} reduce_params;

/* Every element that was summed gets the sum's gradient: dy, expanded. */
static void reduce_backward(td_node *node, const td_tensor *dy)
{
    const reduce_params *params = td_params_of(node);
    const td_tensor *x = td_node_input(node, 0);
    const td_tensor *scaled = dy;
    if (params->scale != 1.0) {
        td_tensor *t = td_step_new_like(dy, td_node_site(node));
        td_kernels_of(td_device_of(dy))->unary(TD_UNARY_mul_scalar, t, dy, params->scale, 0.0);
        scaled = t;
    }
    td_tensor kept = td_op_reshaped(scaled, td_op_kept_shape(x, params->dim), td_node_site(node));
    td_tensor wide = td_op_expanded(&kept, td_shape_of(x));
    td_input_grad_is(node, 0, &wide);
}

static td_tensor *reduce(const char *name, td_reduce_op op, td_tensor *x, int dim, bool keep,
                         td_site at)
{
    td_tensor *y =
        td_step_new(td_op_reduced_shape(x, dim, keep), x->dtype, TD_ROW_MAJOR, td_device_of(x), at);
    td_tensor kept = td_op_reshaped(y, td_op_kept_shape(x, dim), at);
    td_kernels_of(td_device_of(x))->reduce(op, &kept, x, false);
    int64_t count = dim == TD_OP_ALL_DIMS ? td_numel(x) : x->shape[dim];
    return TD_RECORD(at, .op = name, .backward = reduce_backward, .out = y, .inputs = { x },
                     .params =
                         &(reduce_params){ dim, op == TD_REDUCE_MEAN ? 1.0 / (double)count : 1.0 },
                     .params_size = sizeof(reduce_params));
}

td_tensor *td_sum_at(td_tensor *x, td_site at)
{
    x = td_op_input(x, "sum", "x", TD_RULE_OF(sum), at);
    return reduce("sum", TD_REDUCE_SUM, x, TD_OP_ALL_DIMS, false, at);
}

td_tensor *td_mean_at(td_tensor *x, td_site at)
{
    x = td_op_input(x, "mean", "x", TD_RULE_OF(mean), at);
    return reduce("mean", TD_REDUCE_MEAN, x, TD_OP_ALL_DIMS, false, at);
}

td_tensor *td_sum_dim_at(td_tensor *x, int dim, bool keep, td_site at)
{
    x = td_op_input(x, "sum_dim", "x", TD_RULE_OF(sum_dim), at);
    return reduce("sum_dim", TD_REDUCE_SUM, x, td_check_dim(x, dim, at), keep, at);
}

td_tensor *td_mean_dim_at(td_tensor *x, int dim, bool keep, td_site at)
{
    x = td_op_input(x, "mean_dim", "x", TD_RULE_OF(mean_dim), at);
    return reduce("mean_dim", TD_REDUCE_MEAN, x, td_check_dim(x, dim, at), keep, at);
}
