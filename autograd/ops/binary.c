/* Operations on two tensors, element by element; shapes broadcast by NumPy's rule.
 * tensor/kernels/elementwise.def has the formulas and gradients. */
#include "autograd/ops/elements.h"
#include "autograd/ops/op.h"

/* What the gradient of an input reads besides g; READS_G: it is g. */
enum { READS_NONE = 0, READS_A = 1, READS_B = 2, READS_AB = 3, READS_G = 4 };
static const unsigned char reads_of[TD_BINARY_COUNT][2] = {
#define TD_BINARY(name, value, grad_a, reads_a, grad_b, reads_b)                                   \
    { READS_##reads_a, READS_##reads_b },
#include "tensor/kernels/elementwise.def"
};

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
        td_kernels_for(dy)->binary_grad(*op, i, grad, dy, &wide[0], &wide[1]);
        td_input_grad_sum(node, i, grad);
    }
}

static td_tensor *binary(const char *name, td_binary_op op, td_rule rule, td_tensor *a,
                         td_tensor *b, td_site at)
{
    td_check_tensor(a, name, "a", at);
    td_check_tensor(b, name, "b", at);
    if (td_is_float(a->dtype) || td_is_float(b->dtype)) {
        if (op == TD_BINARY_prelu && b->ndim == 1 && a->ndim > 2 && b->shape[0] != 1) {
            b = td_op_per_channel(b, a, at); /* as in PyTorch */
        }
        a = td_op_input(a, name, "a", rule, at);
        b = td_op_input(b, name, "b", rule, at);
        td_op_promote(&a, &b, at);
    } else {
        TD_REQUIRE(td_binary_of_integers(op), at, "%s: it is for floats, not for %s: td_cast them",
                   name, td_dtype_name(a->dtype));
    }
    td_shape shape = td_op_together(name, a, b, at);
    td_tensor *y = td_op_result(a, b, shape, a->dtype, at);
    td_tensor wide_a = td_op_expanded(a, shape), wide_b = td_op_expanded(b, shape);
    td_kernels_for(a)->binary(op, y, &wide_a, &wide_b);
    int reads = (td_needs_grad(a) ? reads_of[op][0] : 0) | (td_needs_grad(b) ? reads_of[op][1] : 0);
    return TD_RECORD(
        at, .op = name, .backward = binary_backward, .out = y, .inputs = { a, b },
        .saved = { (reads & READS_A) != 0 ? a : NULL, (reads & READS_B) != 0 ? b : NULL },
        TD_PARAMS(&op));
}

#define TD_BINARY(name, value, grad_a, reads_a, grad_b, reads_b)                                   \
    td_tensor *td_##name##_at(td_tensor *a, td_tensor *b, td_site at)                              \
    {                                                                                              \
        return binary(#name, TD_BINARY_##name, TD_RULE_OF(name), a, b, at);                        \
    }
#include "tensor/kernels/elementwise.def"
