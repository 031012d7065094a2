/* Products by own kernels, which take tensors of any strides and float dtypes as they are. */
#include "tensor/cuda/cuda.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch_products.h"
#include "tensor/extend.h"

static void *take_partial(td_cuda_cut *cut, int64_t results, td_device device)
{
    cut->partial = cut->segments > 1
                       ? td_scratch(device, (size_t)(cut->segments * results) * sizeof(double))
                       : NULL;
    return cut->partial;
}

/* ---- matrix products ---- */

static td_cuda_operand matrix_of(const td_tensor *t)
{
    return (td_cuda_operand){ .at = td_ptr(t),
                              .dtype = t->dtype,
                              .stride = { t->stride[t->ndim - 2], t->stride[t->ndim - 1] } };
}

/* A tensor's batch dimensions alone. */
static td_tensor batch_of(const td_tensor *t)
{
    td_tensor batch = *t;
    batch.ndim = t->ndim - 2;
    return batch;
}

void td_cuda_matmul_own(td_tensor *c, const td_tensor *a, const td_tensor *b, const td_tensor *bias,
                        bool accumulate)
{
    if (td_numel(c) == 0) {
        return;
    }
    td_device device = td_device_of(c);
    td_tensor batches[3] = { batch_of(c), batch_of(a), batch_of(b) };
    td_cuda_own_matmul p = {
        .m = c->shape[c->ndim - 2],
        .n = c->shape[c->ndim - 1],
        .k = a->shape[a->ndim - 1],
        .a = matrix_of(a),
        .b = matrix_of(b),
        .c = matrix_of(c),
        .batch = td_cuda_walk_of(3, (const td_tensor *[]){ &batches[0], &batches[1], &batches[2] }),
        .accumulate = accumulate,
        .cut = td_cuda_cut_of(td_numel(c), a->shape[a->ndim - 1]),
    };
    if (bias) {
        p.bias = (td_cuda_operand){ td_ptr(bias), bias->dtype, { bias->stride[0] } };
    }
    void *partial = take_partial(&p.cut, td_numel(c), device);
    td_cuda_launch_matmul(&p, td_cuda_stream(c));
    td_cuda_launched("matmul");
    td_scratch_free(device, partial);
}

/* ---- convolutions ---- */

static td_cuda_operand images_of(const td_tensor *t)
{
    return (td_cuda_operand){
        .at = td_ptr(t),
        .dtype = t->dtype,
        .stride = { t->stride[0], t->stride[1], t->stride[2], t->stride[3] },
    };
}

static td_cuda_own_conv describe(const td_tensor *x, const td_tensor *w, const td_tensor *y,
                                 const td_conv2d_params *params)
{
    return (td_cuda_own_conv){
        .n = x->shape[0],
        .ic = x->shape[1],
        .ih = x->shape[2],
        .iw = x->shape[3],
        .oc = y->shape[1],
        .oh = y->shape[2],
        .ow = y->shape[3],
        .kh = w->shape[2],
        .kw = w->shape[3],
        .groups = params->groups,
        .stride = { params->stride[0], params->stride[1] },
        .pad = { params->pad[0], params->pad[1] },
        .dilation = { params->dilation[0], params->dilation[1] },
        .x = images_of(x),
        .w = images_of(w),
        .y = images_of(y),
        .cut = { .segments = 1 },
    };
}

void td_cuda_conv2d_own(td_tensor *y, const td_tensor *x, const td_tensor *w, const td_tensor *bias,
                        const td_conv2d_params *params)
{
    if (td_numel(y) == 0) {
        return;
    }
    td_cuda_own_conv c = describe(x, w, y, params);
    if (bias) {
        c.bias = (td_cuda_operand){ td_ptr(bias), bias->dtype, { bias->stride[0] } };
    }
    if (td_cuda_conv_is_narrow(&c)) {
        td_cuda_launch_conv_narrow(&c, td_cuda_stream(y));
    } else {
        td_cuda_launch_conv(&c, td_cuda_stream(y));
    }
    td_cuda_launched("conv2d");
}

void td_cuda_conv2d_grad_input_own(td_tensor *dx, const td_tensor *dy, const td_tensor *w,
                                   const td_conv2d_params *params, bool accumulate)
{
    if (td_numel(dx) == 0) {
        return;
    }
    td_cuda_own_conv c = describe(dx, w, dy, params);
    c.accumulate = accumulate;
    if (td_cuda_conv_is_narrow(&c)) {
        td_cuda_launch_conv_narrow_grad_input(&c, td_cuda_stream(dx));
    } else {
        td_cuda_launch_conv_grad_input(&c, td_cuda_stream(dx));
    }
    td_cuda_launched("conv2d_grad_input");
}

void td_cuda_conv2d_grad_weight_own(td_tensor *dw, const td_tensor *dy, const td_tensor *x,
                                    const td_conv2d_params *params, bool accumulate)
{
    if (td_numel(dw) == 0) {
        return;
    }
    td_device device = td_device_of(dw);
    td_cuda_own_conv c = describe(x, dw, dy, params);
    c.accumulate = accumulate;
    bool narrow = td_cuda_conv_is_narrow(&c);
    /* The narrow kernel has no tiles of TILE x TILE, but blocks of 32 results. */
    int64_t results = td_numel(dw);
    c.cut = td_cuda_cut_of(narrow ? 64 * results : results, c.n * c.oh * c.ow);
    void *partial = take_partial(&c.cut, results, device);
    if (narrow) {
        td_cuda_launch_conv_narrow_grad_weight(&c, td_cuda_stream(dw));
    } else {
        td_cuda_launch_conv_grad_weight(&c, td_cuda_stream(dw));
    }
    td_cuda_launched("conv2d_grad_weight");
    td_scratch_free(device, partial);
}
