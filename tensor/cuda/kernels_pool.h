/* What pooling alone and pooling behind batch normalisation share. */
#pragma once

#include "tensor/cuda/launch_pool.h"
#include "tensor/tensor.h"

/* x: the images; y: the pooled ones. */
td_cuda_pool td_cuda_pool_of(const td_tensor *x, const td_tensor *y,
                             const td_pool2d_params *params);
