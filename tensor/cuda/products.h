/* Convolutions and matrix products by the vendors' libraries: the level between the table's entries
 * (kernels_products.c), which know tensors, and cuDNN and cuBLASLt, of which nothing is seen here.
 * The emulated GPU has stand-ins (tests/emulate/). */
#pragma once

#include "tensor/kernels/kernels.h"

typedef enum td_cuda_conv_pass {
    TD_CUDA_CONV_FORWARD,         /* y from x, w and perhaps bias */
    TD_CUDA_CONV_BACKWARD_DATA,   /* x from y, w */
    TD_CUDA_CONV_BACKWARD_WEIGHTS /* w from x, y */
} td_cuda_conv_pass;

/* A convolution. x [N,IC,IH,IW] and y [N,OC,OH,OW] lie as NHWC, w [OC,IC/groups,KH,KW] as OHWI, all
 * dense and of one dtype: f32, f64, bf16 or f16. Sums are f32, or f64. Nothing is empty. */
typedef struct td_cuda_conv {
    td_cuda_conv_pass pass;
    td_dtype dtype;
    bool tf32; /* f32 factors may be rounded to TF32 */
    bool bias; /* forward: [OC] of the same dtype is added; cuDNN has no plan for an f32 one at 16
                  bits */
    bool accumulate; /* backward: the result is added to what is there */
    int64_t n, ic, ih, iw, oc, oh, ow;
    int kh, kw, stride[2], pad[2], dilation[2];
    int64_t groups;
} td_cuda_conv;

/* Puts the pass on the device's compute stream. bias: NULL without one. false: cuDNN has no way
 * that runs to add the bias in the same pass, and y is not made. Fatal without cuDNN, or where it
 * has no deterministic way that runs without a bias. */
bool td_cuda_vendor_conv(td_device device, const td_cuda_conv *conv, void *x, void *w, void *y,
                         const void *bias);

/* c[b][m][n] = a[b][m][k] b[b][k][n] (+ bias[n]) (+ add). Row-major c; a and b row-major or (a_t,
 * b_t) column-major. Leading dimensions and batch strides are in elements. */
typedef struct td_cuda_product {
    int64_t m, n, k, batch;
    int64_t a_ld, b_ld, c_ld, a_batch, b_batch, c_batch;
    bool a_t, b_t;
    td_dtype ab_dtype; /* of a and b: f32, bf16, f16, f64 */
    td_dtype c_dtype;  /* of c and bias: the same, or f32 beside 16-bit factors */
    bool tf32, adds;
    bool aligned; /* a, b, c and add lie at multiples of 16 bytes in every call; bias always does */
} td_cuda_product;

/* As td_cuda_vendor_conv; m, n, k and batch are not 0. bias: NULL, or of c's dtype. add: NULL
 * unless product->adds; c itself, or as c. */
bool td_cuda_vendor_matmul(td_device device, const td_cuda_product *product, void *c,
                           const void *add, const void *a, const void *b, const void *bias);

/* precision.c: the table's check_precision. */
td_status td_cuda_check_precision(td_device device, td_precision precision);
