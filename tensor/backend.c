#include "tensor/backend.h"

#if TD_HAVE_CUDA
#include "tensor/cuda/backend.h"
#endif

const td_backend *td_backend_of(td_device device)
{
#if TD_HAVE_CUDA
    if (device.type == TD_DEVICE_CUDA) {
        return td_cuda_backend();
    }
#endif
    (void)device;
    return NULL;
}
