/* Convolutions and matrix products that are multiplied in bf16: those of bf16 tensors, and of f32
 * ones that may be split. Each function returns false, and has done nothing, if this processor or
 * this case wants the general kernels. */
#include "tensor/cpu/ops_products.h"

#include "tensor/cpu/conv_bf16.h"
#include "tensor/cpu/cpu_device.h"
#include "tensor/staged.h"
#include "tensor/extend.h"

/* Whether a convolution of these pictures and weights is one of bf16 kernels; fills in desc. */
static bool describe(td_conv_bf16_desc *desc, const td_tensor *x, const td_tensor *w,
                     const td_tensor *y, const td_conv2d_params *params)
{
    bool split = x->dtype == TD_F32 && w->dtype == TD_F32 && y->dtype == TD_F32 &&
                 params->math.precision == TD_PRECISION_BF16X3;
    bool mixed =
        x->dtype == TD_BF16 && y->dtype == TD_BF16 && (w->dtype == TD_F32 || w->dtype == TD_BF16);
    if (!split && !mixed) {
        return false;
    }
    desc->conv = td_conv2d_describe(x, w, y, params);
    desc->conv.dtype = x->dtype;
    desc->weight_dtype = w->dtype;
    return td_conv_bf16_takes(desc);
}

static void *take_workspace(td_device device, const td_conv_bf16_desc *desc, td_conv2d_pass pass)
{
    return td_scratch(device, td_conv_bf16_workspace(desc, pass));
}

bool td_bf16_conv2d(td_tensor *y, const td_tensor *x, const td_tensor *w, const td_tensor *bias,
                    const td_conv2d_params *params, td_tensor *stats)
{
    td_conv_bf16_desc desc;
    if (!describe(&desc, x, w, y, params)) {
        return false;
    }
    td_device device = td_device_of(y);
    td_staged sx, sw, sb, sy, ss;
    const void *from = td_stage_in(&sx, x, TD_IMAGE);
    const void *filter = td_stage_in(&sw, w, TD_FILTER);
    const float *shift = td_stage_in_as(&sb, bias, TD_ROW_MAJOR, TD_F32);
    void *to = td_stage_out(&sy, y, TD_IMAGE, false);
    double *sums = td_stage_out(&ss, stats, TD_ROW_MAJOR, false);
    void *workspace = take_workspace(device, &desc, TD_CONV2D_FORWARD);
    td_conv_bf16_forward(td_cpu_pool(device), &desc, from, filter, shift, to, sums, workspace);
    td_scratch_free(device, workspace);
    td_stage_end(&ss);
    td_stage_end(&sy);
    td_stage_end(&sb);
    td_stage_end(&sw);
    td_stage_end(&sx);
    return true;
}

bool td_bf16_conv2d_grad_input(td_tensor *dx, const td_tensor *dy, const td_tensor *w,
                               const td_conv2d_params *params, bool accumulate)
{
    td_conv_bf16_desc desc;
    if (!describe(&desc, dx, w, dy, params)) {
        return false;
    }
    td_device device = td_device_of(dx);
    td_staged sdy, sw, sdx;
    const void *from = td_stage_in(&sdy, dy, TD_IMAGE);
    const void *filter = td_stage_in(&sw, w, TD_FILTER);
    void *to = td_stage_out(&sdx, dx, TD_IMAGE, accumulate);
    void *workspace = take_workspace(device, &desc, TD_CONV2D_BACKWARD_DATA);
    td_conv_bf16_backward_data(td_cpu_pool(device), &desc, from, filter, to, accumulate, workspace);
    td_scratch_free(device, workspace);
    td_stage_end(&sdx);
    td_stage_end(&sw);
    td_stage_end(&sdy);
    return true;
}

bool td_bf16_conv2d_grad_weight(td_tensor *dw, const td_tensor *dy, const td_tensor *x,
                                const td_conv2d_params *params, bool accumulate)
{
    td_conv_bf16_desc desc;
    if (!describe(&desc, x, dw, dy, params)) {
        return false;
    }
    td_device device = td_device_of(dw);
    td_staged sdy, sx, sdw;
    const void *from = td_stage_in(&sdy, dy, TD_IMAGE);
    const void *input = td_stage_in(&sx, x, TD_IMAGE);
    float *to = td_stage_out_as(&sdw, dw, TD_FILTER, TD_F32, accumulate);
    void *workspace = take_workspace(device, &desc, TD_CONV2D_BACKWARD_WEIGHTS);
    td_conv_bf16_backward_weights(td_cpu_pool(device), &desc, input, from, to, accumulate,
                                  workspace);
    td_scratch_free(device, workspace);
    td_stage_end(&sdw);
    td_stage_end(&sx);
    td_stage_end(&sdy);
    return true;
}
