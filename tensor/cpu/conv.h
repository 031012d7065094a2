/*
 * Two-dimensional convolution on the CPU, over plain pointers.
 *
 *     y[n][oc][oh][ow] = bias[oc] + sum over ic, kh, kw of
 *                        x[n][ic][oh*stride_h - pad_h + kh*dil_h][ow*stride_w - pad_w + kw*dil_w]
 *                        * w[oc][ic][kh][kw]
 *
 * where x counts as zero outside the picture, and with groups each output channel sees only the
 * input channels of its group.
 *
 * Layouts, all dense. Activations are HWNC: element (n, c, h, w) at ((h*W + w)*N + n)*C + c.
 * Weights are HWIO: element (oc, ic, kh, kw) at ((kh*KW + kw)*(IC/groups) + ic)*OC + oc.
 *
 * In HWNC one pixel of all pictures is a matrix, N x C. So the convolution is, for every output
 * pixel, a sum of matrix products, one for each tap (kh, kw) whose pixel exists: nothing is ever
 * multiplied by padding, and all three passes are the same loop with the roles exchanged.
 *
 * A value that is not finite may make more of the result not finite than the formula says, as
 * neighbouring pixels may be computed together.
 *
 * All sums run in an order that depends on the shapes and the instruction set only, never on the
 * number of threads.
 */
#ifndef TD_TENSOR_CPU_CONV_H
#define TD_TENSOR_CPU_CONV_H

#include "tensor/cpu/pool.h"
#include "tensor/dtype.h"

#include <stdbool.h>

/* Whether Winograd's transform is used: relative error 2e-6. */
typedef enum td_winograd {
    TD_WINOGRAD_NEVER = 0,
    TD_WINOGRAD_BY_RULES, /* where it can compute the pass, and is faster by fixed rules on shapes
                           */
    TD_WINOGRAD_ALWAYS,   /* where it can compute the pass */
} td_winograd;

/* Sizes are not checked here. The output's are those of the formula,
 * oh = (ih + 2*pad_h - dil_h*(kh-1) - 1) / stride_h + 1, and n may be 0. */
typedef struct td_conv2d_desc {
    td_dtype dtype; /* TD_F32 or TD_F64 */
    int64_t n;
    int64_t ic, ih, iw;
    int64_t oc, oh, ow;
    int kh, kw;
    int stride_h, stride_w;
    int pad_h, pad_w;
    int dil_h, dil_w;
    int64_t groups; /* divides ic and oc */
    td_winograd winograd;
} td_conv2d_desc;

typedef enum td_conv2d_pass {
    TD_CONV2D_FORWARD,
    TD_CONV2D_BACKWARD_DATA,
    TD_CONV2D_BACKWARD_WEIGHTS,
} td_conv2d_pass;

/* Bytes of workspace that a pass needs; best aligned to 64. It depends on the description and the
 * instruction set. The contents do not matter. */
size_t td_conv2d_workspace(const td_conv2d_desc *desc, td_conv2d_pass pass);

/* y is overwritten; bias has oc elements or is NULL. Here as below: `pool` may be NULL, nothing is
 * allocated, and results do not overlap operands. */
void td_conv2d_forward(td_pool *pool, const td_conv2d_desc *desc, const void *x, const void *w,
                       const void *bias, void *y, void *workspace);

/* dx = or += the gradient of x, given that of y. */
void td_conv2d_backward_data(td_pool *pool, const td_conv2d_desc *desc, const void *dy,
                             const void *w, void *dx, bool accumulate, void *workspace);

/* dw = or += the gradient of w. Taps that never meet the picture get exact zeros. */
void td_conv2d_backward_weights(td_pool *pool, const td_conv2d_desc *desc, const void *x,
                                const void *dy, void *dw, bool accumulate, void *workspace);

#endif
