/* What each operation does with bf16 and f16: the rules of autograd/ops/ops.def as numbers, for the
 * operations and for tests. */
#ifndef TD_AUTOGRAD_PRECISION_H
#define TD_AUTOGRAD_PRECISION_H

#include "autograd/autograd.h"

typedef enum td_rule {
    TD_RULE_IS_FACTOR,
    TD_RULE_IS_FOLLOWS,
    TD_RULE_IS_WIDENS,
    TD_RULE_IS_ANY,
} td_rule;

enum {
#define TD_OP(op, rule, ...) TD_RULE_##op = TD_RULE_IS_##rule,
#define TD_NO_GRADIENT(op, rule) TD_RULE_##op = TD_RULE_IS_##rule,
#define TD_CASE(...)
#include "autograd/ops/ops.def"
#undef TD_OP
#undef TD_NO_GRADIENT
#undef TD_CASE
};

/* The rule of an operation: TD_RULE_OF(conv2d). */
#define TD_RULE_OF(op) ((td_rule)TD_RULE_##op)

/* An activation as an operation takes it: checked (f32, f64, bf16; on GPUs f16), and cast, on the
 * tape, where the rule says so. op and what go into messages. */
td_tensor *td_op_input(td_tensor *x, const char *op, const char *what, td_rule rule, td_site at);

/* Two activations that meet: the 16-bit one beside an f32 one is cast to f32. */
void td_op_promote(td_tensor **a, td_tensor **b, td_site at);

#endif
