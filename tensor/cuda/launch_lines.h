/* lines.cu: along one dimension of n elements, whose strides are given. Walks are over lines, that
 * is, over the operands without the dimension, in the order of the arguments; gather's is over
 * elements. */
#pragma once

#include "tensor/cuda/launch.h"

TD_EXTERN_C_BEGIN

/* Operands y, index, x, where x has stride 0 along the dimension, of `limit` elements; an index
 * outside of it gives bytes of 0xff. */
void td_cuda_launch_gather(td_dtype dtype, void *y, const int64_t *index, const void *x,
                           int64_t limit, int64_t stride, td_cuda_walk walk, cudaStream_t stream);

typedef struct td_cuda_line {
    td_cuda_walk walk;
    td_dtype dtype;
    int64_t n, stride[3];
} td_cuda_line;
/* y has `limit` elements along the dimension; nothing is added for an index outside of them. */
void td_cuda_launch_scatter_add(const td_cuda_line *line, void *y, const void *x,
                                const int64_t *index, int64_t limit, cudaStream_t stream);
void td_cuda_launch_cumsum(const td_cuda_line *line, void *y, const void *x, bool backwards,
                           cudaStream_t stream);
void td_cuda_launch_prod(const td_cuda_line *line, void *y, const void *x, cudaStream_t stream);
void td_cuda_launch_prod_grad(const td_cuda_line *line, void *dx, const void *dy, const void *x,
                              cudaStream_t stream);
void td_cuda_launch_argsort(const td_cuda_line *line, int64_t *index, const void *x,
                            bool descending, cudaStream_t stream);
/* The lines are rows, in row-major order. */
void td_cuda_launch_triangle(const td_cuda_line *line, void *y, const void *x, int64_t rows,
                             int64_t diagonal, bool upper, cudaStream_t stream);

TD_EXTERN_C_END
