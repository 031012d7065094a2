/* Matrix products, batched: [...,m,k] x [...,k,n] -> [...,m,n]. */
#include "autograd/ops/op.h"

/* The operands as the kernel wants them. A stack of matrices times one matrix is one tall product;
 * otherwise batch dimensions are expanded to each other. */
static void operands(const td_tensor *a, const td_tensor *b, td_tensor *am, td_tensor *bm,
                     td_site at)
{
    if (b->ndim == 2) {
        *am = td_op_matrix(a, at);
        *bm = *b;
        return;
    }
    td_shape batch_a = td_shape_of(a), batch_b = td_shape_of(b), batch;
    batch_a.ndim -= 2;
    batch_b.ndim -= 2;
    TD_REQUIRE(td_broadcast_shape(batch_a, batch_b, &batch), at,
               "matmul: the batch dimensions of a%s and b%s do not go together: counted from the "
               "third last dimension, sizes must be equal or 1",
               TD_SHAPE_TEXT(a), TD_SHAPE_TEXT(b));
    td_shape shape_a = batch, shape_b = batch;
    for (int d = 0; d < 2; d++) {
        shape_a.dim[shape_a.ndim++] = a->shape[a->ndim - 2 + d];
        shape_b.dim[shape_b.ndim++] = b->shape[b->ndim - 2 + d];
    }
    *am = td_op_expanded(a, shape_a);
    *bm = td_op_expanded(b, shape_b);
}

/* da = dy b^T, db = a^T dy */
static void matmul_backward(td_node *node, const td_tensor *dy)
{
    const td_tensor *a = td_saved(node, 0), *b = td_saved(node, 1);
    const td_math *math = td_params_of(node);
    td_site at = td_node_site(node);
    td_tensor dym = b->ndim == 2 ? td_op_matrix(dy, at) : *dy;
    td_tensor am, bm;
    operands(a, b, &am, &bm, at);
    int last = bm.ndim - 1;
    td_tensor am_t = td_op_swapped(&am, last - 1, last), bm_t = td_op_swapped(&bm, last - 1, last);
    td_op_grad_matmul(node, 0, &dym, &bm_t, *math);
    td_op_grad_matmul(node, 1, &am_t, &dym, *math);
}

/* A vector is a row on the left, a column on the right; the result lacks that dimension. */
static td_tensor *matmul_of_vectors(td_tensor *a, td_tensor *b, td_site at)
{
    bool row = a->ndim == 1, column = b->ndim == 1;
    td_tensor *y = td_matmul_at(row ? td_reshape_at(a, TD_SHAPE(1, -1), at) : a,
                                column ? td_reshape_at(b, TD_SHAPE(-1, 1), at) : b, at);
    td_shape shape = { .ndim = 0 };
    for (int d = 0; d < y->ndim; d++) {
        if (!(row && d == y->ndim - 2) && !(column && d == y->ndim - 1)) {
            shape.dim[shape.ndim++] = y->shape[d];
        }
    }
    return td_reshape_at(y, shape, at);
}

td_tensor *td_matmul_at(td_tensor *a, td_tensor *b, td_site at)
{
    td_check_tensor(a, "matmul", "a", at);
    td_check_tensor(b, "matmul", "b", at);
    if ((a->ndim == 1 && b->ndim > 0) || (b->ndim == 1 && a->ndim > 0)) {
        return matmul_of_vectors(a, b, at);
    }
    a = td_op_input(a, "matmul", "a", TD_RULE_OF(matmul), at);
    td_check_float(b, "matmul", "b", at);
    if (!td_is_leaf(b)) { /* a weight stays f32 */
        b = td_op_input(b, "matmul", "b", TD_RULE_OF(matmul), at);
    }
    td_check_mixed(a, b, "matmul", at);
    TD_REQUIRE(a->ndim >= 2 && b->ndim >= 2, at,
               "matmul: a%s and b%s must have at least one dimension each", TD_SHAPE_TEXT(a),
               TD_SHAPE_TEXT(b));
    TD_REQUIRE(a->shape[a->ndim - 1] == b->shape[b->ndim - 2], at,
               "matmul: a%s does not fit b%s: a has %lld columns, b has %lld rows",
               TD_SHAPE_TEXT(a), TD_SHAPE_TEXT(b), (long long)a->shape[a->ndim - 1],
               (long long)b->shape[b->ndim - 2]);
    td_tensor am, bm;
    operands(a, b, &am, &bm, at);
    td_shape shape = td_shape_of(b->ndim == 2 ? a : &am);
    shape.dim[shape.ndim - 1] = b->shape[b->ndim - 1];
    td_tensor *y = td_op_new(shape, a->dtype, a, at);
    td_tensor ym = b->ndim == 2 ? td_op_matrix(y, at) : *y;
    td_math math = td_math_now();
    td_kernels_for(a)->matmul(&ym, &am, &bm, NULL, false, math);
    return TD_RECORD(at, .op = "matmul", .backward = matmul_backward, .can_split = true, .out = y,
                     .inputs = { a, b }, .saved = { a, b }, TD_PARAMS(&math));
}
