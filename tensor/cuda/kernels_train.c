/* Optimizers, dropout, pictures. */
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch_train.h"
#include "tensor/hooks.h"

#include <math.h>

void td_cuda_dropout(td_tensor *y, const td_tensor *x, double p, td_philox_key key,
                     const uint64_t *step, td_numbering of, bool accumulate)
{
    if (td_numel(y) == 0) {
        return;
    }
    td_staged sx, sy;
    const void *from = td_stage_in(&sx, x, TD_ROW_MAJOR);
    void *to = td_stage_out(&sy, y, TD_ROW_MAJOR, accumulate);
    double threshold = ceil(p * 0x1p32);
    const uint64_t *recorded = NULL;
    const td_recorder *recorder = td_recorder_now();
    if (recorder != NULL) {
        recorded = recorder->on_device(recorder, step, sizeof *step);
        if (recorded == NULL) {
            td_cuda_needs_host("%s with a counter of its caller's", "dropout");
        } else if (!recorder->recording) {
            recorded = NULL;
        }
    }
    td_cuda_draw draw = {
        .key = td_philox_mixed_key(key),
        .step = recorded != NULL ? 0 : *step,
        .more = recorded,
        .threshold = threshold < 0x1p32 ? (uint32_t)threshold : UINT32_MAX,
        .scale = 1.0 / (1.0 - p),
        .of = of,
        .accumulate = accumulate,
    };
    td_cuda_launch_dropout(y->dtype, td_numel(y), to, from, &draw, td_cuda_stream(y));
    td_cuda_launched("dropout");
    td_stage_end(&sy, &sx);
}

/* Where the passes below write param in 16 bits, too; they are its only writers since the write was
 * counted. */
static td_cuda_half_parameters half_of(const td_tensor *param)
{
    td_cuda_half *half = td_cuda_half_to_write(param);
    if (half == NULL) {
        return (td_cuda_half_parameters){ .at = NULL };
    }
    half->version = param->storage->version;
    return (td_cuda_half_parameters){ (uint16_t *)half->memory + param->offset, half->dtype };
}

/* What slices say changes from step to step (rates, bias corrections), so the table goes up each
 * time; kernels read it when they run. */
void td_cuda_sgd(td_tensor *param, const td_tensor *grad, td_tensor *momentum,
                 const td_optim_slice *slices, int count)
{
    if (td_numel(param) == 0 || count == 0) {
        return;
    }
    int64_t n = slices[count - 1].begin + slices[count - 1].count;
    td_device device = td_device_of(param);
    const td_optim_slice *table = td_cuda_numbers(device, slices, (size_t)count * sizeof *slices);
    td_cuda_launch_sgd(param->dtype, n, td_ptr(param), td_ptr(grad),
                       momentum ? td_ptr(momentum) : NULL, half_of(param), table, count,
                       td_cuda_stream(param));
    td_cuda_launched("sgd");
}

void td_cuda_update(td_update_op op, td_tensor *param, const td_tensor *grad,
                    td_tensor *const *state, const td_optim_slice *slices, int count)
{
    if (td_numel(param) == 0 || count == 0) {
        return;
    }
    int64_t n = slices[count - 1].begin + slices[count - 1].count;
    td_device device = td_device_of(param);
    const td_optim_slice *table = td_cuda_numbers(device, slices, (size_t)count * sizeof *slices);
    void *at[TD_UPDATE_STATES];
    for (int k = 0; k < TD_UPDATE_STATES; k++) {
        at[k] = state[k] != NULL ? td_ptr(state[k]) : NULL;
    }
    if (state[0]->dtype != param->dtype) {
        td_cuda_launch_adam_packed(state[0]->dtype, n, td_ptr(param), td_ptr(grad), at[0], at[1],
                                   table, count, td_cuda_stream(param));
    } else {
        td_cuda_launch_update(op, param->dtype, n, td_ptr(param), td_ptr(grad), at, half_of(param),
                              table, count, td_cuda_stream(param));
    }
    td_cuda_launched("update");
}

void td_cuda_pictures(td_tensor *y, td_tensor *labels, const td_tensor *pictures,
                      const td_tensor *values, const td_picture_cut *cuts)
{
    int64_t count = y->shape[0];
    if (td_numel(y) == 0) {
        return;
    }
    const td_picture_cut *list =
        td_cuda_numbers(td_device_of(y), cuts, (size_t)count * sizeof *cuts);
    td_cuda_launch_pictures(y->dtype, td_ptr(y), y->stride, count, y->shape[1], y->shape[2],
                            y->shape[3], td_ptr(labels), td_ptr(pictures), td_ptr(values), list,
                            td_cuda_stream(y));
    td_cuda_launched("pictures");
}
