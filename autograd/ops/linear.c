/* The fully connected layer: x[...,in], w[out,in], b[out] -> x w^T + b. The weight may lie in any
 * order; nn keeps it as TD_FILTER, memory [in][out]. */
#include "autograd/fused.h"
#include "autograd/ops/op.h"

/* dx = dy w, dw = dy^T x, db = the column sums of dy. Where a residual is f32 and x has 16 bits, dy
 * is rounded, and its columns added up, in one pass. */
static void linear_backward(td_node *node, const td_tensor *dy)
{
    const td_tensor *x = td_saved(node, 0), *w = td_saved(node, 1);
    const td_math *math = td_params_of(node);
    td_site at = td_node_site(node);
    td_dtype dtype = td_node_input(node, 0)->dtype;
    td_tensor dym = td_op_matrix(dy, at);
    bool narrow = dtype != dy->dtype;
    if (narrow) {
        td_grad_slot db = { NULL, false };
        if (td_input_needs_grad(node, 2)) {
            db = td_input_grad(node, 2);
        }
        td_tensor wide = dym;
        dym = *td_op_new(td_shape_of(&wide), dtype, dy, at);
        td_kernels_for(dy)->narrow(&dym, db.grad, &wide, db.accumulate);
    }
    td_op_grad_matmul(node, 0, &dym, w, *math);
    if (td_input_needs_grad(node, 1)) {
        td_tensor xm = td_op_matrix(x, at);
        td_tensor dym_t = td_op_swapped(&dym, 0, 1);
        td_op_grad_matmul(node, 1, &dym_t, &xm, *math);
    }
    if (!narrow) {
        td_op_grad_channel_sum(node, 2, &dym, 1);
    }
    if (td_input_needs_grad(node, 3)) {
        td_input_grad_is(node, 3, dy);
    }
}

static void linear_check(const td_tensor *x, const td_tensor *w, const td_tensor *b, td_site at)
{
    td_check_float(w, "linear", "the weight", at);
    td_check_mixed(x, w, "linear", at);
    TD_REQUIRE(w->ndim == 2, at, "linear: weight%s must be [out_features,in_features]",
               TD_SHAPE_TEXT(w));
    TD_REQUIRE(x->ndim >= 1 && x->shape[x->ndim - 1] == w->shape[1], at,
               "linear: x%s does not fit weight%s: the last dimension of x must be in_features "
               "(%lld)",
               TD_SHAPE_TEXT(x), TD_SHAPE_TEXT(w), (long long)w->shape[1]);
    td_op_check_bias("linear", x, w, b, w->shape[0], at);
}

/* A weight that is held in bf16 and not trained, under an x of f32. */
static bool linear_holds(const td_tensor *x, const td_tensor *w, const td_tensor *b)
{
    return x->dtype == TD_F32 && w->dtype == TD_BF16 && (b == NULL || b->dtype == TD_F32) &&
           !td_needs_grad(w) && !td_needs_grad(x);
}

/* y = x w^T + b with w widened to f32, a stretch of its rows at a time. */
static void linear_widened(const td_tensor *y, const td_tensor *x, const td_tensor *w,
                           const td_tensor *b, td_math math, td_site at)
{
    enum { STRETCH = 4096 };
    int64_t out = w->shape[0], most = out < STRETCH ? out : STRETCH;
    td_device device = td_device_of(x);
    td_tensor *room = td_step_new(TD_SHAPE(most, w->shape[1]), TD_F32, TD_ROW_MAJOR, device, at);
    for (int64_t first = 0; first < out; first += STRETCH) {
        int64_t n = out - first < STRETCH ? out - first : STRETCH;
        td_tensor part = *y, rows = *w, wide = *room, bias;
        part.offset += first * y->stride[1];
        rows.offset += first * w->stride[0];
        part.shape[1] = rows.shape[0] = wide.shape[0] = n;
        if (b != NULL) {
            bias = *b;
            bias.offset += first * b->stride[0];
            bias.shape[0] = n;
        }
        td_kernels_of(device)->copy(&wide, &rows);
        td_tensor turned = td_op_swapped(&wide, 0, 1);
        td_kernels_of(device)->matmul(&part, x, &turned, b != NULL ? &bias : NULL, false, math);
    }
}

/* Whether the device's product adds `add` itself, whose dtype is that of the sums. */
static bool linear_adds(const td_tensor *x, const td_tensor *w, const td_tensor *b,
                        const td_tensor *add, td_shape shape)
{
    td_dtype sums = td_is_half(x->dtype) ? TD_F32 : x->dtype;
    return td_kernels_for(x)->matmul_add != NULL && !td_operations_observed() && td_numel(x) > 0 &&
           add->dtype == sums && w->dtype == sums && (b == NULL || b->dtype == sums) &&
           td_same_device(td_device_of(add), td_device_of(x)) &&
           td_shape_equal(td_shape_of(add), shape);
}

td_tensor *td_linear_add_at(td_tensor *x, td_tensor *w, td_tensor *b, td_tensor *add, td_site at)
{
    x = td_op_input(x, "linear", "x", TD_RULE_OF(linear), at);
    linear_check(x, w, b, at);
    td_shape shape = td_shape_of(x);
    shape.dim[shape.ndim - 1] = w->shape[0];
    if (add != NULL && !linear_adds(x, w, b, add, shape)) {
        return td_add_at(add, td_linear_at(x, w, b, at), at);
    }
    td_tensor *y = td_op_new(shape, add != NULL ? add->dtype : x->dtype, x, at);
    td_tensor xm = td_op_matrix(x, at), ym = td_op_matrix(y, at), w_t = td_op_swapped(w, 0, 1);
    td_math math = td_math_now();
    const td_kernels *kernels = td_kernels_for(x);
    if (add != NULL) {
        td_tensor addm = td_op_matrix(td_op_row_major(add, at), at);
        kernels->matmul_add(&ym, &addm, &xm, &w_t, b, math);
    } else if (!linear_holds(x, w, b)) {
        kernels->matmul(&ym, &xm, &w_t, b, false, math);
    } else if (kernels->matmul_few != NULL && xm.shape[0] <= TD_FEW_ROWS) {
        kernels->matmul_few(&ym, &xm, &w_t, b);
    } else {
        linear_widened(&ym, &xm, w, b, math, at);
    }
    return TD_RECORD(at, .op = "linear", .backward = linear_backward, .can_split = true, .out = y,
                     .inputs = { x, w, b, add },
                     .saved = { td_needs_grad(w) ? x : NULL, td_needs_grad(x) ? w : NULL },
                     TD_PARAMS(&math));
}

td_tensor *td_linear_at(td_tensor *x, td_tensor *w, td_tensor *b, td_site at)
{
    return td_linear_add_at(x, w, b, NULL, at);
}
