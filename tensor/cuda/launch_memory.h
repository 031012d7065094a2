/* memory.cu: filling, copying, looking for numbers that are not finite, clipping. */
#pragma once

#include "tensor/kernels/kernel_types.h"
#include "tensor/cuda/launch.h"

#include <stdbool.h>

TD_EXTERN_C_BEGIN

/* y[...] = value, over operand 0 of the walk; value is rounded as td_store_element does. */
void td_cuda_launch_fill(void *y, td_dtype dtype, double value, td_cuda_walk walk,
                         cudaStream_t stream);

/* y[...] = x[...], operands 0 and 1 of the walk, converted from dtype to dtype. */
void td_cuda_launch_copy(void *y, td_dtype y_dtype, const void *x, td_dtype x_dtype,
                         td_cuda_walk walk, cudaStream_t stream);

/* *found = 1 if an element of x is infinite or NaN; otherwise it is left alone. */
void td_cuda_launch_find_not_finite(int *found, const void *x, td_dtype dtype, td_cuda_walk walk,
                                    cudaStream_t stream);

/* The same, while x becomes x / scale[TD_SCALE_FACTOR]; dense. */
void td_cuda_launch_unscale(int *found, void *x, td_dtype dtype, const double *scale, int64_t count,
                            cudaStream_t stream);

/* The scale after a step. */
void td_cuda_launch_adapt_scale(double *scale, const int *found, const td_scale_rule *rule,
                                cudaStream_t stream);

/* *norm = the root of the sum of sums[0..count), one after the other; *factor = max_norm / (*norm +
 * 1e-6), or 1 where that is not below 1. */
void td_cuda_launch_clip_factor(double *norm, double *factor, const double *sums, int count,
                                double max_norm, cudaStream_t stream);

/* x *= *factor, which is rounded to what x is computed in; dense. Nothing is touched if it is 1. */
void td_cuda_launch_scale(void *x, td_dtype dtype, const double *factor, int64_t count,
                          cudaStream_t stream);

TD_EXTERN_C_END
