/* The cost of a kernel's call: the floating-point operations that the task needs, and the bytes
 * that must move at least. The profiler computes GFLOP/s, GB/s and the share of the limit from
 * them.
 *
 * The cost is that of the task, not of an implementation. A multiplication and an addition are two
 * operations; a function of an element (exp, sqrt) is one; taps of a convolution that meet only
 * padding are none. Each tensor moves once, or twice if the kernel adds to it. */
#pragma once

#include "tensor/kernels/kernels.h"

TD_BEGIN_C

typedef struct td_cost {
    double flops, bytes;
    td_dtype dtype; /* of the arithmetic */
} td_cost;

/* Bytes of t's elements in memory: an expanded dimension counts once. NULL: 0. */
double td_cost_bytes(const td_tensor *t);

/* per_element operations for each element of t, and the bytes given. */
td_cost td_cost_of(const td_tensor *t, double per_element, double bytes);

td_cost td_cost_matmul(const td_tensor *c, const td_tensor *a, const td_tensor *b,
                       const td_tensor *bias, bool accumulate);
/* Any of a convolution's three products: x, y and w are its images and filters, or their gradients.
 * `written`: the one that is the result. */
td_cost td_cost_conv2d(const td_tensor *y, const td_tensor *x, const td_tensor *w,
                       const td_conv2d_params *params, const td_tensor *written, bool accumulate);
td_cost td_cost_attention(const td_attention_args *args);
td_cost td_cost_attention_grad(const td_attention_grad_args *args);
td_cost td_cost_clip(td_tensor *const *x, int count); /* read, then read and written */
td_cost td_cost_batch_norm(const td_batch_norm_args *args);
td_cost td_cost_batch_norm_grad(const td_batch_norm_grad_args *args);
td_cost td_cost_pool2d(const td_tensor *y, const td_tensor *x, const td_tensor *index,
                       const td_pool2d_params *params, const td_tensor *written, bool accumulate);
/* states: tensors beside the parameters that are read and written. */
td_cost td_cost_optim(const td_tensor *param, const td_optim_slice *slices, int count, int states,
                      double per_element);

TD_END_C
