/* Operations on single elements: y = f(x). Formulas and slopes are in tensor/elementwise.def. */
#include "autograd/ops/op.h"
#include "tensor/extend.h"

typedef enum slope_reads { SAVES_NOTHING, SAVES_X, SAVES_Y } slope_reads; /* what the slope reads */

typedef struct unary_params {
    td_unary_op op;
    double p;
} unary_params;

static void unary_backward(td_node *node, const td_tensor *dy)
{
    const unary_params *params = td_params_of(node);
    if (params->op == TD_UNARY_ADD_SCALAR) {
        td_input_grad_is(node, 0, dy);
        return;
    }
    const td_tensor *x = td_saved(node, 0), *y = td_saved(node, 1);
    td_grad_slot slot = td_input_grad_over(node, 0, dy);
    if (slot.grad != NULL) {
        /* What the slope does not read need not be there; dy stands in for it. */
        td_kernels_of(td_device_of(dy))
            ->unary_grad(params->op, slot.grad, dy, x != NULL ? x : dy, y != NULL ? y : dy,
                         params->p, slot.accumulate);
    }
}

static td_tensor *unary(const char *name, td_unary_op op, td_rule rule, slope_reads saves,
                        td_tensor *x, double p, td_site at)
{
    x = td_op_input(x, name, "x", rule, at);
    td_tensor *y = td_step_new_like(x, at);
    td_kernels_of(td_device_of(x))->unary(op, y, x, p);
    return TD_RECORD(at, .op = name, .backward = unary_backward, .out = y, .inputs = { x },
                     .saved = { saves == SAVES_X ? x : NULL, saves == SAVES_Y ? y : NULL },
                     .params = &(unary_params){ op, p }, .params_size = sizeof(unary_params));
}

/* td_NAME_at(x): its name, its formula, and what the slope reads; UNARY_BY: with a number. */
#define UNARY(NAME, OP, SAVES)                                                                     \
    td_tensor *td_##NAME##_at(td_tensor *x, td_site at)                                            \
    {                                                                                              \
        return unary(#NAME, TD_UNARY_##OP, TD_RULE_OF(NAME), SAVES, x, 0.0, at);                   \
    }
#define UNARY_BY(NAME, OP, SAVES)                                                                  \
    td_tensor *td_##NAME##_at(td_tensor *x, double number, td_site at)                             \
    {                                                                                              \
        return unary(#NAME, TD_UNARY_##OP, TD_RULE_OF(NAME), SAVES, x, number, at);                \
    }

UNARY(neg, NEG, SAVES_NOTHING)
UNARY(exp, EXP, SAVES_Y)
UNARY(log, LOG, SAVES_X)
UNARY(sqrt, SQRT, SAVES_Y)
UNARY(relu, RELU, SAVES_Y)
UNARY(gelu, GELU, SAVES_X)
UNARY(silu, SILU, SAVES_X)
UNARY(sigmoid, SIGMOID, SAVES_Y)
UNARY(tanh, TANH, SAVES_Y)
UNARY_BY(pow, POW, SAVES_X)
UNARY_BY(add_scalar, ADD_SCALAR, SAVES_NOTHING)
UNARY_BY(mul_scalar, MUL_SCALAR, SAVES_NOTHING)
