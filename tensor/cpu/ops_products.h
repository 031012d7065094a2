/* Products of tensors: what the general way (ops_products.c) and the way by bf16 kernels
 * (ops_products_bf16.c) share. */
#ifndef TD_TENSOR_CPU_OPS_PRODUCTS_H
#define TD_TENSOR_CPU_OPS_PRODUCTS_H

#include "tensor/cpu/conv.h"
#include "tensor/kernels.h"

/* Sizes of a convolution; the dtype is that of the general kernels. */
td_conv2d_desc td_conv2d_describe(const td_tensor *x, const td_tensor *w, const td_tensor *y,
                                  const td_conv2d_params *params);

/* As the kernels of kernels.h; false, with nothing done, where the general way is to be taken. */
bool td_bf16_conv2d(td_tensor *y, const td_tensor *x, const td_tensor *w, const td_tensor *bias,
                    const td_conv2d_params *params, td_tensor *stats);
bool td_bf16_conv2d_grad_input(td_tensor *dx, const td_tensor *dy, const td_tensor *w,
                               const td_conv2d_params *params, bool accumulate);
bool td_bf16_conv2d_grad_weight(td_tensor *dw, const td_tensor *dy, const td_tensor *x,
                                const td_conv2d_params *params, bool accumulate);

#endif
