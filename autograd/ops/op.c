/* What the files of operations share: promotion, broadcasting, views, shapes of results. */
#include "autograd/ops/op.h"

#include "autograd/fused.h"
#include "tensor/extend.h"
#include "tensor/hooks.h"

#include <string.h>

/* ---- 16-bit floats ---- */

td_tensor *td_op_input(td_tensor *x, const char *op, const char *what, td_rule rule, td_site at)
{
    td_check_float(x, op, what, at);
    TD_REQUIRE(td_in_step(), at,
               "td_%s outside a step: its result is made in step memory; put it into TD_STEP { }",
               op);
    switch (rule) {
    case TD_RULE_IS_FACTOR:
        if (x->dtype == TD_F32) {
            td_dtype dtype = td_precision_dtype(td_math_now().precision);
            return dtype != TD_F32 ? td_cast_at(x, dtype, at) : x;
        }
        break;
    case TD_RULE_IS_WIDENS:
        if (td_is_half(x->dtype)) {
            return td_cast_at(x, TD_F32, at);
        }
        break;
    case TD_RULE_IS_FOLLOWS:
    case TD_RULE_IS_ANY:
        break;
    }
    return x;
}

td_dtype td_op_product_dtype(const td_tensor *x)
{
    bool at_once = td_kernels_for(x)->narrow != NULL && !td_operations_observed();
    return at_once && x->dtype == TD_F32 ? td_precision_dtype(td_math_now().precision) : x->dtype;
}

void td_op_check_bias(const char *op, const td_tensor *x, const td_tensor *w, const td_tensor *b,
                      int64_t out, td_site at)
{
    if (b != NULL) {
        td_check_float(b, op, "the bias", at);
        td_check_mixed(x, b, op, at);
        TD_REQUIRE(b->ndim == 1 && b->shape[0] == out, at,
                   "%s: bias%s does not fit weight%s: it must be [out] ([%lld])", op,
                   TD_SHAPE_TEXT(b), TD_SHAPE_TEXT(w), (long long)out);
    }
}

void td_op_promote(td_tensor **a, td_tensor **b, td_site at)
{
    if (td_is_half((*a)->dtype) && (*b)->dtype == TD_F32) {
        *a = td_cast_at(*a, TD_F32, at);
    } else if ((*a)->dtype == TD_F32 && td_is_half((*b)->dtype)) {
        *b = td_cast_at(*b, TD_F32, at);
    }
}

td_shape td_op_together(const char *op, const td_tensor *a, const td_tensor *b, td_site at)
{
    td_check_match(a, b, op, at);
    td_shape shape;
    TD_REQUIRE(td_broadcast_shape(td_shape_of(a), td_shape_of(b), &shape), at,
               "%s: a%s and b%s do not go together: counted from the last dimension, sizes must be "
               "equal or 1",
               op, TD_SHAPE_TEXT(a), TD_SHAPE_TEXT(b));
    return shape;
}

td_tensor *td_op_result(const td_tensor *a, const td_tensor *b, td_shape shape, td_dtype dtype,
                        td_site at)
{
    td_tensor *y = td_op_new(shape, dtype, a, at);
    bool like_a = td_shape_equal(td_shape_of(a), shape);
    bool like_b = td_shape_equal(td_shape_of(b), shape);
    if (like_a || like_b) {
        td_strides_like(like_a && (td_is_dense(a) || !like_b) ? a : b, y->stride);
    }
    return y;
}

td_tensor *td_op_per_channel(td_tensor *t, const td_tensor *x, td_site at)
{
    td_shape shape = { .ndim = x->ndim - 1, .dim = { t->shape[0] } };
    for (int d = 1; d < shape.ndim; d++) {
        shape.dim[d] = 1;
    }
    return td_reshape_at(t, shape, at);
}

/* ---- views by value ---- */

td_tensor td_op_expanded(const td_tensor *t, td_shape shape)
{
    td_tensor view = *t;
    int missing = shape.ndim - t->ndim;
    for (int d = shape.ndim - 1; d >= 0; d--) {
        bool same = d >= missing && t->shape[d - missing] == shape.dim[d];
        view.shape[d] = shape.dim[d];
        view.stride[d] = same ? t->stride[d - missing] : 0;
    }
    view.ndim = shape.ndim;
    return view;
}

td_tensor td_op_swapped(const td_tensor *t, int dim0, int dim1)
{
    td_tensor view = *t;
    view.shape[dim0] = t->shape[dim1];
    view.shape[dim1] = t->shape[dim0];
    view.stride[dim0] = t->stride[dim1];
    view.stride[dim1] = t->stride[dim0];
    return view;
}

td_tensor td_op_with_shape(const td_tensor *t, td_shape shape, const int64_t *stride)
{
    td_tensor view = *t;
    view.ndim = shape.ndim;
    memcpy(view.shape, shape.dim, (size_t)shape.ndim * sizeof *view.shape);
    memcpy(view.stride, stride, (size_t)shape.ndim * sizeof *view.stride);
    return view;
}

bool td_op_view_strides(const td_tensor *t, td_shape shape, int64_t *stride)
{
    if (td_numel(t) == 0) {
        td_layout_strides(td_device_of(t), TD_ROW_MAJOR, shape, stride);
        return true;
    }
    int to = shape.ndim - 1;
    for (int from = t->ndim - 1; from >= 0;) {
        if (t->shape[from] == 1) {
            from--;
            continue;
        }
        /* A run: dimensions that lie in memory like one. The next dimensions of the new shape,
         * from its end, must have exactly as many elements. */
        int64_t run = t->shape[from], unit = t->stride[from];
        for (from--; from >= 0 && (t->shape[from] == 1 || t->stride[from] == run * unit); from--) {
            run *= t->shape[from];
        }
        int64_t filled = 1;
        for (; filled < run; to--) {
            stride[to] = filled * unit;
            filled *= shape.dim[to];
        }
        if (filled != run) {
            return false;
        }
    }
    for (; to >= 0; to--) {
        stride[to] = td_numel(t); /* of size 1; never used */
    }
    return true;
}

td_tensor *td_op_row_major(const td_tensor *t, td_site at)
{
    if (td_is_contiguous(t)) {
        return (td_tensor *)(uintptr_t)t;
    }
    td_tensor *copy = td_op_new(td_shape_of(t), t->dtype, t, at);
    td_kernels_for(t)->copy(copy, t);
    return copy;
}

td_tensor td_op_reshaped(const td_tensor *t, td_shape shape, td_site at)
{
    int64_t stride[TD_MAX_DIMS];
    if (td_op_view_strides(t, shape, stride)) {
        return td_op_with_shape(t, shape, stride);
    }
    td_layout_strides(td_device_of(t), TD_ROW_MAJOR, shape, stride);
    return td_op_with_shape(td_op_row_major(t, at), shape, stride);
}

td_tensor td_op_matrix(const td_tensor *t, td_site at)
{
    if (t->ndim == 2) {
        return *t;
    }
    int64_t rows = 1;
    for (int d = 0; d + 1 < t->ndim; d++) {
        rows *= t->shape[d];
    }
    return td_op_reshaped(t, TD_SHAPE(rows, t->shape[t->ndim - 1]), at);
}

td_shape td_op_kept_shape(const td_tensor *x, td_shape dims, td_site at)
{
    td_shape shape = td_shape_of(x);
    for (int i = 0; i < dims.ndim; i++) {
        shape.dim[td_check_dim(x, (int)dims.dim[i], at)] = 1;
    }
    for (int d = 0; d < shape.ndim && dims.ndim == 0; d++) {
        shape.dim[d] = 1;
    }
    return shape;
}

td_shape td_op_reduced_shape(const td_tensor *x, td_shape dims, bool keep, td_site at)
{
    td_shape kept = td_op_kept_shape(x, dims, at), shape = { .ndim = 0 };
    bool gone[TD_MAX_DIMS] = { false };
    for (int i = 0; i < dims.ndim; i++) {
        gone[td_check_dim(x, (int)dims.dim[i], at)] = true;
    }
    for (int d = 0; d < kept.ndim; d++) {
        if (!gone[d] && dims.ndim > 0) {
            shape.dim[shape.ndim++] = kept.dim[d];
        }
    }
    return keep ? kept : shape;
}

/* ---- common gradients ---- */

static td_shape product_shape(const td_tensor *a, const td_tensor *b)
{
    td_shape shape = td_shape_of(a);
    shape.dim[shape.ndim - 1] = b->shape[b->ndim - 1];
    return shape;
}

/* Whether a matrix lies transposed in memory, as filters do. */
static bool is_turned(const td_tensor *t)
{
    if (t->ndim != 2 || td_is_contiguous(t)) {
        return false;
    }
    td_tensor turned = td_op_swapped(t, 0, 1);
    return td_is_contiguous(&turned);
}

/* The gradient of input i, a 16-bit tensor, is the sum of g (f32) to `shape`, which has g's
 * dimensions and as many elements as the input: added up in f32, rounded once. */
static void grad_sum_rounded(td_node *node, int i, const td_tensor *g, td_shape shape)
{
    const td_tensor *input = td_node_input(node, i);
    td_site at = td_node_site(node);
    const td_kernels *kernels = td_kernels_for(g);
    td_tensor *sum = td_op_new(shape, TD_F32, g, at);
    kernels->reduce(TD_REDUCE_SUM, sum, g, false);
    td_tensor view = td_op_reshaped(sum, td_shape_of(input), at);
    td_tensor *rounded = td_op_new(td_shape_of(input), input->dtype, g, at);
    kernels->copy(rounded, &view);
    td_input_grad_is(node, i, rounded);
}

/* t's shape with ones in front, as many dimensions as asked for. */
static td_shape shape_with_ones(const td_tensor *t, int ndim)
{
    td_shape shape = { .ndim = ndim };
    for (int d = 0; d < ndim; d++) {
        int own = d - (ndim - t->ndim);
        shape.dim[d] = own >= 0 ? t->shape[own] : 1;
    }
    return shape;
}

void td_op_grad_matmul(td_node *node, int i, const td_tensor *a, const td_tensor *b, td_math math)
{
    if (!td_input_needs_grad(node, i)) {
        return;
    }
    const td_tensor *input = td_node_input(node, i);
    td_site at = td_node_site(node);
    td_shape shape = product_shape(a, b);
    bool broadcast = td_numel(input) != td_shape_numel(shape);
    bool direct = !broadcast && (td_is_contiguous(input) || is_turned(input));
    td_tensor a_turned, b_turned;
    if (direct && is_turned(input)) { /* (a b)^T = b^T a^T; dimensions in front are 1 */
        int rows = a->ndim - 2, columns = a->ndim - 1;
        a_turned = td_op_swapped(b, rows, columns);
        b_turned = td_op_swapped(a, rows, columns);
        a = &a_turned;
        b = &b_turned;
        shape = product_shape(a, b);
    }
    td_grad_slot slot = { NULL, false };
    if (direct) {
        slot = td_input_grad(node, i);
    } else {
        td_dtype dtype = broadcast && td_is_half(input->dtype) ? TD_F32 : input->dtype;
        slot.grad = td_op_new(shape, dtype, a, at);
    }
    int64_t stride[TD_MAX_DIMS];
    td_layout_strides(td_device_of(a), TD_ROW_MAJOR, shape, stride);
    td_tensor c = td_op_with_shape(slot.grad, shape, stride);
    td_kernels_for(a)->matmul(&c, a, b, NULL, slot.accumulate, math);
    if (broadcast && td_is_half(input->dtype)) {
        grad_sum_rounded(node, i, slot.grad, shape_with_ones(input, shape.ndim));
    } else if (broadcast) {
        td_input_grad_sum(node, i, slot.grad);
    } else if (!direct) {
        td_tensor view = td_op_reshaped(slot.grad, td_shape_of(input), at);
        td_input_grad_is(node, i, &view);
    }
}

td_op_gradient td_op_grad_begin(td_node *node, int i, const td_tensor *like, bool direct)
{
    if (!td_input_needs_grad(node, i)) {
        return (td_op_gradient){ NULL, false, false };
    }
    if (!direct) {
        return (td_op_gradient){ td_step_new_like(like, td_node_site(node)), false, true };
    }
    td_grad_slot slot = td_input_grad(node, i);
    return (td_op_gradient){ slot.grad, slot.accumulate, false };
}

void td_op_grad_end(td_node *node, int i, td_op_gradient *gradient)
{
    if (gradient->temporary) {
        td_input_grad_is(node, i, gradient->grad);
    }
}

bool td_op_repeats(td_node *node, int i)
{
    const struct td_grad_state *state = td_node_input(node, i)->grad;
    for (int j = 0; j < i; j++) {
        if (state != NULL && td_node_input(node, j)->grad == state) {
            return true;
        }
    }
    return false;
}

void td_op_grad_channel_sum(td_node *node, int i, const td_tensor *dy, int channel_dim)
{
    if (!td_input_needs_grad(node, i)) {
        return;
    }
    const td_kernels *kernels = td_kernels_for(dy);
    if (dy->dtype == TD_F16) { /* the kernel `reduce` takes no f16 */
        td_tensor *wide = td_op_new(td_shape_of(dy), TD_F32, dy, td_node_site(node));
        td_strides_like(dy, wide->stride);
        kernels->copy(wide, dy);
        dy = wide;
    }
    td_shape shape = td_shape_of(dy);
    for (int d = 0; d < dy->ndim; d++) {
        shape.dim[d] = d == channel_dim ? dy->shape[d] : 1;
    }
    if (td_is_half(td_node_input(node, i)->dtype)) {
        grad_sum_rounded(node, i, dy, shape);
        return;
    }
    td_grad_slot slot = td_input_grad(node, i);
    int64_t stride[TD_MAX_DIMS];
    for (int d = 0; d < dy->ndim; d++) {
        stride[d] = d == channel_dim ? slot.grad->stride[0] : dy->shape[channel_dim];
    }
    td_tensor sum = td_op_with_shape(slot.grad, shape, stride);
    kernels->reduce(TD_REDUCE_SUM, &sum, dy, slot.accumulate);
}

/* ---- windows ---- */

void td_op_pair(int both, const int hw[2], int usual, int least, const char *op, const char *what,
                int pair[2], td_site at)
{
    bool differ = hw[0] != 0 || hw[1] != 0;
    TD_REQUIRE(both == 0 || !differ, at, "%s: give %s or %s_hw, not both", op, what, what);
    pair[0] = differ ? hw[0] : both != 0 ? both : usual;
    pair[1] = differ ? hw[1] : both != 0 ? both : usual;
    TD_REQUIRE(pair[0] >= least && pair[1] >= least, at,
               "%s: the %s is %d by %d; it must be at least %d", op, what, pair[0], pair[1], least);
}

void td_op_triple(int all, const int dhw[3], int usual, int least, const char *op, const char *what,
                  int triple[3], td_site at)
{
    bool differ = dhw[0] != 0 || dhw[1] != 0 || dhw[2] != 0;
    TD_REQUIRE(all == 0 || !differ, at, "%s: give %s or %s_dhw, not both", op, what, what);
    for (int d = 0; d < 3; d++) {
        triple[d] = differ ? dhw[d] : all != 0 ? all : usual;
        TD_REQUIRE(triple[d] >= least, at, "%s: the %s is %d; it must be at least %d", op, what,
                   triple[d], least);
    }
}

int64_t td_op_windows(int64_t size, int64_t kernel, int stride, int pad, int dilation)
{
    int64_t room = size + 2 * (int64_t)pad - (int64_t)dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
}

void td_op_same_padding(int64_t size, int64_t kernel, int stride, int dilation, int64_t *before,
                        int64_t *after)
{
    int64_t windows = (size + stride - 1) / stride, reach = dilation * (kernel - 1) + 1;
    int64_t all = (windows - 1) * stride + reach - size;
    *before = all > 0 ? all / 2 : 0;
    *after = all > 0 ? all - all / 2 : 0;
}

void td_op_check_index(const td_tensor *index, int64_t limit, const char *op, const char *what,
                       td_site at)
{
    int64_t bad;
    TD_REQUIRE(td_checked_by_device(index, limit, op, what, at) ||
                   td_kernels_for(index)->indices_in_range(index, limit, &bad),
               at, "%s: %s %lld is out of range: it must be 0 to %lld", op, what, (long long)bad,
               (long long)limit - 1);
}
