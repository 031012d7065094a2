/* The table of kernels that a device implements: the only door to cpu/ and cuda/.
 *
 * Contracts for all of them:
 *  - shapes, dtypes and devices have been checked by the caller (autograd/ops, nn/optim); outputs
 *    exist, have their final shape, and do not overlap inputs unless said so;
 *  - inputs may have any strides (0 in expanded dimensions); outputs are dense unless said so. The
 *    common cases (equal dense order, rows, the device's layouts) are the fast ones;
 *  - float kernels take f32 and f64, and bf16/f16 where it is said; accumulation is in the element
 *    type or wider; all tensors of a call have the same float dtype unless said so;
 *  - `accumulate` means y += result, otherwise y = result;
 *  - a kernel may take td_scratch memory and gives it back before it returns; it never keeps
 *    pointers; it never calls malloc inside a step;
 *  - the result's bits depend on shapes, values and instruction set only, never on threads;
 *  - any size may be 0. */
#ifndef TD_TENSOR_KERNELS_H
#define TD_TENSOR_KERNELS_H

#include "tensor/extern_c.h"
#include "tensor/kernel_types.h"
#include "tensor/tensor.h"

TD_BEGIN_C

typedef struct td_conv2d_params {
    int stride[2], pad[2], dilation[2]; /* height, width */
    int64_t groups;
    td_math math;
} td_conv2d_params;

/* Batch normalisation over [N,C,...]: per channel, over all else. Optional add, and relu or gelu,
 * fused: y = act(x_hat * weight + bias [+ add]). x, add, y and their gradients are of one dtype:
 * f32, f64 or bf16; what is [C] is f64 beside f64, and otherwise f32 or, each as it likes, f64
 * (SyncBatchNorm's). Statistics are accumulated in double. */
typedef struct td_batch_norm_args {
    const td_tensor *x;             /* [N,C] or [N,C,H,W]; y may be x */
    const td_tensor *weight, *bias; /* [C]; NULL: 1 and 0 */
    const td_tensor *add;           /* like x, or NULL */
    td_norm_activation activation;  /* gelu goes without add and max_pool */
    bool training;
    double eps, momentum;                  /* momentum: running = (1-m)*running + m*batch */
    td_tensor *running_mean, *running_var; /* [C]; training: updated (variance over n-1) unless
                                              NULL; evaluation: used */
    td_tensor *mean, *inv_std;             /* [C], written: what was normalised with */
    td_tensor *affine;                     /* [2,C] row-major or NULL, written: scale and shift of
                                              y = (x - mean) * scale + shift */
    td_tensor *y;                          /* like x; may be x itself in evaluation */
    /* Not NULL: y is the largest of each window of that instead, with relu and without add. index
     * as max_pool2d's, but 255 where y is 0 because of the relu; NULL: not wanted. */
    const td_pool2d_params *max_pool;
    td_tensor *index;
} td_batch_norm_args;

typedef struct td_batch_norm_grad_args {
    const td_tensor *dy, *x, *y; /* y: the forward's output; read only for relu's mask (y > 0) */
    const td_tensor *affine; /* the forward's, if nothing was added: relu's mask and gelu's slope
                                are then found from x, to the bit, and y is not read (it may be
                                NULL); gelu needs it */
    const td_tensor *weight, *mean, *inv_std;
    td_norm_activation activation;
    bool training;                          /* false: the statistics were constants */
    td_tensor *dx, *dweight, *dbias, *dadd; /* each may be NULL: not wanted */
    bool accumulate_dx, accumulate_dweight, accumulate_dbias, accumulate_dadd;
    /* As in the forward: dy is then the pooled images'; relu's mask is in the index. */
    const td_pool2d_params *max_pool;
    const td_tensor *index;
} td_batch_norm_grad_args;

/* What a device can do at most. */
typedef struct td_limits {
    double f32, f64; /* multiplications and additions a second, in registers */
    double memory;   /* bytes a second, read and written in place, of memory outside of caches */
} td_limits;

typedef struct td_kernels {
    const char *name; /* "cpu (avx512)" */
#define TD_KERNEL(TYPE, NAME, PARAMETERS, ARGUMENTS, COST) TYPE(*NAME) PARAMETERS;
#include "tensor/kernels.def"

    /* Whether the device computes in a precision (td_precision_check). */
    td_status (*check_precision)(td_device device, td_precision precision);
    /* Measures, with all threads of the device: takes about 0.3 s and, for that time, 128 MiB. */
    td_status (*measure_limits)(td_device device, td_limits *limits);
} td_kernels;

/* The table of a device. An unknown or absent device is a programming mistake by now
 * (td_device_parse has refused it). */
const td_kernels *td_kernels_of(td_device device);

/* An observer's table in front of the device's own, for all calls of td_kernels_of from now on;
 * NULL: none. */
typedef const td_kernels *(*td_kernels_wrap)(td_device device, const td_kernels *own);
void td_kernels_set_wrap(td_kernels_wrap wrap);

/* The CPU's table; its instruction set is chosen on first use. */
const td_kernels *td_cpu_kernels(void);

TD_END_C

#endif
