/* The differentiable operations. Each runs at once and returns a step tensor (views share memory).
 * They must be called between td_step_begin and td_step_end. Shapes and dtypes that do not fit are
 * programming mistakes; the message shows both shapes and the caller's place, which the macros at
 * the end of this file supply as the last argument. f32, f64 and bf16: what each
 * does with bf16, alone, beside f32 and under td_set_math, says autograd/precision.def; otherwise
 * all inputs of one call have the same float dtype. "..." stands for any number of dimensions. */
#ifndef TD_AUTOGRAD_OPS_H
#define TD_AUTOGRAD_OPS_H

#include "tensor/tensor.h"

/* ---- elements; a and b broadcast by NumPy's rule ---- */
td_tensor *td_add(td_tensor *a, td_tensor *b, td_site at);    /* a + b */
td_tensor *td_sub(td_tensor *a, td_tensor *b, td_site at);    /* a - b */
td_tensor *td_mul(td_tensor *a, td_tensor *b, td_site at);    /* a * b */
td_tensor *td_div(td_tensor *a, td_tensor *b, td_site at);    /* a / b */
td_tensor *td_add_scalar(td_tensor *x, double s, td_site at); /* x + s */
td_tensor *td_mul_scalar(td_tensor *x, double s, td_site at); /* x * s */
td_tensor *td_neg(td_tensor *x, td_site at);
td_tensor *td_exp(td_tensor *x, td_site at);
td_tensor *td_log(td_tensor *x, td_site at); /* natural */
td_tensor *td_sqrt(td_tensor *x, td_site at);
td_tensor *td_pow(td_tensor *x, double p, td_site at); /* x^p, p a constant */
td_tensor *td_relu(td_tensor *x, td_site at);          /* max(x, 0); slope 0 at 0 */
td_tensor *td_gelu(td_tensor *x, td_site at);          /* x * Phi(x), exact (erf) */
td_tensor *td_silu(td_tensor *x, td_site at);          /* x * sigmoid(x) */
td_tensor *td_sigmoid(td_tensor *x, td_site at);
td_tensor *td_tanh(td_tensor *x, td_site at);

/* ---- reductions; dim may be negative. keep: leaves a dimension of size 1 ---- */
td_tensor *td_sum(td_tensor *x, td_site at); /* of all elements, a scalar */
td_tensor *td_mean(td_tensor *x, td_site at);
td_tensor *td_sum_dim(td_tensor *x, int dim, bool keep, td_site at);
td_tensor *td_mean_dim(td_tensor *x, int dim, bool keep, td_site at);
/* Largest along dim; the gradient goes to the first largest. */
td_tensor *td_max_dim(td_tensor *x, int dim, bool keep, td_site at);
td_tensor *td_max(td_tensor *x, td_site at);                        /* of all elements, a scalar */
td_tensor *td_argmax(td_tensor *x, int dim, bool keep, td_site at); /* i64; no gradient */
/* How many elements are the same in two i64 tensors, place by place: i64, a scalar; no gradient. */
td_tensor *td_count_equal(td_tensor *a, td_tensor *b, td_site at);
/* In how many rows of x [N,C] the element that labels (i64 [N]) names is among the k largest (of
 * equal ones the earlier comes first; NaN, and a label that is not in [0, C), never is): i64, a
 * scalar; no gradient. */
td_tensor *td_count_top(td_tensor *x, td_tensor *labels, int64_t k, td_site at);

/* ---- products: f32, f64, and bf16 beside f32 or alone; the result has the first one's dtype, each
 * gradient its own tensor's. Computed as td_math_now() says when they are called. ---- */
/* [...,m,k] x [...,k,n] -> [...,m,n]; batch dimensions broadcast; both at least 2-d. */
td_tensor *td_matmul(td_tensor *a, td_tensor *b, td_site at);
/* x[...,in], w[out,in], b[out] or NULL -> [...,out]: x w^T + b. */
td_tensor *td_linear(td_tensor *x, td_tensor *w, td_tensor *b, td_site at);

/* A padding's width where only the height is padded: { 3, TD_PAD_NONE }. */
enum { TD_PAD_NONE = -1 };

typedef struct td_conv2d_options {
    int stride[2], padding[2], dilation[2]; /* height, width; stride and dilation 0: 1; a width of 0
                                               with a height that is not 0 means the same as the
                                               height, also for padding (see TD_PAD_NONE) */
    int groups;                             /* 0: 1 */
    td_tensor **sums; /* NULL, or where a step tensor [2,O] of f64 is put: per channel the sum of
                         the result and of its squares, for td_batch_norm_options */
} td_conv2d_options;
/* x[N,C,H,W], w[O,C/groups,KH,KW], b[O] or NULL -> [N,O,OH,OW], OH = (H + 2 pad - dil (KH-1) - 1) /
 * stride + 1. options NULL: all defaults. */
td_tensor *td_conv2d(td_tensor *x, td_tensor *w, td_tensor *b, const td_conv2d_options *options,
                     td_site at);

/* ---- shapes: views without copies where strides allow ---- */
td_tensor *td_transpose(td_tensor *x, int dim0, int dim1, td_site at);
td_tensor *td_permute(td_tensor *x, const int *order, td_site at); /* order[ndim] */
/* One dimension may be -1. Row-major meaning; copies if the strides do not allow a view. */
td_tensor *td_reshape(td_tensor *x, td_shape shape, td_site at);
td_tensor *td_flatten(td_tensor *x, int start_dim, td_site at);
/* Elements start, start+step, ... below end along dim; negative start and end count from the end,
 * end is clamped; step > 0. */
td_tensor *td_slice(td_tensor *x, int dim, int64_t start, int64_t end, int64_t step, td_site at);
td_tensor *td_expand(td_tensor *x, td_shape shape, td_site at); /* size 1 (or missing) -> any */
td_tensor *td_cat(td_tensor *const *parts, int count, int dim, td_site at);
td_tensor *td_contiguous(td_tensor *x, td_site at); /* row-major; x itself if it is */

/* ---- normalisation, attention's parts ---- */
typedef struct td_batch_norm_options {
    bool training;
    double momentum;       /* 0: 0.1 */
    double eps;            /* 0: 1e-5 */
    bool relu;             /* y = relu(...) in the same pass */
    td_tensor *add;        /* y = bn(x) + add before the relu; like x; takes gradients */
    const td_tensor *sums; /* of x, from the td_conv2d that has made it: training then finds mean
                              and variance without reading x once more. The variance is a difference
                              of sums then: good as long as means are not thousands of spreads */
    bool over_x; /* nobody needs x any more: where no gradients are wanted, y may be written over
                    it (without max_pool) */
    const struct td_pool2d_options *max_pool; /* with relu, without add: td_max_pool2d(y) instead of
                                                 y, in the same pass; y is never written */
} td_batch_norm_options;
/* x[N,C] or [N,C,H,W]; weight, bias [C] or NULL; running_mean, running_var [C], updated in training
 * (NULL: not kept; evaluation needs them). Batch variance divides by n, the running one by n-1. */
td_tensor *td_batch_norm(td_tensor *x, td_tensor *weight, td_tensor *bias, td_tensor *running_mean,
                         td_tensor *running_var, const td_batch_norm_options *options, td_site at);
/* Over the last dimension d; weight, bias [d] or NULL; eps 0: 1e-5. */
td_tensor *td_layer_norm(td_tensor *x, td_tensor *weight, td_tensor *bias, double eps, td_site at);
td_tensor *td_softmax(td_tensor *x, int dim, td_site at);
td_tensor *td_log_softmax(td_tensor *x, int dim, td_site at);

/* ---- pooling of [N,C,H,W] ---- */
typedef struct td_pool2d_options {
    int kernel[2], stride[2], padding[2]; /* stride 0: the kernel; a width of 0 with a height that
                                             is not 0 means the same as the height (for
                                             padding, TD_PAD_NONE: 0) */
    bool exclude_pad; /* average pooling: divide by the places inside the image only */
} td_pool2d_options;
td_tensor *td_max_pool2d(td_tensor *x, const td_pool2d_options *options, td_site at);
td_tensor *td_avg_pool2d(td_tensor *x, const td_pool2d_options *options, td_site at);
td_tensor *td_global_avg_pool2d(td_tensor *x, td_site at); /* -> [N,C,1,1] */

/* ---- the rest ---- */
/* Drops with probability p in [0,1), scales the rest by 1/(1-p). Draws by Philox with the given key
 * and counter (random.h), so they repeat when those do. */
td_tensor *td_dropout(td_tensor *x, double p, td_philox_key key, uint64_t counter, td_site at);
/* Multiplies each sample x[n,...] by 0 with probability p in [0,1), by 1/(1-p) otherwise: by what
 * td_dropout makes of as many ones. */
td_tensor *td_stochastic_depth(td_tensor *x, double p, td_philox_key key, uint64_t counter,
                               td_site at);
/* index i64 of any shape in [0, rows), table[rows, d] -> [...index, d]. */
td_tensor *td_embedding(td_tensor *index, td_tensor *table, td_site at);
/* logits[N,K], labels[N] i64 in [0,K) -> mean over N of (1-s) nll + s/K sum(-log p), a scalar. */
td_tensor *td_cross_entropy_smooth(td_tensor *logits, td_tensor *labels, double smoothing,
                                   td_site at);
td_tensor *td_cross_entropy(td_tensor *logits, td_tensor *labels, td_site at);
td_tensor *td_mse_loss(td_tensor *x, td_tensor *target, td_site at); /* mean((x - target)^2) */
td_tensor *td_detach(td_tensor *x, td_site at);                      /* same memory, no gradient */
td_tensor *td_cast(td_tensor *x, td_dtype dtype, td_site at); /* float to float carries gradients */

/* The caller's place, supplied. An operation defines itself as `td_tensor *(td_add)(...)`. */
#define td_add(...) td_add(__VA_ARGS__, TD_HERE)
#define td_sub(...) td_sub(__VA_ARGS__, TD_HERE)
#define td_mul(...) td_mul(__VA_ARGS__, TD_HERE)
#define td_div(...) td_div(__VA_ARGS__, TD_HERE)
#define td_add_scalar(...) td_add_scalar(__VA_ARGS__, TD_HERE)
#define td_mul_scalar(...) td_mul_scalar(__VA_ARGS__, TD_HERE)
#define td_neg(...) td_neg(__VA_ARGS__, TD_HERE)
#define td_exp(...) td_exp(__VA_ARGS__, TD_HERE)
#define td_log(...) td_log(__VA_ARGS__, TD_HERE)
#define td_sqrt(...) td_sqrt(__VA_ARGS__, TD_HERE)
#define td_pow(...) td_pow(__VA_ARGS__, TD_HERE)
#define td_relu(...) td_relu(__VA_ARGS__, TD_HERE)
#define td_gelu(...) td_gelu(__VA_ARGS__, TD_HERE)
#define td_silu(...) td_silu(__VA_ARGS__, TD_HERE)
#define td_sigmoid(...) td_sigmoid(__VA_ARGS__, TD_HERE)
#define td_tanh(...) td_tanh(__VA_ARGS__, TD_HERE)
#define td_sum(...) td_sum(__VA_ARGS__, TD_HERE)
#define td_mean(...) td_mean(__VA_ARGS__, TD_HERE)
#define td_sum_dim(...) td_sum_dim(__VA_ARGS__, TD_HERE)
#define td_mean_dim(...) td_mean_dim(__VA_ARGS__, TD_HERE)
#define td_max_dim(...) td_max_dim(__VA_ARGS__, TD_HERE)
#define td_max(...) td_max(__VA_ARGS__, TD_HERE)
#define td_argmax(...) td_argmax(__VA_ARGS__, TD_HERE)
#define td_count_equal(...) td_count_equal(__VA_ARGS__, TD_HERE)
#define td_count_top(...) td_count_top(__VA_ARGS__, TD_HERE)
#define td_matmul(...) td_matmul(__VA_ARGS__, TD_HERE)
#define td_linear(...) td_linear(__VA_ARGS__, TD_HERE)
#define td_conv2d(...) td_conv2d(__VA_ARGS__, TD_HERE)
#define td_transpose(...) td_transpose(__VA_ARGS__, TD_HERE)
#define td_permute(...) td_permute(__VA_ARGS__, TD_HERE)
#define td_reshape(...) td_reshape(__VA_ARGS__, TD_HERE)
#define td_flatten(...) td_flatten(__VA_ARGS__, TD_HERE)
#define td_slice(...) td_slice(__VA_ARGS__, TD_HERE)
#define td_expand(...) td_expand(__VA_ARGS__, TD_HERE)
#define td_cat(...) td_cat(__VA_ARGS__, TD_HERE)
#define td_contiguous(...) td_contiguous(__VA_ARGS__, TD_HERE)
#define td_batch_norm(...) td_batch_norm(__VA_ARGS__, TD_HERE)
#define td_layer_norm(...) td_layer_norm(__VA_ARGS__, TD_HERE)
#define td_softmax(...) td_softmax(__VA_ARGS__, TD_HERE)
#define td_log_softmax(...) td_log_softmax(__VA_ARGS__, TD_HERE)
#define td_max_pool2d(...) td_max_pool2d(__VA_ARGS__, TD_HERE)
#define td_avg_pool2d(...) td_avg_pool2d(__VA_ARGS__, TD_HERE)
#define td_global_avg_pool2d(...) td_global_avg_pool2d(__VA_ARGS__, TD_HERE)
#define td_dropout(...) td_dropout(__VA_ARGS__, TD_HERE)
#define td_stochastic_depth(...) td_stochastic_depth(__VA_ARGS__, TD_HERE)
#define td_embedding(...) td_embedding(__VA_ARGS__, TD_HERE)
#define td_cross_entropy_smooth(...) td_cross_entropy_smooth(__VA_ARGS__, TD_HERE)
#define td_cross_entropy(...) td_cross_entropy(__VA_ARGS__, TD_HERE)
#define td_mse_loss(...) td_mse_loss(__VA_ARGS__, TD_HERE)
#define td_detach(...) td_detach(__VA_ARGS__, TD_HERE)
#define td_cast(...) td_cast(__VA_ARGS__, TD_HERE)

#endif
