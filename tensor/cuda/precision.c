/* In which precisions GPUs compute. */
#include "tensor/cuda/cuda.h"
#include "tensor/cuda/products.h"

static td_status refuse(const td_cuda *gpu, td_precision precision, const char *otherwise)
{
    return td_fail(TD_E_UNSUPPORTED, "%s (%s, sm_%d) does not compute in %s: use %s",
                   td_device_name(gpu->device), gpu->name, gpu->sm, td_precision_name(precision),
                   otherwise);
}

td_status td_cuda_check_precision(td_device device, td_precision precision)
{
    const td_cuda *gpu = td_cuda_of(device);
    switch (precision) {
    case TD_PRECISION_BF16: /* tensor cores know it from Ampere on */
        return gpu->sm >= 80 ? TD_OK : refuse(gpu, precision, "fp16, or fp32");
    case TD_PRECISION_TF32:
        return gpu->sm >= 80 ? TD_OK : refuse(gpu, precision, "fp32, or fp16");
    case TD_PRECISION_FP16:
        return gpu->sm >= 70 ? TD_OK : refuse(gpu, precision, "fp32");
    case TD_PRECISION_BF16X3:
        return refuse(gpu, precision, gpu->sm >= 80 ? "tf32, or fp32" : "fp32");
    case TD_PRECISION_FP32:
    case TD_PRECISION_COUNT:
        break;
    }
    return TD_OK;
}
