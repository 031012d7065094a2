/* What pooling alone and pooling behind batch normalisation share. */
#ifndef TD_TENSOR_CUDA_KERNELS_POOL_H
#define TD_TENSOR_CUDA_KERNELS_POOL_H

#include "tensor/cuda/launch_pool.h"
#include "tensor/tensor.h"

/* x: the images; y: the pooled ones. */
td_cuda_pool td_cuda_pool_of(const td_tensor *x, const td_tensor *y,
                             const td_pool2d_params *params);

#endif
