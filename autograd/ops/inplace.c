/* Arithmetic in place, which the tape does not record. */
#include "autograd/ops/op.h"

static void inplace_check(td_tensor *t, const char *op, td_site at)
{
    td_check_float(t, op, "t", at);
    bool free_leaf = td_is_leaf(t) && !td_grad_enabled();
    TD_REQUIRE(!td_needs_grad(t) || free_leaf, at,
               "%s: %s takes part in gradients, and writing in place would not be on the tape; use "
               "the operation that returns a new tensor%s",
               op, td_label(t), td_is_leaf(t) ? ", or td_no_grad_begin for an update" : "");
    td_begin_write(t, op, at);
}

void td_add_inplace_at(td_tensor *t, const td_tensor *u, td_site at)
{
    td_check_float(u, "td_add_", "u", at);
    inplace_check(t, "td_add_", at);
    td_check_match(t, u, "td_add_", at);
    td_shape shape;
    TD_REQUIRE(td_broadcast_shape(td_shape_of(t), td_shape_of(u), &shape) &&
                   td_shape_equal(shape, td_shape_of(t)),
               at,
               "td_add_: u%s cannot be added to t%s: counted from the last dimension, sizes "
               "must be equal, or 1 in u",
               TD_SHAPE_TEXT(u), TD_SHAPE_TEXT(t));
    td_tensor wide = td_op_expanded(u, shape);
    td_kernels_for(t)->axpy(t, 1.0, &wide);
}

void td_mul_scalar_inplace_at(td_tensor *t, double s, td_site at)
{
    inplace_check(t, "td_mul_scalar_", at);
    td_kernels_for(t)->unary(TD_UNARY_mul_scalar, t, t, s, 0.0);
}
