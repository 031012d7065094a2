/* Comparisons, and the choice by their results. */
#include "autograd/ops/elements.h"
#include "autograd/ops/op.h"

/* ---- comparisons ---- */

static td_tensor *compare(const char *name, td_compare_op op, td_tensor *a, td_tensor *b,
                          td_site at)
{
    td_check_tensor(a, name, "a", at);
    td_check_tensor(b, name, "b", at);
    td_op_promote(&a, &b, at);
    td_shape shape = td_op_together(name, a, b, at);
    td_tensor *y = td_op_result(a, b, shape, TD_U8, at);
    td_tensor wide_a = td_op_expanded(a, shape), wide_b = td_op_expanded(b, shape);
    td_kernels_for(a)->compare(op, y, &wide_a, &wide_b);
    return TD_RECORD(at, .op = name, .out = y, .inputs = { a, b });
}

#define TD_COMPARE(name, whether)                                                                  \
    td_tensor *td_##name##_at(td_tensor *a, td_tensor *b, td_site at)                              \
    {                                                                                              \
        return compare(#name, TD_COMPARE_##name, a, b, at);                                        \
    }
#include "tensor/kernels/elementwise.def"

/* ---- choice ---- */

/* Each gets the gradient where it was chosen, and zero elsewhere. */
static void where_backward(td_node *node, const td_tensor *dy)
{
    td_tensor wide = td_op_expanded(td_saved(node, 0), td_shape_of(dy));
    for (int i = 0; i < 2; i++) {
        if (td_input_needs_grad(node, i)) {
            td_tensor *grad = td_step_new_like(dy, td_node_site(node));
            td_kernels_for(dy)->where(grad, &wide, i == 0 ? dy : NULL, i == 0 ? NULL : dy);
            td_input_grad_sum(node, i, grad);
        }
    }
}

td_tensor *td_where_at(td_tensor *condition, td_tensor *a, td_tensor *b, td_site at)
{
    td_check_tensor(condition, "where", "the condition", at);
    td_check_tensor(a, "where", "a", at);
    td_check_tensor(b, "where", "b", at);
    td_op_promote(&a, &b, at);
    td_shape shape = td_op_together("where", a, b, at);
    TD_REQUIRE(condition->dtype == TD_U8 &&
                   td_same_device(td_device_of(condition), td_device_of(a)),
               at, "where: the condition is %s beside a %s: it must be u8, on the same device",
               td_describe(condition), td_describe(a));
    TD_REQUIRE(td_broadcast_shape(td_shape_of(condition), shape, &shape), at,
               "where: the condition%s, a%s and b%s do not go together: counted from the last "
               "dimension, sizes must be equal or 1",
               TD_SHAPE_TEXT(condition), TD_SHAPE_TEXT(a), TD_SHAPE_TEXT(b));
    td_tensor *y = td_op_result(a, b, shape, a->dtype, at);
    td_tensor wide = td_op_expanded(condition, shape);
    td_tensor wide_a = td_op_expanded(a, shape), wide_b = td_op_expanded(b, shape);
    td_kernels_for(a)->where(y, &wide, &wide_a, &wide_b);
    return TD_RECORD(at, .op = "where", .backward = where_backward, .out = y, .inputs = { a, b },
                     .saved = { condition });
}
