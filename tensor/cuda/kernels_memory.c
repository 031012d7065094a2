/* Filling, copying, looking for numbers that are not finite. */
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch_memory.h"

void td_cuda_fill(td_tensor *y, double value)
{
    if (td_numel(y) == 0) {
        return;
    }
    const td_tensor *operands[] = { y };
    td_cuda_launch_fill(td_ptr(y), y->dtype, value, td_cuda_walk_of(1, operands),
                        td_cuda_stream(y));
    td_cuda_launched("fill");
}

void td_cuda_copy(td_tensor *y, const td_tensor *x)
{
    if (td_numel(y) == 0) {
        return;
    }
    const td_tensor *operands[] = { y, x };
    td_cuda_launch_copy(td_ptr(y), y->dtype, td_ptr(x), x->dtype, td_cuda_walk_of(2, operands),
                        td_cuda_stream(y));
    td_cuda_launched("copy");
}

bool td_cuda_all_finite(const td_tensor *x)
{
    if (td_numel(x) == 0) {
        return true;
    }
    td_device device = td_device_of(x);
    cudaStream_t stream = td_cuda_stream(x);
    int value = 0, *found = td_scratch(device, sizeof *found);
    td_cuda_must(cudaMemsetAsync(found, 0, sizeof *found, stream), "all_finite");
    td_cuda_launch_find_not_finite(found, td_ptr(x), x->dtype, td_cuda_walk_of(1, &x), stream);
    td_cuda_launched("all_finite");
    td_cuda_fetch(device, &value, found, sizeof value, "all_finite");
    td_scratch_free(device, found);
    return value == 0;
}

void td_cuda_unscale(td_tensor *x, const td_tensor *scale, td_tensor *found)
{
    if (td_numel(x) == 0) {
        return;
    }
    td_tensor *to = x;
    td_staged sx = { .scratch = NULL };
    if (!td_is_dense(x)) {
        td_stage_out(&sx, x, TD_ROW_MAJOR, true);
        to = sx.tensor;
    }
    td_cuda_launch_unscale(td_ptr(found), td_ptr(to), x->dtype, td_ptr(scale), td_numel(x),
                           td_cuda_stream(x));
    td_cuda_launched("unscale");
    td_stage_end(&sx);
}

void td_cuda_adapt_scale(td_tensor *scale, const td_tensor *found, const td_scale_rule *rule)
{
    td_cuda_launch_adapt_scale(td_ptr(scale), td_ptr(found), rule, td_cuda_stream(scale));
    td_cuda_launched("adapt_scale");
}
