#include "autograd/precision.h"

#include "autograd/tape.h"
#include "tensor/extend.h"

td_tensor *td_op_input(td_tensor *x, const char *op, const char *what, td_rule rule, td_site at)
{
    td_check_float(x, op, what, at);
    switch (rule) {
    case TD_RULE_IS_FACTOR:
        if (x->dtype == TD_F32) {
            td_dtype dtype = td_precision_dtype(td_math_now().precision);
            return dtype != TD_F32 ? td_cast_at(x, dtype, at) : x;
        }
        break;
    case TD_RULE_IS_WIDENS:
        if (td_is_half(x->dtype)) {
            return td_cast_at(x, TD_F32, at);
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
    if (td_is_half((*a)->dtype) && (*b)->dtype == TD_F32) {
        *a = td_cast_at(*a, TD_F32, at);
    } else if ((*a)->dtype == TD_F32 && td_is_half((*b)->dtype)) {
        *b = td_cast_at(*b, TD_F32, at);
    }
}
