/*
 * The convolutions of conv.h in bf16, for processors that multiply it: the same loops over the
 * pixels that exist, over the kernels of bf16_kernels.h. Pictures are bf16, or f32 that is split in
 * two; weights and their gradients are f32 (master weights, rounded while they are packed) or, as
 * operands, bf16.
 */
#ifndef TD_TENSOR_CPU_CONV_BF16_H
#define TD_TENSOR_CPU_CONV_BF16_H

#include "tensor/cpu/conv.h"

typedef struct td_conv_bf16_desc {
    td_conv2d_desc conv;   /* its dtype is that of the pictures: TD_BF16, or TD_F32: split */
    td_dtype weight_dtype; /* TD_F32 or TD_BF16; gradients of weights are TD_F32 */
} td_conv_bf16_desc;

/* Whether this convolution is computed here, at the instruction set in use. */
bool td_conv_bf16_takes(const td_conv_bf16_desc *desc);

/* Bytes of workspace, as td_conv2d_workspace. */
size_t td_conv_bf16_workspace(const td_conv_bf16_desc *desc, td_conv2d_pass pass);

/* stats: [2][oc] sums of y and of its squares, as stored, or NULL. bias: f32. */
void td_conv_bf16_forward(td_pool *pool, const td_conv_bf16_desc *desc, const void *x,
                          const void *w, const float *bias, void *y, double *stats,
                          void *workspace);
void td_conv_bf16_backward_data(td_pool *pool, const td_conv_bf16_desc *desc, const void *dy,
                                const void *w, void *dx, bool accumulate, void *workspace);
void td_conv_bf16_backward_weights(td_pool *pool, const td_conv_bf16_desc *desc, const void *x,
                                   const void *dy, float *dw, bool accumulate, void *workspace);

#endif
