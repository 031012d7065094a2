/* A tensor with a frame around it: for convolutions and pooling whose padding differs from side to
 * side. */
#include "autograd/ops/op.h"

/* Where x lies in the whole. */
static td_tensor inner(const td_tensor *whole, const td_tensor *x, const int64_t *before)
{
    td_tensor view = *whole;
    for (int d = 0; d < x->ndim; d++) {
        view.shape[d] = x->shape[d];
        view.offset += td_numel(x) > 0 ? before[d] * whole->stride[d] : 0;
    }
    return view;
}

static void padded_backward(td_node *node, const td_tensor *dy)
{
    const td_pad_params *params = td_params_of(node);
    td_tensor g = inner(dy, td_node_input(node, 0), params->before);
    td_input_grad_is(node, 0, &g);
}

td_tensor *td_op_padded(td_tensor *x, const int64_t *before, const int64_t *after, double value,
                        td_site at)
{
    td_shape shape = td_shape_of(x);
    td_pad_params params = { .value = value };
    bool any = false;
    for (int d = 0; d < shape.ndim; d++) {
        shape.dim[d] += before[d] + after[d];
        params.before[d] = before[d];
        any = any || before[d] + after[d] > 0;
    }
    if (!any) {
        return x;
    }
    td_layout layout = x->ndim == 4 && td_is_layout(x, TD_IMAGE) ? TD_IMAGE : TD_ROW_MAJOR;
    td_tensor *y = td_step_new(shape, x->dtype, layout, td_device_of(x), at);
    const td_kernels *kernels = td_kernels_for(x);
    kernels->fill(y, value);
    td_tensor view = inner(y, x, before);
    kernels->copy(&view, x);
    return TD_RECORD(at, .op = "pad", .backward = padded_backward, .out = y, .inputs = { x },
                     TD_PARAMS(&params));
}
