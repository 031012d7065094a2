/* For .cu files: rows that are taken by one warp each, long ones by a whole block (layer
 * normalisation, softmax, cross-entropy). */
#pragma once

#include "tensor/cuda/compute.cuh"

enum { TD_CUDA_SHORT_ROW = 1024, TD_CUDA_ALL_WARPS = TD_CUDA_THREADS / 32 };

/* The rows of a thread whose block has TD_CUDA_ALL_WARPS / WARPS of them at a time, and its place
 * in a row. All threads of a row come along to each sum. */
template <int WARPS> struct td_row_share {
    int64_t row, step;
    int lane;
    __device__ td_row_share()
        : row((int64_t)blockIdx.x * (TD_CUDA_ALL_WARPS / WARPS) + threadIdx.x / (32 * WARPS)),
          step((int64_t)gridDim.x * (TD_CUDA_ALL_WARPS / WARPS)),
          lane((int)threadIdx.x % (32 * WARPS))
    {
    }
};

/* KERNEL<T, warps of a row>, over `rows` of them of size d, on `stream`. */
#define TD_LAUNCH_ROWS(KERNEL, T, ...)                                                             \
    if (d <= TD_CUDA_SHORT_ROW) {                                                                  \
        unsigned blocks = td_blocks(rows, TD_CUDA_ALL_WARPS, 8 * TD_CUDA_MOST_BLOCKS);             \
        TD_LAUNCH((KERNEL<T, 1>), blocks, TD_CUDA_THREADS, stream, rows, d, __VA_ARGS__);          \
    } else {                                                                                       \
        unsigned blocks = td_blocks(rows, 1, 8 * TD_CUDA_MOST_BLOCKS);                             \
        TD_LAUNCH((KERNEL<T, TD_CUDA_ALL_WARPS>), blocks, TD_CUDA_THREADS, stream, rows, d,        \
                  __VA_ARGS__);                                                                    \
    }
