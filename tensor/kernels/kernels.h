/* The table of kernels that a device implements: the only door to cpu/ and cuda/.
 *
 * Contracts for all of them:
 *  - the caller (autograd/ops, nn/optim) has checked shapes, dtypes and devices; outputs exist,
 *    have their final shape, and do not overlap inputs, unless the kernel's comment allows it;
 *  - inputs may have any strides (0 in expanded dimensions); outputs are dense, unless the comment
 *    says otherwise. Equal dense order, rows and the device's layouts are the fast cases;
 *  - float kernels take f32 and f64, and bf16 or f16 where the comment says so; sums are made in
 *    the element type or a wider one; all float tensors of a call have the same dtype, unless the
 *    comment says otherwise;
 *  - `accumulate` means y += result, otherwise y = result;
 *  - a kernel may take td_scratch memory and gives it back before it returns; it never keeps
 *    pointers; it never calls malloc inside a step;
 *  - the result's bits depend on shapes, values and instruction set only, never on threads;
 *  - any size may be 0. */
#pragma once

#include "tensor/kernels/kernel_types.h"
#include "tensor/tensor.h"

TD_BEGIN_C

typedef struct td_conv2d_params {
    int stride[2], pad[2], dilation[2]; /* height, width */
    int64_t groups;
    td_math math;
} td_conv2d_params;

/* Batch normalisation over [N,C,...]: each channel has its own mean and variance, taken over all
 * other dimensions. The kernel can also add a tensor and apply relu or gelu in the same pass:
 *
 *     x_hat = (x - mean) / sqrt(variance + eps)
 *     y     = activation(x_hat * weight + bias [+ add])
 *
 * x, add, y and their gradients have one dtype: f32, f64 or bf16. Tensors [C] are f64 if x is f64;
 * otherwise each of them is f32, or f64 for SyncBatchNorm. Sums are made in double. */
typedef struct td_batch_norm_args {
    const td_tensor *x;             /* [N,C] or [N,C,H,W]; y may be x */
    const td_tensor *weight, *bias; /* [C]; NULL: 1 and 0 */
    const td_tensor *add;           /* like x, or NULL */
    td_norm_activation activation;  /* with gelu there is neither add nor max_pool */
    bool training;
    double eps, momentum;                  /* momentum: running = (1-m)*running + m*batch */
    td_tensor *running_mean, *running_var; /* [C]; training updates them (variance over n-1)
                                              unless NULL; evaluation normalises with them */
    td_tensor *mean, *inv_std;             /* [C], written: mean and 1 / sqrt(variance + eps) */
    td_tensor *affine;                     /* [2,C] row-major or NULL, written: scale and shift of
                                              y = (x - mean) * scale + shift */
    td_tensor *y;                          /* like x; may be x itself in evaluation */
    /* If not NULL, the result above is max-pooled, and y holds the pooled images; activation is
     * relu, and there is no add. index is as max_pool2d's, but 255 where relu made y 0; NULL: not
     * wanted. */
    const td_pool2d_params *max_pool;
    td_tensor *index;
} td_batch_norm_args;

typedef struct td_batch_norm_grad_args {
    const td_tensor *dy, *x, *y; /* y: the forward's output; read only for relu's mask (y > 0) */
    const td_tensor *affine; /* the forward's, if nothing was added; gelu needs it. With affine the
                                kernel computes relu's mask and gelu's slope from x, with the
                                forward's bits, and does not read y, which may be NULL */
    const td_tensor *weight, *mean, *inv_std;
    td_norm_activation activation;
    bool training;                          /* false: the statistics were constants */
    td_tensor *dx, *dweight, *dbias, *dadd; /* each may be NULL: not wanted */
    bool accumulate_dx, accumulate_dweight, accumulate_dbias, accumulate_dadd;
    /* As in the forward. dy is the gradient of the pooled images, and index holds relu's mask. */
    const td_pool2d_params *max_pool;
    const td_tensor *index;
} td_batch_norm_grad_args;

/* The limits of a device, for the profiler. */
typedef struct td_limits {
    double f32, f64; /* multiplications and additions a second, in registers */
    double memory;   /* bytes a second, read and written in place, of memory outside of caches */
} td_limits;

/* Attention: y = softmax(scale q k^T) v for each head, and the logarithm of each row's sum of
 * exponentials. Head i of q reads head i / (H / G) of k and v. Causal: query t reads keys 0 to
 * S - T + t. All tensors of [.,.,.,h] have one dtype, and may have any strides. */
typedef struct td_attention_args {
    const td_tensor *q;     /* [B,T,H,h] */
    const td_tensor *k, *v; /* [B,S,G,h]; there is a key for each query */
    td_tensor *y;           /* [B,T,H,h], written */
    td_tensor *lse;         /* [B,H,T] row-major, written; f64 if q is, otherwise f32 */
    bool causal;
    double scale;
} td_attention_args;

typedef struct td_attention_grad_args {
    td_attention_args forward; /* as it was; y and lse are read */
    const td_tensor *dy;       /* like y */
    td_tensor *dq, *dk, *dv;   /* like q, k, v */
    bool accumulate[3];        /* of dq, dk, dv */
} td_attention_grad_args;

typedef struct td_kernels {
    const char *name; /* "cpu (avx512)" */
#define TD_KERNEL(TYPE, NAME, PARAMETERS, ARGUMENTS, COST) TYPE(*NAME) PARAMETERS;
#include "tensor/kernels/kernels.def"

    /* Whether the device computes in a precision (td_precision_check). */
    td_status (*check_precision)(td_device device, td_precision precision);
    /* Measures, with all threads of the device: takes about 0.3 s and, for that time, 128 MiB. */
    td_status (*measure_limits)(td_device device, td_limits *limits);
} td_kernels;

/* The table of a device. A device that this build does not have is a fatal error: td_device_parse
 * has refused it before. */
const td_kernels *td_kernels_of(td_device device);
/* The table of t's device. */
static inline const td_kernels *td_kernels_for(const td_tensor *t)
{
    return td_kernels_of(td_device_of(t));
}

/* Sets a function that replaces the tables that td_kernels_of returns, by tables that tell an
 * observer and then call the device's own. NULL: none. */
typedef const td_kernels *(*td_kernels_wrap)(td_device device, const td_kernels *own);
void td_kernels_set_wrap(td_kernels_wrap wrap);

/* The CPU's table; its instruction set is chosen on first use. */
const td_kernels *td_cpu_kernels(void);

TD_END_C
