/* Sums of all elements so far along one dimension, and products. */
#include "autograd/ops/op.h"
#include "autograd/ops/shapes.h"

/* An element is in its own sum and all later ones. */
static void cumsum_backward(td_node *node, const td_tensor *dy)
{
    const int *dim = td_params_of(node);
    td_tensor *dx = td_step_new_like(dy, td_node_site(node));
    td_kernels_for(dy)->cumsum(dx, dy, *dim, true);
    td_input_grad_is(node, 0, dx);
}

td_tensor *td_cumsum_at(td_tensor *x, int dim, td_site at)
{
    td_check_tensor(x, "cumsum", "x", at);
    dim = td_check_dim(x, dim, at);
    bool whole = x->dtype == TD_I64 || x->dtype == TD_I32;
    x = whole ? x : td_op_input(x, "cumsum", "x", TD_RULE_OF(cumsum), at);
    td_tensor *y = td_op_new(td_shape_of(x), x->dtype, x, at);
    td_kernels_for(x)->cumsum(y, x, dim, false);
    return TD_RECORD(at, .op = "cumsum", .backward = cumsum_backward, .out = y, .inputs = { x },
                     TD_PARAMS(&dim));
}

static void prod_backward(td_node *node, const td_tensor *dy)
{
    const int *dim = td_params_of(node);
    const td_tensor *x = td_saved(node, 0);
    td_site at = td_node_site(node);
    td_tensor kept = td_op_reshaped(dy, td_op_kept_shape(x, TD_SHAPE(*dim), at), at);
    td_tensor *dx = td_step_new_like(x, at);
    td_kernels_for(dy)->prod_grad(dx, &kept, x, *dim);
    td_input_grad_is(node, 0, dx);
}

td_tensor *td_prod_dim_at(td_tensor *x, int dim, bool keep, td_site at)
{
    x = td_op_input(x, "prod_dim", "x", TD_RULE_OF(prod_dim), at);
    dim = td_check_dim(x, dim, at);
    td_tensor *y = td_op_new(td_op_reduced_shape(x, TD_SHAPE(dim), keep, at), x->dtype, x, at);
    td_tensor kept = td_op_reshaped(y, td_op_kept_shape(x, TD_SHAPE(dim), at), at);
    td_kernels_for(x)->prod(&kept, x, dim);
    return TD_RECORD(at, .op = "prod_dim", .backward = prod_backward, .out = y, .inputs = { x },
                     .saved = { x }, TD_PARAMS(&dim));
}
