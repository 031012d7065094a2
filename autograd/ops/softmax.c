/* Softmax along one dimension, and its logarithm. */
#include "autograd/ops/op.h"

/* dx = y (dy - sum of y dy); of the logarithm y: dx = dy - exp(y) (sum of dy). Sums along dim. */
static void softmax_backward(td_node *node, const td_tensor *dy)
{
    const td_softmax_params *params = td_params_of(node);
    const td_tensor *y = td_saved(node, 0);
    const td_kernels *kernels = td_kernels_for(dy);
    if (!td_same_order(dy, y)) {
        td_tensor *copy = td_step_new_like(y, td_node_site(node));
        kernels->copy(copy, dy);
        dy = copy;
    }
    td_op_gradient dx = td_op_grad_begin(node, 0, y, td_same_order(td_node_input(node, 0), y));
    kernels->softmax_grad(dx.grad, dy, y, params->dim, params->log, dx.accumulate);
    td_op_grad_end(node, 0, &dx);
}

static td_tensor *softmax(const char *name, td_rule rule, td_tensor *x, int dim, bool log,
                          td_site at)
{
    x = td_op_input(x, name, "x", rule, at);
    dim = td_check_dim(x, dim, at);
    const td_kernels *kernels = td_kernels_for(x);
    const td_tensor *dense = x;
    if (!td_is_dense(x)) {
        td_tensor *copy = td_step_new_like(x, at);
        kernels->copy(copy, x);
        dense = copy;
    }
    td_tensor *y = td_step_new_like(dense, at);
    kernels->softmax(y, dense, dim, log);
    return TD_RECORD(at, .op = name, .backward = softmax_backward, .out = y, .inputs = { x },
                     .saved = { y }, TD_PARAMS(&(td_softmax_params){ dim, log }));
}

td_tensor *td_softmax_at(td_tensor *x, int dim, td_site at)
{
    return softmax("softmax", TD_RULE_OF(softmax), x, dim, false, at);
}

td_tensor *td_log_softmax_at(td_tensor *x, int dim, td_site at)
{
    return softmax("log_softmax", TD_RULE_OF(log_softmax), x, dim, true, at);
}
