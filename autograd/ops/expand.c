/* Broadcasting made visible: sizes 1 (or missing) become any size, with stride 0: a view. */
#include "autograd/ops/op.h"

static void expand_backward(td_node *node, const td_tensor *dy)
{
    td_input_grad_sum(node, 0, dy);
}

td_tensor *td_expand_at(td_tensor *x, td_shape shape, td_site at)
{
    td_check_tensor(x, "expand", "x", at);
    td_shape together;
    TD_REQUIRE(
        td_broadcast_shape(td_shape_of(x), shape, &together) && td_shape_equal(together, shape), at,
        "expand: x%s cannot become %s: counted from the last dimension, only sizes of 1 can change",
        TD_SHAPE_TEXT(x), td_describe_shape(shape));
    td_tensor wide = td_op_expanded(x, shape);
    return TD_RECORD(at, .op = "expand", .backward = expand_backward,
                     .out = td_step_view(x, x->offset, shape, wide.stride, at), .inputs = { x });
}
