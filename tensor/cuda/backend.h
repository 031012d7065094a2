/* The door to tensor/cuda/ for tensor/: no CUDA header is needed to include it. */
#ifndef TD_TENSOR_CUDA_BACKEND_H
#define TD_TENSOR_CUDA_BACKEND_H

#include "tensor/backend.h"

const td_backend *td_cuda_backend(void);

#endif
