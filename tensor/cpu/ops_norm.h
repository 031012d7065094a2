/* What batch normalisation and its gradient share: images in the CPU's layout, or [N,C], are
 * matrices with a row per pixel and picture and a column per channel. */
#ifndef TD_TENSOR_CPU_OPS_NORM_H
#define TD_TENSOR_CPU_OPS_NORM_H

#include "tensor/cpu/ops_walk.h"
#include "tensor/element.h"
#include "tensor/storage.h"

/* Rows whose sums are taken in the tensors' own type before they go on in double. */
enum { TD_NORM_BLOCK = 128 };

/* Rows of a task: whole blocks of a few tens of thousands of elements. */
static inline int64_t td_norm_chunk(int64_t channels)
{
    int64_t blocks = TD_INLINE_ELEMENTS / (TD_NORM_BLOCK * (channels > 0 ? channels : 1));
    return (blocks > 1 ? blocks : 1) * TD_NORM_BLOCK;
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

#endif
