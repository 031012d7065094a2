/* index.cu: kernels that find, check or follow indices. */
#pragma once

#include "tensor/cuda/launch.h"

#include <stdbool.h>

TD_EXTERN_C_BEGIN

/* The place of the first largest of n elements, `stride` apart; the first NaN counts as larger than
 * all. Walk: index, x without the dimension. Float dtypes and integers. */
void td_cuda_launch_argmax(int64_t *index, const void *x, td_dtype dtype, int64_t n, int64_t stride,
                           td_cuda_walk walk, cudaStream_t stream);

/* y[i,:] = table[index[i],:], of `rows` rows of d; dense. Any dtype of `size` bytes. A row whose
 * index is not in the table becomes bytes of 0xff, which are NaN. */
void td_cuda_launch_embedding(void *y, const void *table, int size, const int64_t *index,
                              int64_t count, int64_t rows, int64_t d, cudaStream_t stream);

/* table[index[i],:] += dy[i,:], for each i, in an order that the indices alone decide, unless
 * index[i] is not in the table; dense. f32, f64. sorted: room for 4 count numbers; partial: for two
 * rows of each of td_cuda_embedding_pieces(count). */
int64_t td_cuda_embedding_pieces(int64_t count);
void td_cuda_launch_embedding_grad(void *table, td_dtype dtype, const void *dy,
                                   const int64_t *index, int64_t count, int64_t rows, int64_t d,
                                   int64_t *sorted, void *partial, cudaStream_t stream);

/* first[b], b < TD_CUDA_RANGE_BLOCKS: the place of the first index outside of [0, limit) that block
 * b has found, count if none; dense. */
enum { TD_CUDA_RANGE_BLOCKS = 32 };
void td_cuda_launch_find_outside(int64_t *first, const int64_t *index, int64_t count, int64_t limit,
                                 cudaStream_t stream);

/* From `first` of td_cuda_launch_find_outside: if any is less than count and fault[0] is 0, fault =
 * { 1 + the least of them, the index there }. */
void td_cuda_launch_keep_outside(double *fault, const int64_t *first, const int64_t *index,
                                 int64_t count, cudaStream_t stream);

/* *count = in how many dense rows of x (f32, f64) fewer than k elements come before that of the
 * label (which is not NaN). places: room for a number for each row.
 */
void td_cuda_launch_count_top(int64_t *count, int64_t *places, const void *x, td_dtype dtype,
                              const int64_t *labels, int64_t rows, int64_t classes, int64_t k,
                              cudaStream_t stream);

TD_EXTERN_C_END
