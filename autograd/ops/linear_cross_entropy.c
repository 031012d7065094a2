/* The last layer of a language model and its loss in one: cross_entropy(x w^T, labels). */
#include "autograd/ops/op.h"

td_tensor *td_linear_cross_entropy_at(td_linear_cross_entropy_options o, td_site at)
{
    td_tensor *x = td_op_input(o.x, "linear_cross_entropy", "x", TD_RULE_OF(linear), at);
    td_check_tensor(o.labels, "linear_cross_entropy", "labels", at);
    TD_REQUIRE(x->ndim >= 2 && o.labels->ndim == x->ndim - 1, at,
               "linear_cross_entropy: x%s must be [...,d] and labels%s [...]", TD_SHAPE_TEXT(x),
               TD_SHAPE_TEXT(o.labels));
    x = td_reshape_at(x, TD_SHAPE(-1, x->shape[x->ndim - 1]), at);
    td_cross_entropy_options loss = { .logits = td_linear_at(x, o.w, NULL, at),
                                      .labels = td_reshape_at(o.labels, TD_SHAPE(-1), at),
                                      .ignore_index = o.ignore_index,
                                      .reduction = o.reduction };
    return td_cross_entropy_at(loss, at);
}
