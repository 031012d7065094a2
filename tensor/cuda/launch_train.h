/* optim.cu, random.cu, images.cu: optimizers, dropout, pictures from bytes. */
#pragma once

#include "tensor/cuda/launch.h"
#include "tensor/kernels/kernel_types.h"

TD_EXTERN_C_BEGIN

/* The same elements as param's, in 16 bits, which are written, too; at NULL: there are none. */
typedef struct td_cuda_half_parameters {
    void *at;
    td_dtype dtype;
} td_cuda_half_parameters;

/* One pass over flat memory of n elements, f32 or f64. slices: `count` of them, in the device's
 * memory; all that they say is read there, when the kernel runs. momentum NULL: none uses it. */
void td_cuda_launch_sgd(td_dtype dtype, int64_t n, void *param, const void *grad, void *momentum,
                        td_cuda_half_parameters half, const td_optim_slice *slices, int count,
                        cudaStream_t stream);
void td_cuda_launch_update(td_update_op op, td_dtype dtype, int64_t n, void *param,
                           const void *grad, void *const *state, td_cuda_half_parameters half,
                           const td_optim_slice *slices, int count, cudaStream_t stream);
/* Adam with packed averages (tensor/kernels/packed.h), f32. */
void td_cuda_launch_adam_packed(td_dtype packed, int64_t n, float *param, const float *grad,
                                void *m, void *v, const td_optim_slice *slices, int count,
                                cudaStream_t stream);

/* y = (+=) x scale where an element's Philox word, key `key` (td_philox_mixed_key), counter (step +
 * *more, i / 4), lane i % 4, is >= threshold, and 0 elsewhere; dense, n elements. more: in the
 * device's memory, NULL: 0. Float dtypes. */
typedef struct td_cuda_draw {
    uint64_t key, step;
    const uint64_t *more;
    uint32_t threshold;
    double scale;
    td_numbering of; /* i's numbers */
    bool accumulate;
} td_cuda_draw;
void td_cuda_launch_dropout(td_dtype dtype, int64_t n, void *y, const void *x,
                            const td_cuda_draw *draw, cudaStream_t stream);

/* See tensor/kernels/kernels.h; y's strides are of [n,c,h,w]; all but strides in the device's
 * memory. */
void td_cuda_launch_pictures(td_dtype dtype, void *y, const int64_t *stride, int64_t n, int64_t c,
                             int64_t h, int64_t w, int64_t *labels, const uint8_t *pictures,
                             const float *values, const td_picture_cut *cuts, cudaStream_t stream);

TD_EXTERN_C_END
