/* mean((x - target)^2), composed. */
#include "autograd/ops/op.h"

td_tensor *td_mse_loss_at(td_tensor *x, td_tensor *target, td_site at)
{
    x = td_op_input(x, "mse_loss", "x", TD_RULE_OF(mse_loss), at);
    target = td_op_input(target, "mse_loss", "target", TD_RULE_OF(mse_loss), at);
    TD_REQUIRE(td_same_shape(x, target), at,
               "mse_loss: x%s and target%s must have the same shape; nothing is broadcast",
               TD_SHAPE_TEXT(x), TD_SHAPE_TEXT(target));
    td_tensor *difference = td_sub_at(x, target, at);
    return td_mean_at(td_mul_at(difference, difference, at), at);
}
