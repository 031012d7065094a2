/* elements.cu: operations on elements. Operands of a walk in the order of the arguments; float
 * dtypes, computed in f32 (f64 in f64). */
#ifndef TD_TENSOR_CUDA_LAUNCH_ELEMENTS_H
#define TD_TENSOR_CUDA_LAUNCH_ELEMENTS_H

#include "tensor/cuda/launch.h"

TD_EXTERN_C_BEGIN

/* op: td_unary_op, td_binary_op. y may be x. */
void td_cuda_launch_unary(int op, td_dtype dtype, void *y, const void *x, double p, double q,
                          td_cuda_walk walk, cudaStream_t stream);
void td_cuda_launch_unary_grad(int op, td_dtype dtype, void *dx, const void *dy, const void *x,
                               const void *y, double p, double q, bool accumulate,
                               td_cuda_walk walk, cudaStream_t stream);
void td_cuda_launch_binary(int op, td_dtype dtype, void *y, const void *a, const void *b,
                           td_cuda_walk walk, cudaStream_t stream); /* integers too */
void td_cuda_launch_binary_grad(int op, int input, td_dtype dtype, void *dx, const void *g,
                                const void *a, const void *b, td_cuda_walk walk,
                                cudaStream_t stream);
/* dtype: of a and b. op: td_compare_op */
void td_cuda_launch_compare(int op, td_dtype dtype, uint8_t *y, const void *a, const void *b,
                            td_cuda_walk walk, cudaStream_t stream);
/* a, b NULL: zeros */
void td_cuda_launch_where(td_dtype dtype, void *y, const uint8_t *condition, const void *a,
                          const void *b, td_cuda_walk walk, cudaStream_t stream);

/* y += alpha x; integers too. */
void td_cuda_launch_axpy(td_dtype dtype, void *y, double alpha, const void *x, td_cuda_walk walk,
                         cudaStream_t stream);

TD_EXTERN_C_END

#endif
