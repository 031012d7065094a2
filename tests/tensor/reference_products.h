/* Slow matrix products and convolutions in double precision, for the tests of the kernels. */
#pragma once

#include "tests/tensor/reference.h"

#include "tensor/kernels/kernels.h"

/* c = or += a b (+ bias), by the CPU's kernel, against the reference; frees all. Factors count as
 * what the kernel takes them for: an f32 one beside a bf16 one is rounded. tolerance: 0: by dtype.
 */
void ref_check_matmul(td_tensor *c, td_tensor *a, td_tensor *b, td_tensor *bias, bool accumulate,
                      td_math math, double tolerance);

typedef struct ref_conv {
    int64_t n, ic, ih, iw, oc;
    int kh, kw;
    td_conv2d_params params;
} ref_conv;

/* The dtypes of the three tensors of a convolution, and what they are made in. */
typedef struct ref_conv_types {
    td_dtype x, w, y;
    td_layout image, filter;
    double tolerance; /* 0: by dtype */
} ref_conv_types;

/* All passes of a convolution, with and without bias, accumulation and scattered memory. */
void ref_check_conv(const ref_conv *c, const ref_conv_types *types);
