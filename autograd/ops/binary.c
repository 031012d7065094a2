/* Operations on two tensors, element by element; shapes broadcast by NumPy's rule.
 * tensor/elementwise.def has the formulas and gradients. */
#include "autograd/ops/elements.h"
#include "autograd/ops/op.h"
#include "tensor/extend.h"

/* What the gradient of an input reads besides g; READS_G: it is g. */
enum { READS_NONE = 0, READS_A = 1, READS_B = 2, READS_AB = 3, READS_G = 4 };
static const unsigned char reads_of[TD_BINARY_COUNT][2] = {
#define TD_BINARY(name, value, grad_a, reads_a, grad_b, reads_b)                                   \
    { READS_##reads_a, READS_##reads_b },
#include "tensor/elementwise.def"
};

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

/* The shape of both together. */
static td_shape together(const char *name, const td_tensor *a, const td_tensor *b, td_site at)
{
    td_check_match(a, b, name, at);
    td_shape shape;
    TD_REQUIRE(td_broadcast_shape(td_shape_of(a), td_shape_of(b), &shape), at,
               "%s: a%s and b%s do not go together: counted from the last dimension, sizes must be "
               "equal or 1",
               name, TD_SHAPE_TEXT(a), TD_SHAPE_TEXT(b));
    return shape;
}

static void binary_backward(td_node *node, const td_tensor *dy)
{
    const td_binary_op *op = td_params_of(node);
    const td_tensor *saved[2] = { td_saved(node, 0), td_saved(node, 1) };
    for (int i = 0; i < 2; i++) {
        if (!td_input_needs_grad(node, i)) {
            continue;
        }
        if (reads_of[*op][i] == READS_G) {
            td_input_grad_sum(node, i, dy);
            continue;
        }
        td_tensor *grad = td_step_new_like(dy, td_node_site(node));
        td_tensor wide[2];
        for (int k = 0; k < 2; k++) {
            wide[k] = td_op_expanded(saved[k] != NULL ? saved[k] : dy, td_shape_of(dy));
        }
        td_kernels_of(td_device_of(dy))->binary_grad(*op, i, grad, dy, &wide[0], &wide[1]);
        td_input_grad_sum(node, i, grad);
    }
}

/* Of integers: without a gradient. */
static td_tensor *binary_of_integers(const char *name, td_binary_op op, td_tensor *a, td_tensor *b,
                                     td_site at)
{
    TD_REQUIRE(td_binary_of_integers(op), at, "%s: it is for floats, not for %s: td_cast them",
               name, td_dtype_name(a->dtype));
    td_shape shape = together(name, a, b, at);
    td_tensor *y = td_step_new(shape, a->dtype, TD_ROW_MAJOR, td_device_of(a), at);
    td_tensor wide_a = td_op_expanded(a, shape), wide_b = td_op_expanded(b, shape);
    td_kernels_of(td_device_of(a))->binary(op, y, &wide_a, &wide_b);
    return TD_RECORD(at, .op = name, .out = y, .inputs = { a, b });
}

/* A vector of channels belongs to dimension 1 of an x with more dimensions, as in PyTorch. */
static td_tensor *channels(td_tensor *x, td_tensor *w, td_site at)
{
    if (w->ndim != 1 || x->ndim < 3 || w->shape[0] == 1) {
        return w;
    }
    td_shape shape = { .ndim = x->ndim - 1 };
    for (int d = 0; d < shape.ndim; d++) {
        shape.dim[d] = d == 0 ? w->shape[0] : 1;
    }
    return td_reshape_at(w, shape, at);
}

static td_tensor *binary(const char *name, td_binary_op op, td_rule rule, td_tensor *a,
                         td_tensor *b, td_site at)
{
    td_check_tensor(a, name, "a", at);
    td_check_tensor(b, name, "b", at);
    if (!td_is_float(a->dtype) && !td_is_float(b->dtype)) {
        return binary_of_integers(name, op, a, b, at);
    }
    b = op == TD_BINARY_prelu ? channels(a, b, at) : b;
    a = td_op_input(a, name, "a", rule, at);
    b = td_op_input(b, name, "b", rule, at);
    td_op_promote(&a, &b, at);
    td_shape shape = together(name, a, b, at);
    td_tensor *y = new_result(a, b, shape, at);
    td_tensor wide_a = td_op_expanded(a, shape), wide_b = td_op_expanded(b, shape);
    td_kernels_of(td_device_of(a))->binary(op, y, &wide_a, &wide_b);
    int reads = (td_needs_grad(a) ? reads_of[op][0] : 0) | (td_needs_grad(b) ? reads_of[op][1] : 0);
    return TD_RECORD(
        at, .op = name, .backward = binary_backward, .out = y, .inputs = { a, b },
        .saved = { (reads & READS_A) != 0 ? a : NULL, (reads & READS_B) != 0 ? b : NULL },
        .params = &op, .params_size = sizeof op);
}

#define TD_BINARY(name, value, grad_a, reads_a, grad_b, reads_b)                                   \
    td_tensor *td_##name##_at(td_tensor *a, td_tensor *b, td_site at)                              \
    {                                                                                              \
        return binary(#name, TD_BINARY_##name, TD_RULE_OF(name), a, b, at);                        \
    }
#include "tensor/elementwise.def"
