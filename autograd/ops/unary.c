/* Operations on single elements: y = f(x). tensor/kernels/elementwise.def has f and its slope f'.
 */
#include "autograd/ops/elements.h"
#include "autograd/ops/op.h"

typedef enum slope_reads { READS_NONE, READS_X, READS_Y } slope_reads; /* what the slope reads */

static void unary_backward(td_node *node, const td_tensor *dy)
{
    const td_unary_params *params = td_params_of(node);
    if (params->op == TD_UNARY_add_scalar) {
        td_input_grad_is(node, 0, dy);
        return;
    }
    const td_tensor *x = td_saved(node, 0), *y = td_saved(node, 1);
    td_grad_slot slot = td_input_grad_over(node, 0, dy);
    /* Only what this slope reads was saved. dy stands in for the other, which is not read. */
    td_kernels_for(dy)->unary_grad(params->op, slot.grad, dy, x != NULL ? x : dy,
                                   y != NULL ? y : dy, params->p, params->q, slot.accumulate);
}

static td_tensor *unary(const char *name, td_unary_params params, td_rule rule, slope_reads reads,
                        td_tensor *x, td_site at)
{
    x = td_op_input(x, name, "x", rule, at);
    td_tensor *y = td_step_new_like(x, at);
    td_kernels_for(x)->unary(params.op, y, x, params.p, params.q);
    return TD_RECORD(at, .op = name, .backward = unary_backward, .out = y, .inputs = { x },
                     .saved = { reads == READS_X ? x : NULL, reads == READS_Y ? y : NULL },
                     TD_PARAMS(&params));
}

/* The body of td_NAME_at; the numbers follow. */
#define BODY(NAME, READS, ...)                                                                     \
    {                                                                                              \
        return unary(#NAME, (td_unary_params){ TD_UNARY_##NAME, __VA_ARGS__ }, TD_RULE_OF(NAME),   \
                     READS_##READS, x, at);                                                        \
    }
#define TD_UNARY(NAME, READS, value, slope)                                                        \
    td_tensor *td_##NAME##_at(td_tensor *x, td_site at) BODY(NAME, READS, 0.0, 0.0)
#define TD_UNARY_P(NAME, READS, value, slope)                                                      \
    td_tensor *td_##NAME##_at(td_tensor *x, double p, td_site at) BODY(NAME, READS, p, 0.0)
#define TD_UNARY_PQ(NAME, READS, value, slope)                                                     \
    td_tensor *td_##NAME##_at(td_tensor *x, double p, double q, td_site at) BODY(NAME, READS, p, q)
#include "tensor/kernels/elementwise.def"
