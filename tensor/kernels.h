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

#include "tensor/kernel_types.h"
#include "tensor/tensor.h"

typedef struct td_conv2d_params {
    int stride[2], pad[2], dilation[2]; /* height, width */
    int64_t groups;
    td_math math;
} td_conv2d_params;

/* Batch normalisation over [N,C,...]: per channel, over all else. Optional add and relu fused:
 * y = act(x_hat * weight + bias [+ add]). x, add, y and their gradients are of one dtype: f32, f64
 * or bf16; what is [C] is f64 beside f64, and otherwise f32 or, each as it likes, f64
 * (SyncBatchNorm's). Statistics are accumulated in double. */
typedef struct td_batch_norm_args {
    const td_tensor *x;             /* [N,C] or [N,C,H,W]; y may be x */
    const td_tensor *weight, *bias; /* [C]; NULL: 1 and 0 */
    const td_tensor *add;           /* like x, or NULL */
    const td_tensor *sums; /* [2,C] f64, row-major: the sum of x and of its squares, from who has
                              made x (conv2d); read in training. NULL: found here, which is exact
                              also where the mean is much larger than the spread */
    bool relu;
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
    const td_tensor *affine; /* the forward's, if nothing was added: relu's mask is then found from
                                x, to the bit, and y is not read (it may be NULL) */
    const td_tensor *weight, *mean, *inv_std;
    bool relu;
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

    /* ---- memory; any dtype, any strides on both sides ---- */
    void (*fill)(td_tensor *y, double value);
    void (*copy)(td_tensor *y, const td_tensor *x); /* same shape; converts dtype; y may have any
                                                       non-overlapping strides */
    /* y += alpha * x; same shape, same dtype (float, bf16 and f16 too, or integer), any
     * non-overlapping strides. */
    void (*axpy)(td_tensor *y, double alpha, const td_tensor *x);
    bool (*all_finite)(const td_tensor *x); /* float dtypes */
    /* For loss scaling; neither waits. unscale: x *= 1 / scale's first element (f64), and *found
     * (i32, one element) = 1 if an element of x was not finite; otherwise found is left alone. f32,
     * f64. adapt_scale: the scale's numbers (f64 [TD_SCALE_NUMBERS]) after a step. */
    void (*unscale)(td_tensor *x, const td_tensor *scale, td_tensor *found);
    void (*adapt_scale)(td_tensor *scale, const td_tensor *found, const td_scale_rule *rule);

    /* ---- elements: f32, f64, bf16, f16. unary: y may be x itself ---- */
    void (*unary)(td_unary_op op, td_tensor *y, const td_tensor *x, double p);
    void (*unary_grad)(td_unary_op op, td_tensor *dx, const td_tensor *dy, const td_tensor *x,
                       const td_tensor *y, double p, bool accumulate);
    /* a and b already have y's shape (expanded). */
    void (*binary)(td_binary_op op, td_tensor *y, const td_tensor *a, const td_tensor *b);

    /* ---- reductions: f32, f64 (argmax also i64, i32, u8) ---- */
    /* y has x's ndim; where y's size is 1 and x's is not, that dimension is reduced. Sums are
     * accumulated in double over fixed blocks. MAX of NaN is NaN. x may be bf16, with y f32 or
     * bf16. */
    void (*reduce)(td_reduce_op op, td_tensor *y, const td_tensor *x, bool accumulate);
    /* index: i64, x's shape with dim's size 1; the first largest. dim's size is not 0. */
    void (*argmax)(td_tensor *index, const td_tensor *x, int dim);
    /* The gradient of picking those elements: dx[..., index, ...] = dy, 0 elsewhere. dy and index
     * have dx's shape with dim's size 1. f32, f64 */
    void (*argmax_grad)(td_tensor *dx, const td_tensor *dy, const td_tensor *index, int dim,
                        bool accumulate);
    double (*sum_of_squares)(const td_tensor *x); /* in double, fixed blocks */
    /* x (count of them; f32, f64) are multiplied by max_norm / (norm + 1e-6) where that is below 1;
     * norm: the root of the sum of their sums of squares, in this order. all: NULL, or the dense
     * memory that they lie in, which is zero between them. *norm is told; NULL: nobody waits. The
     * table's NULL: the host does it by the above. */
    void (*clip)(td_tensor *const *x, int count, td_tensor *all, double max_norm, double *norm);

    /* ---- products: all tensors f64; or each of them f32, bf16 or f16 ----
     * 16-bit operands are exact in what they are multiplied in; f32 operands beside bf16 ones
     * (master weights beside bf16 activations) may be rounded to bf16 first. Sums are f32 at least;
     * a 16-bit result is rounded once, at the end. `math` is about calls whose tensors are all f32:
     * TD_PRECISION_BF16X3 and winograd are permissions, which a kernel may leave unused. */
    /* c[...,m,n] = a[...,m,k] b[...,k,n] (+ bias[n]) (+ c if accumulate); batch dimensions of a and
     * b are already expanded to c's; bias NULL: none. */
    void (*matmul)(td_tensor *c, const td_tensor *a, const td_tensor *b, const td_tensor *bias,
                   bool accumulate, td_math math);
    /* x, y TD_IMAGE, w TD_FILTER fast; anything else is converted on the way. stats: [2,C] f64,
     * row-major, or NULL: per channel the sum of y and of its squares over all pictures and pixels,
     * of the values as they are stored (rounded), in fixed blocks. */
    void (*conv2d)(td_tensor *y, const td_tensor *x, const td_tensor *w, const td_tensor *bias,
                   const td_conv2d_params *params, td_tensor *stats);
    void (*conv2d_grad_input)(td_tensor *dx, const td_tensor *dy, const td_tensor *w,
                              const td_conv2d_params *params, bool accumulate);
    void (*conv2d_grad_weight)(td_tensor *dw, const td_tensor *dy, const td_tensor *x,
                               const td_conv2d_params *params, bool accumulate);

    /* ---- normalisation: f32, f64; batch_norm also bf16 ---- */
    void (*batch_norm)(const td_batch_norm_args *args);
    void (*batch_norm_grad)(const td_batch_norm_grad_args *args);
    /* Over the last dimension, of size d: x, y [rows..., d] contiguous; weight, bias [d] or NULL;
     * mean, inv_std [rows] are written. */
    void (*layer_norm)(td_tensor *y, td_tensor *mean, td_tensor *inv_std, const td_tensor *x,
                       const td_tensor *weight, const td_tensor *bias, double eps);
    void (*layer_norm_grad)(td_tensor *dx, td_tensor *dweight, td_tensor *dbias,
                            const td_tensor *dy, const td_tensor *x, const td_tensor *weight,
                            const td_tensor *mean, const td_tensor *inv_std, bool accumulate_dx,
                            bool accumulate_dweight,
                            bool accumulate_dbias); /* outputs may be NULL */

    /* ---- softmax along dim; x, y the same dense order: f32, f64 ---- */
    void (*softmax)(td_tensor *y, const td_tensor *x, int dim, bool log);
    void (*softmax_grad)(td_tensor *dx, const td_tensor *dy, const td_tensor *y, int dim, bool log,
                         bool accumulate);
    /* Mean over the batch of (1-s)*nll + s/K*sum(-log p). logits [N,K], labels [N] i64 in [0,K)
     * (the caller has checked them); loss scalar; log_p [N,K] is written. */
    void (*cross_entropy)(td_tensor *loss, td_tensor *log_p, const td_tensor *logits,
                          const td_tensor *labels, double smoothing);
    void (*cross_entropy_grad)(td_tensor *dlogits, const td_tensor *dloss, const td_tensor *log_p,
                               const td_tensor *labels, double smoothing, bool accumulate);

    /* ---- pooling; TD_IMAGE fast: f32, f64, bf16 ---- */
    /* index: u8 of y's shape and order: the place in the window (kh*KW + kw) of the first largest
     * element; NULL: not wanted. Windows of up to 255 places; padding never wins. */
    void (*max_pool2d)(td_tensor *y, td_tensor *index, const td_tensor *x,
                       const td_pool2d_params *params);
    void (*max_pool2d_grad)(td_tensor *dx, const td_tensor *dy, const td_tensor *index,
                            const td_pool2d_params *params, bool accumulate);
    void (*avg_pool2d)(td_tensor *y, const td_tensor *x, const td_pool2d_params *params);
    void (*avg_pool2d_grad)(td_tensor *dx, const td_tensor *dy, const td_pool2d_params *params,
                            bool accumulate);

    /* ---- tables: f32, f64 ---- */
    /* y[i...,:] = table[index[i...],:]; index i64, checked by the caller (labels_in_range). */
    void (*embedding)(td_tensor *y, const td_tensor *table, const td_tensor *index);
    void (*embedding_grad)(td_tensor *dtable, const td_tensor *dy, const td_tensor *index,
                           bool accumulate);
    /* Whether all elements of an i64 tensor lie in [0, limit); if not, *bad is the first that does
     * not (in row-major order). */
    bool (*indices_in_range)(const td_tensor *index, int64_t limit, int64_t *bad);
    /* count (one element) = how many elements a and b have in common, place by place; all i64, a
     * and b of one shape. */
    void (*count_equal)(td_tensor *count, const td_tensor *a, const td_tensor *b);
    /* count (i64, one element) = in how many rows of x (f32, f64 [N,C]) the element labels[i] (i64
     * [N], in [0, C) or nothing is counted) is among the k largest; of equal ones the earlier comes
     * first. NaN: not among them, and nothing comes after it. */
    void (*count_top)(td_tensor *count, const td_tensor *x, const td_tensor *labels, int64_t k);

    /* ---- pictures: y[i] (f32, bf16 or f16 [count,C,H,W], any strides) is cut from pictures (u8
     * [N,C,H,W], row-major) as cuts[i] says, each byte looked up: values f32 [C,256], row-major;
     * labels[i] (i64 [count], dense) becomes its label. cuts[i].picture has been checked. When the
     * call is recorded, cuts must be td_capture_numbers', read when it is replayed. ---- */
    void (*pictures)(td_tensor *y, td_tensor *labels, const td_tensor *pictures,
                     const td_tensor *values, const td_picture_cut *cuts);

    /* ---- dropout: y = x * keep / (1-p); element i (row-major) is kept if its Philox word, key
     * (seed, stream), counter (*step, i/4), lane i%4, is >= p * 2^32. The backward is the same call
     * on dy. *step is read when the kernel runs if it is one of td_capture_numbers and the call is
     * recorded, and otherwise at once. y may be x. f32, f64, bf16 ---- */
    void (*dropout)(td_tensor *y, const td_tensor *x, double p, td_philox_key key,
                    const uint64_t *step, bool accumulate);

    /* ---- optimizers over flat memory: 1-d contiguous f32 or f64 tensors of equal length, a table
     * of slices in ascending order; what no slice covers is left alone. One pass. When the call is
     * recorded, slices must be td_capture_numbers'; they are then read when it is replayed. ---- */
    void (*sgd)(td_tensor *param, const td_tensor *grad, td_tensor *momentum,
                const td_optim_slice *slices, int count); /* momentum NULL if no slice uses it */
    void (*adam)(td_tensor *param, const td_tensor *grad, td_tensor *m, td_tensor *v,
                 const td_optim_slice *slices, int count);

    /* Whether the device computes in a precision (td_precision_check). */
    td_status (*check_precision)(td_device device, td_precision precision);

    /* Measures, with all threads of the device: takes about 0.3 s and, for that time, 128 MiB. */
    td_status (*measure_limits)(td_device device, td_limits *limits);
} td_kernels;

/* The table of a device. An unknown or absent device is a programming mistake by now
 * (td_device_parse has refused it). */
const td_kernels *td_kernels_of(td_device device);

/* The CPU's table; its instruction set is chosen on first use. */
const td_kernels *td_cpu_kernels(void);

#endif
