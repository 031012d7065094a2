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

/* Clipping: sums[b] = the squares of a part of x, for each of td_cuda_square_blocks(count). Then x
 * is scaled so that the root of all `blocks` sums, *norm, is at most max_norm. Dense. */
int td_cuda_square_blocks(int64_t count);
void td_cuda_launch_square_sums(double *sums, const void *x, td_dtype dtype, int64_t count,
                                cudaStream_t stream);
void td_cuda_launch_clip(void *x, td_dtype dtype, int64_t count, const double *sums, int blocks,
                         double max_norm, double *norm, cudaStream_t stream);

TD_EXTERN_C_END
