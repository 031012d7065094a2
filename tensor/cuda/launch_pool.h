/* pool.cu: pooling of dense images in CUDA's order, [N][H][W][C]. */
#pragma once

#include "tensor/kernels/kernel_types.h"
#include "tensor/cuda/launch.h"

TD_EXTERN_C_BEGIN

typedef struct td_cuda_pool {
    td_pool2d_params window;
    td_dtype dtype;
    int64_t n, h, w, c; /* the images */
    int64_t oh, ow;     /* the pooled ones */
} td_cuda_pool;

/* index: u8 like y, the place in the window of the first largest; NULL: not wanted. */
void td_cuda_launch_max_pool(const td_cuda_pool *pool, void *y, uint8_t *index, const void *x,
                             cudaStream_t stream);
void td_cuda_launch_max_pool_grad(const td_cuda_pool *pool, void *dx, const void *dy,
                                  const uint8_t *index, bool accumulate, cudaStream_t stream);
void td_cuda_launch_avg_pool(const td_cuda_pool *pool, void *y, const void *x, cudaStream_t stream);
void td_cuda_launch_avg_pool_grad(const td_cuda_pool *pool, void *dx, const void *dy,
                                  bool accumulate, cudaStream_t stream);

TD_EXTERN_C_END
