/*
 * Two-dimensional convolution on the CPU, over plain pointers.
 *
 *     y[n][oc][oh][ow] = bias[oc] + sum over ic, kh, kw of
 *                        x[n][ic][oh*stride_h - pad_h + kh*dil_h][ow*stride_w - pad_w + kw*dil_w]
 *                        * w[oc][ic][kh][kw]
 *
 * where x counts as zero outside the image, and with groups each output channel sees only the
 * input channels of its group.
 *
 * Layouts, all dense. Activations are HWNC: element (n, c, h, w) at ((h*W + w)*N + n)*C + c.
 * Weights are HWIO: element (oc, ic, kh, kw) at ((kh*KW + kw)*(IC/groups) + ic)*OC + oc.
 *
 * In HWNC one pixel of all images is a matrix, N x C. So the convolution is, for every output
 * pixel, a sum of matrix products, one for each tap (kh, kw) whose pixel exists: nothing is ever
 * multiplied by padding, and all three passes are the same loop with the roles exchanged.
 *
 * A value that is not finite may make more of the result not finite than the formula says, as
 * neighbouring pixels may be computed together.
 *
 * All sums run in an order that depends on the shapes and the instruction set only, never on the
 * number of threads.
 */
#pragma once

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
    td_dtype dtype; /* of x and y: TD_F32 or TD_F64; with `bf16` TD_BF16, or TD_F32 that is split */
    int64_t n;
    int64_t ic, ih, iw;
    int64_t oc, oh, ow;
    int kh, kw;
    int stride_h, stride_w;
    int pad_h, pad_w;
    int dil_h, dil_w;
    int64_t groups; /* divides ic and oc */
    td_winograd winograd;
    bool bf16;             /* multiplied in bf16, and added up in f32 */
    td_dtype weight_dtype; /* then: TD_F32 (rounded while it is packed) or TD_BF16 */
} td_conv2d_desc;

/* Whether a convolution can be multiplied in bf16, at the instruction set in use. */
bool td_conv2d_takes_bf16(const td_conv2d_desc *desc);

typedef enum td_conv2d_pass {
    TD_CONV2D_FORWARD,
    TD_CONV2D_BACKWARD_DATA,
    TD_CONV2D_BACKWARD_WEIGHTS,
} td_conv2d_pass;

/* Bytes of workspace that a pass needs; best aligned to 64. It depends on the description and the
 * instruction set. The contents do not matter. */
size_t td_conv2d_workspace(const td_conv2d_desc *desc, td_conv2d_pass pass);

/* A pass, its operands and its result: forward writes y; backward-data reads y's gradient as y and
 * writes x's as x; backward-weights writes w's as w. Results do not overlap operands. */
typedef struct td_conv2d_call {
    const td_conv2d_desc *desc;
    td_conv2d_pass pass;
    const void *x, *w, *y;
    bool accumulate;  /* backward: adds to what is there; else taps that meet nothing become 0 */
    const void *bias; /* forward: oc elements, or NULL; with `bf16` f32, as gradients of w are */
} td_conv2d_call;

/* `pool` may be NULL; nothing is allocated. */
void td_conv2d_run(td_pool *pool, const td_conv2d_call *call, void *workspace);
