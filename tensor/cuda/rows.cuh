/* For .cu files: rows that are taken by one warp each, long ones by a whole block (layer
 * normalisation, softmax, cross-entropy). */
#pragma once

#include "tensor/cuda/compute.cuh"

enum { TD_CUDA_SHORT_ROW = 1024, TD_CUDA_ALL_WARPS = TD_CUDA_THREADS / 32 };

/* The rows of a thread whose block has TD_CUDA_ALL_WARPS / WARPS of them at a time, and its place
 * in a row. All threads of a row come along to each sum. The first blocks may have other work. */
template <int WARPS> struct td_row_share {
    int64_t row, step;
    int lane;
    __device__ td_row_share(unsigned others = 0)
        : row((int64_t)(blockIdx.x - others) * (TD_CUDA_ALL_WARPS / WARPS) +
              threadIdx.x / (32 * WARPS)),
          step((int64_t)(gridDim.x - others) * (TD_CUDA_ALL_WARPS / WARPS)),
          lane((int)threadIdx.x % (32 * WARPS))
    {
    }
};

/* KERNEL<T, warps of a row>, over `rows` of them of size d, on `stream`; behind `others` blocks. */
#define TD_LAUNCH_ROWS(KERNEL, T, ...) TD_LAUNCH_ROWS_BEHIND(0, KERNEL, T, __VA_ARGS__)
#define TD_LAUNCH_ROWS_BEHIND(others, KERNEL, T, ...)                                              \
    if (d <= TD_CUDA_SHORT_ROW) {                                                                  \
        unsigned blocks = td_blocks(rows, TD_CUDA_ALL_WARPS, 8 * TD_CUDA_MOST_BLOCKS) + (others);  \
        TD_LAUNCH((KERNEL<T, 1>), blocks, TD_CUDA_THREADS, stream, rows, d, __VA_ARGS__);          \
    } else {                                                                                       \
        unsigned blocks = td_blocks(rows, 1, 8 * TD_CUDA_MOST_BLOCKS) + (others);                  \
        TD_LAUNCH((KERNEL<T, TD_CUDA_ALL_WARPS>), blocks, TD_CUDA_THREADS, stream, rows, d,        \
                  __VA_ARGS__);                                                                    \
    }
