/* A copy on another device. The gradient goes the way back. */
#include "autograd/ops/op.h"

/* x's elements on a device, dense in x's order; an image in the order of the device's images. */
static td_tensor *to_copy(const td_tensor *x, td_device device, td_site at)
{
    bool image = td_is_layout(x, TD_IMAGE);
    td_tensor *y =
        td_step_new(td_shape_of(x), x->dtype, image ? TD_IMAGE : TD_ROW_MAJOR, device, at);
    if (!image) {
        td_strides_like(x, y->stride);
    }
    td_copy_across(y, x);
    return y;
}

static void to_backward(td_node *node, const td_tensor *dy)
{
    const td_tensor *x = td_node_input(node, 0);
    td_input_grad_is(node, 0, to_copy(dy, td_device_of(x), td_node_site(node)));
}

td_tensor *td_to_at(td_tensor *x, td_device device, td_site at)
{
    td_check_tensor(x, "to", "x", at);
    td_require_device(device, at);
    if (td_same_device(td_device_of(x), device)) {
        return x;
    }
    TD_REQUIRE(td_in_step(), at,
               "td_to outside a step: its result is made in step memory; put it into TD_STEP { }");
    td_tensor *y = to_copy(x, device, at);
    return TD_RECORD(at, .op = "to", .backward = td_is_float(x->dtype) ? to_backward : NULL,
                     .out = y, .inputs = { x });
}
