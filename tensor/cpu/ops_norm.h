/* What batch normalisation and its gradient share: images in the CPU's layout, or [N,C], are
 * matrices with a row per pixel and picture and a column per channel. */
#pragma once

#include "tensor/cpu/loops.h"
#include "tensor/cpu/ops_walk.h"
#include "tensor/kernels/element.h"
#include "tensor/storage.h"

/* Rows whose sums are taken in the tensors' own type before they go on in double. */
enum { TD_NORM_BLOCK = 128 };

/* Rows of a task: whole blocks of a few tens of thousands of elements. */
static inline int64_t td_norm_chunk(int64_t channels)
{
    int64_t blocks = TD_INLINE_ELEMENTS / (TD_NORM_BLOCK * (channels > 0 ? channels : 1));
    return (blocks > 1 ? blocks : 1) * TD_NORM_BLOCK;
}

/* The same for group normalisation, whose matrices have a row per pixel and a column per channel of
 * each picture: few rows, but long ones. */
static inline int64_t td_group_norm_chunk(int64_t columns)
{
    int64_t rows = 4 * TD_INLINE_ELEMENTS / columns;
    return rows < 8 ? 8 : rows < TD_NORM_BLOCK ? rows : TD_NORM_BLOCK;
}

/* Rows that are normalised by one call, strip by strip (loops_norm.inc): few where they are long,
 * so that memory is read and written nearly in its order. */
static inline int64_t td_group_norm_block(int64_t columns)
{
    int64_t rows = 64 * TD_NORM_BLOCK / columns;
    return rows < 4 ? 4 : rows < TD_NORM_BLOCK ? rows : TD_NORM_BLOCK;
}

/* The dtype of constants and statistics for tensors of a dtype. */
static inline td_dtype td_norm_dtype(td_dtype dtype)
{
    return dtype == TD_F64 ? TD_F64 : TD_F32;
}

/* Element c of a [C] tensor, or `otherwise` without one. */
static inline double td_channel(const td_tensor *t, int64_t c, double otherwise)
{
    return t ? td_load_element(td_ptr(t), t->dtype, c * t->stride[0]) : otherwise;
}

static inline void td_set_channel(td_tensor *t, int64_t c, double value)
{
    td_store_element(td_ptr(t), t->dtype, c * t->stride[0], value);
}

/* ---- ops_pool.c: batch normalisation, relu and maximum pooling in one pass; x_data is x's in
 * TD_IMAGE order ---- */

/* y and index as td_batch_norm_args has them. */
void td_pool_normalized(td_tensor *y, td_tensor *index, const td_tensor *x, const void *x_data,
                        const td_pool2d_params *params, const td_norm_constants *constants);

/* g, of x's size and order, gets the gradient of what was pooled; sums[0..2*channels): the sums of
 * g and of g (x - mean). x is not empty. */
void td_pool_grad_and_sums(void *g, const td_tensor *dy, const td_tensor *index, const td_tensor *x,
                           const void *x_data, const td_pool2d_params *params,
                           const td_norm_constants *constants, double *sums);
