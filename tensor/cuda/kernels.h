/* CUDA's kernels (tensor/kernels.def): td_cuda_fill and so on, in kernels_*.c, each beside the .cu
 * file that it starts. */
#ifndef TD_TENSOR_CUDA_KERNELS_H
#define TD_TENSOR_CUDA_KERNELS_H

#include "tensor/kernels.h"

#define TD_KERNEL(TYPE, NAME, PARAMETERS, ARGUMENTS, COST) TYPE td_cuda_##NAME PARAMETERS;
#include "tensor/kernels.def"

/* kernels_norm.c: [2,C] f64, the sum of every channel of y and of its squares. */
void td_cuda_channel_stats(td_tensor *stats, const td_tensor *y);

/* kernels_own.c: products by own kernels, of every shape, stride and dtype that the table allows:
 * what the vendors' libraries refuse. */
void td_cuda_matmul_own(td_tensor *c, const td_tensor *a, const td_tensor *b, const td_tensor *bias,
                        bool accumulate);
void td_cuda_conv2d_own(td_tensor *y, const td_tensor *x, const td_tensor *w, const td_tensor *bias,
                        const td_conv2d_params *params);
void td_cuda_conv2d_grad_input_own(td_tensor *dx, const td_tensor *dy, const td_tensor *w,
                                   const td_conv2d_params *params, bool accumulate);
void td_cuda_conv2d_grad_weight_own(td_tensor *dw, const td_tensor *dy, const td_tensor *x,
                                    const td_conv2d_params *params, bool accumulate);

#endif
