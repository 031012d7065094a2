/* Elements around a tensor, in the opposite order, repeated, or outside of a triangle. */
#include "autograd/ops/op.h"
#include "autograd/ops/shapes.h"

/* ---- flip ---- */

/* dim seen from its end: a view for the time of a call. */
static td_tensor turned(const td_tensor *x, int dim)
{
    td_tensor view = *x;
    if (x->shape[dim] > 0) {
        view.offset += (x->shape[dim] - 1) * x->stride[dim];
    }
    view.stride[dim] = -x->stride[dim];
    return view;
}

static void flip_backward(td_node *node, const td_tensor *dy)
{
    const int *dim = td_params_of(node);
    td_tensor *dx = td_step_new_like(dy, td_node_site(node));
    td_tensor view = turned(dy, *dim);
    td_kernels_for(dy)->copy(dx, &view);
    td_input_grad_is(node, 0, dx);
}

td_tensor *td_flip_at(td_tensor *x, int dim, td_site at)
{
    td_check_tensor(x, "flip", "x", at);
    dim = td_check_dim(x, dim, at);
    td_tensor *y = td_step_new_like(x, at);
    td_tensor view = turned(x, dim);
    td_kernels_for(x)->copy(y, &view);
    return TD_RECORD(at, .op = "flip", .backward = flip_backward, .out = y, .inputs = { x },
                     TD_PARAMS(&dim));
}

/* ---- pad ---- */

/* `count` elements that come before x along dim, or after it. */
static td_tensor *beside(td_tensor *x, int dim, bool before, int64_t count, td_pad_mode mode,
                         td_site at)
{
    int64_t size = x->shape[dim];
    if (mode == TD_PAD_REFLECT) {
        TD_REQUIRE(count < size, at, "pad: %lld reflected along dimension %d of x%s: at most %lld",
                   (long long)count, dim, TD_SHAPE_TEXT(x), (long long)size - 1);
        int64_t start = before ? 1 : size - 1 - count;
        return td_flip_at(td_slice_at(x, dim, start, start + count, 1, at), dim, at);
    }
    TD_REQUIRE(size > 0, at, "pad: dimension %d of x%s has no edge to replicate", dim,
               TD_SHAPE_TEXT(x));
    int64_t edge = before ? 0 : size - 1;
    td_shape shape = td_shape_of(x);
    shape.dim[dim] = count;
    return td_expand_at(td_slice_at(x, dim, edge, edge + 1, 1, at), shape, at);
}

td_tensor *td_pad_at(td_pad_options o, td_site at)
{
    td_check_tensor(o.x, "pad", "x", at);
    td_tensor *y = o.x;
    for (int d = 0; d < TD_MAX_DIMS; d++) {
        TD_REQUIRE(o.before[d] >= 0 && o.after[d] >= 0 &&
                       (d < y->ndim || o.before[d] + o.after[d] == 0),
                   at, "pad: %lld before and %lld after dimension %d of x%s",
                   (long long)o.before[d], (long long)o.after[d], d, TD_SHAPE_TEXT(o.x));
    }
    if (o.mode == TD_PAD_CONSTANT) {
        return td_op_padded(o.x, o.before, o.after, o.value, at);
    }
    for (int d = 0; d < y->ndim; d++) {
        td_tensor *parts[3];
        int count = 0;
        if (o.before[d] > 0) {
            parts[count++] = beside(y, d, true, o.before[d], o.mode, at);
        }
        parts[count++] = y;
        if (o.after[d] > 0) {
            parts[count++] = beside(y, d, false, o.after[d], o.mode, at);
        }
        y = count > 1 ? td_cat_at(parts, count, d, at) : y;
    }
    return y;
}

/* ---- triangles ---- */

static td_tensor *triangle_of(const td_tensor *x, td_triangle_params p, td_site at)
{
    td_tensor *y = td_op_new(td_shape_of(x), x->dtype, x, at);
    td_kernels_for(x)->triangle(y, x, p.diagonal, p.upper);
    return y;
}

static void triangle_backward(td_node *node, const td_tensor *dy)
{
    const td_triangle_params *p = td_params_of(node);
    td_input_grad_is(node, 0, triangle_of(dy, *p, td_node_site(node)));
}

static td_tensor *triangle(const char *op, td_tensor *x, td_triangle_params params, td_site at)
{
    td_check_tensor(x, op, "x", at);
    TD_REQUIRE(x->ndim >= 2, at, "%s: x%s must have at least two dimensions", op, TD_SHAPE_TEXT(x));
    td_tensor *y = triangle_of(x, params, at);
    return TD_RECORD(at, .op = op, .backward = triangle_backward, .out = y, .inputs = { x },
                     TD_PARAMS(&params));
}

td_tensor *td_tril_at(td_tensor *x, int64_t diagonal, td_site at)
{
    return triangle("tril", x, (td_triangle_params){ diagonal, false }, at);
}

td_tensor *td_triu_at(td_tensor *x, int64_t diagonal, td_site at)
{
    return triangle("triu", x, (td_triangle_params){ diagonal, true }, at);
}
