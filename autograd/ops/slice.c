/* Elements start, start+step, ... below end along one dimension: a view. */
#include "autograd/ops/op.h"
#include "autograd/ops/shapes.h"

static td_tensor sliced(const td_tensor *x, const td_slice_params *p)
{
    td_tensor view = *x;
    view.shape[p->dim] = p->count;
    if (p->count > 1) { /* otherwise the stride never matters, and the product may be huge */
        view.stride[p->dim] *= p->step;
    }
    if (p->count > 0) {
        view.offset += p->start * x->stride[p->dim];
    }
    return view;
}

/* dy where the slice was, zero elsewhere. */
static void slice_backward(td_node *node, const td_tensor *dy)
{
    td_grad_slot slot = td_input_grad(node, 0);
    const td_kernels *kernels = td_kernels_for(dy);
    td_tensor part = sliced(slot.grad, td_params_of(node));
    if (slot.accumulate) {
        kernels->axpy(&part, 1.0, dy);
    } else {
        kernels->fill(slot.grad, 0.0);
        kernels->copy(&part, dy);
    }
}

/* A negative step: the same elements forwards, in the opposite order, which is a copy. */
static td_tensor *backwards(td_tensor *x, int dim, int64_t start, int64_t end, int64_t step,
                            td_site at)
{
    int64_t size = x->shape[dim], first = start < 0 ? start + size : start;
    int64_t last = end < 0 ? (end + size < -1 ? -1 : end + size) : end; /* not included */
    TD_REQUIRE(first >= 0 && first < size, at, "slice: start %lld lies outside dimension %d of x%s",
               (long long)start, dim, TD_SHAPE_TEXT(x));
    int64_t count = first > last ? (first - last - 1) / -step + 1 : 0;
    if (count == 0) {
        return td_slice_at(x, dim, 0, 0, 1, at);
    }
    td_tensor *forwards = td_slice_at(x, dim, first + (count - 1) * step, first + 1, -step, at);
    return td_flip_at(forwards, dim, at);
}

td_tensor *td_slice_at(td_tensor *x, int dim, int64_t start, int64_t end, int64_t step, td_site at)
{
    td_check_tensor(x, "slice", "x", at);
    dim = td_check_dim(x, dim, at);
    if (step < 0) {
        return backwards(x, dim, start, end, step, at);
    }
    int64_t size = x->shape[dim];
    int64_t first = start < 0 ? start + size : start, limit = end < 0 ? end + size : end;
    limit = limit > size ? size : limit;
    TD_REQUIRE(step > 0, at, "slice: the step is 0");
    TD_REQUIRE(first >= 0 && first <= size, at,
               "slice: start %lld lies outside dimension %d of x%s", (long long)start, dim,
               TD_SHAPE_TEXT(x));
    int64_t count = limit > first ? (limit - first - 1) / step + 1 : 0;
    td_slice_params params = { dim, first, count, step };
    td_tensor view = sliced(x, &params);
    return TD_RECORD(at, .op = "slice", .backward = slice_backward,
                     .out = td_step_view(x, view.offset, td_shape_of(&view), view.stride, at),
                     .inputs = { x }, TD_PARAMS(&params));
}
