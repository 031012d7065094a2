/* Operations on two tensors, element by element; shapes broadcast by NumPy's rule. */
#include "autograd/ops/op.h"
#include "tensor/extend.h"

/* ---- forward ---- */

/* The result lies in memory like an input that has its shape (an image stays an image). */
static td_tensor *new_result(const td_tensor *a, const td_tensor *b, td_shape shape, td_site at)
{
    bool like_a = td_shape_equal(td_shape_of(a), shape);
    bool like_b = td_shape_equal(td_shape_of(b), shape);
    if (like_a && (td_is_dense(a) || !like_b)) {
        return td_step_new_like(a, at);
    }
    if (like_b) {
        return td_step_new_like(b, at);
    }
    return td_step_new(shape, a->dtype, TD_ROW_MAJOR, td_device_of(a), at);
}

/* *in0 and *in1 become what is computed with, of one dtype. */
static td_tensor *binary(const char *name, td_binary_op op, td_rule rule, td_tensor **in0,
                         td_tensor **in1, td_site at)
{
    *in0 = td_op_input(*in0, name, "a", rule, at);
    *in1 = td_op_input(*in1, name, "b", rule, at);
    td_op_promote(in0, in1, at);
    const td_tensor *a = *in0, *b = *in1;
    td_check_match(a, b, name, at);
    td_shape shape;
    TD_REQUIRE(td_broadcast_shape(td_shape_of(a), td_shape_of(b), &shape), at,
               "%s: a%s and b%s do not go together: counted from the last dimension, sizes must be "
               "equal or 1",
               name, TD_SHAPE_TEXT(a), TD_SHAPE_TEXT(b));
    td_tensor *y = new_result(a, b, shape, at);
    td_tensor wide_a = td_op_expanded(a, shape), wide_b = td_op_expanded(b, shape);
    td_kernels_of(td_device_of(a))->binary(op, y, &wide_a, &wide_b);
    return y;
}

/* ---- backward ---- */

/* A temporary of dy's shape: dy (op) other. */
static td_tensor *combine(td_node *node, td_binary_op op, const td_tensor *dy,
                          const td_tensor *other)
{
    td_tensor *t = td_step_new_like(dy, td_node_site(node));
    td_tensor wide = td_op_expanded(other, td_shape_of(dy));
    td_kernels_of(td_device_of(dy))->binary(op, t, dy, &wide);
    return t;
}

static td_tensor *negative(td_node *node, const td_tensor *g)
{
    td_tensor *t = td_step_new_like(g, td_node_site(node));
    td_kernels_of(td_device_of(g))->unary(TD_UNARY_NEG, t, g, 0.0);
    return t;
}

static void add_backward(td_node *node, const td_tensor *dy)
{
    td_input_grad_sum(node, 0, dy);
    td_input_grad_sum(node, 1, dy);
}

static void sub_backward(td_node *node, const td_tensor *dy)
{
    td_input_grad_sum(node, 0, dy);
    if (td_input_needs_grad(node, 1)) {
        td_input_grad_sum(node, 1, negative(node, dy));
    }
}

static void mul_backward(td_node *node, const td_tensor *dy)
{
    for (int i = 0; i < 2; i++) {
        if (td_input_needs_grad(node, i)) {
            td_input_grad_sum(node, i, combine(node, TD_BINARY_MUL, dy, td_saved(node, 1 - i)));
        }
    }
}

/* y = a/b: da = dy/b, db = -dy y / b. */
static void div_backward(td_node *node, const td_tensor *dy)
{
    const td_tensor *b = td_saved(node, 0), *y = td_saved(node, 1);
    if (td_input_needs_grad(node, 0)) {
        td_input_grad_sum(node, 0, combine(node, TD_BINARY_DIV, dy, b));
    }
    if (td_input_needs_grad(node, 1)) {
        td_tensor *dy_y = combine(node, TD_BINARY_MUL, dy, y);
        td_input_grad_sum(node, 1, negative(node, combine(node, TD_BINARY_DIV, dy_y, b)));
    }
}

/* ---- the operations ---- */

static td_tensor *record(const char *name, td_backward_fn backward, td_tensor *y, td_tensor *a,
                         td_tensor *b, td_tensor *saved0, td_tensor *saved1, td_site at)
{
    return TD_RECORD(at, .op = name, .backward = backward, .out = y, .inputs = { a, b },
                     .saved = { saved0, saved1 });
}

td_tensor *td_add_at(td_tensor *a, td_tensor *b, td_site at)
{
    td_tensor *y = binary("add", TD_BINARY_ADD, TD_RULE_OF(add), &a, &b, at);
    return record("add", add_backward, y, a, b, NULL, NULL, at);
}

td_tensor *td_sub_at(td_tensor *a, td_tensor *b, td_site at)
{
    td_tensor *y = binary("sub", TD_BINARY_SUB, TD_RULE_OF(sub), &a, &b, at);
    return record("sub", sub_backward, y, a, b, NULL, NULL, at);
}

td_tensor *td_mul_at(td_tensor *a, td_tensor *b, td_site at)
{
    td_tensor *y = binary("mul", TD_BINARY_MUL, TD_RULE_OF(mul), &a, &b, at);
    /* Each is needed for the other's gradient only. */
    td_tensor *for_b = td_needs_grad(b) ? a : NULL, *for_a = td_needs_grad(a) ? b : NULL;
    return record("mul", mul_backward, y, a, b, for_b, for_a, at);
}

td_tensor *td_div_at(td_tensor *a, td_tensor *b, td_site at)
{
    td_tensor *y = binary("div", TD_BINARY_DIV, TD_RULE_OF(div), &a, &b, at);
    return record("div", div_backward, y, a, b, b, td_needs_grad(b) ? y : NULL, at);
}
