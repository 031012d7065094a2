#include "autograd/precision.h"

#include "autograd/tape.h"

td_tensor *td_op_input(td_tensor *x, const char *op, const char *what, td_rule rule, td_site at)
{
    td_check_float(x, op, what, at);
    switch (rule) {
    case TD_RULE_IS_FACTOR:
        if (x->dtype == TD_F32 && td_math_now().precision == TD_PRECISION_BF16) {
            return (td_cast)(x, TD_BF16, at);
        }
        break;
    case TD_RULE_IS_WIDENS:
        if (x->dtype == TD_BF16) {
            return (td_cast)(x, TD_F32, at);
        }
        break;
    case TD_RULE_IS_FOLLOWS:
    case TD_RULE_IS_ANY:
        break;
    }
    return x;
}

void td_op_promote(td_tensor **a, td_tensor **b, td_site at)
{
    if ((*a)->dtype == TD_BF16 && (*b)->dtype == TD_F32) {
        *a = (td_cast)(*a, TD_F32, at);
    } else if ((*a)->dtype == TD_F32 && (*b)->dtype == TD_BF16) {
        *b = (td_cast)(*b, TD_F32, at);
    }
}
