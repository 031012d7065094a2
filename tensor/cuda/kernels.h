/* CUDA's kernels (tensor/kernels.def): td_cuda_fill and so on, in kernels_*.c, each beside the .cu
 * file that it starts. */
#ifndef TD_TENSOR_CUDA_KERNELS_H
#define TD_TENSOR_CUDA_KERNELS_H

#include "tensor/kernels.h"

#define TD_KERNEL(TYPE, NAME, PARAMETERS, ARGUMENTS, COST) TYPE td_cuda_##NAME PARAMETERS;
#include "tensor/kernels.def"

/* kernels_norm.c: [2,C] f64, the sum of every channel of y and of its squares. */
void td_cuda_channel_stats(td_tensor *stats, const td_tensor *y);

#endif
