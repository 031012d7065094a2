/* The operations.
 *
 * An operation computes its result at once and returns it as a step tensor; views share memory with
 * their input. Call operations between td_step_begin and td_step_end. If an input needs a gradient,
 * the operation is recorded for td_backward.
 *
 * Call them without `at`: macros at the end of this file supply the caller's file and line. Shapes
 * or dtypes that do not fit are a mistake of the program: it stops with a message that shows both
 * shapes and the caller's line.
 *
 * Floats are f32, f64 or bf16. All float inputs of a call have the same dtype, except that bf16
 * inputs may go with f32 weights (docs/precision.md). "..." stands for any number of dimensions.
 * Two inputs of an element-wise operation broadcast as in NumPy. A negative `dim` counts from the
 * end.
 */
#pragma once

#include "tensor/tensor.h"

TD_BEGIN_C

/* ---- element-wise; more: autograd/ops/elements.h ---- */

/* add, sub and mul also take integers (an overflow wraps around; no gradient). */
td_tensor *td_add_at(td_tensor *a, td_tensor *b, td_site at);    /* a + b */
td_tensor *td_sub_at(td_tensor *a, td_tensor *b, td_site at);    /* a - b */
td_tensor *td_mul_at(td_tensor *a, td_tensor *b, td_site at);    /* a * b */
td_tensor *td_div_at(td_tensor *a, td_tensor *b, td_site at);    /* a / b */
td_tensor *td_add_scalar_at(td_tensor *x, double s, td_site at); /* x + s */
td_tensor *td_mul_scalar_at(td_tensor *x, double s, td_site at); /* x * s */
td_tensor *td_neg_at(td_tensor *x, td_site at);                  /* -x */
td_tensor *td_exp_at(td_tensor *x, td_site at);
td_tensor *td_log_at(td_tensor *x, td_site at); /* natural logarithm */
td_tensor *td_sqrt_at(td_tensor *x, td_site at);
td_tensor *td_pow_at(td_tensor *x, double p, td_site at); /* x^p */
td_tensor *td_relu_at(td_tensor *x, td_site at);          /* max(x, 0); the derivative at 0 is 0 */
td_tensor *td_gelu_at(td_tensor *x, td_site at);          /* x Phi(x), exact (erf) */
td_tensor *td_silu_at(td_tensor *x, td_site at);          /* x sigmoid(x) */
td_tensor *td_sigmoid_at(td_tensor *x, td_site at);       /* 1 / (1 + exp(-x)) */
td_tensor *td_tanh_at(td_tensor *x, td_site at);

/* ---- reductions; keep = true leaves a dimension of size 1 where dim was ---- */

td_tensor *td_sum_at(td_tensor *x, td_site at);  /* of all elements: a scalar */
td_tensor *td_mean_at(td_tensor *x, td_site at); /* of all elements: a scalar */
td_tensor *td_max_at(td_tensor *x, td_site at);  /* of all elements: a scalar */
td_tensor *td_sum_dim_at(td_tensor *x, int dim, bool keep, td_site at);
td_tensor *td_mean_dim_at(td_tensor *x, int dim, bool keep, td_site at);
/* The largest element along dim. If several are equal, the first gets the gradient. */
td_tensor *td_max_dim_at(td_tensor *x, int dim, bool keep, td_site at);
/* The index of the largest element along dim: i64, without gradient. */
td_tensor *td_argmax_at(td_tensor *x, int dim, bool keep, td_site at);
/* The number of rows of x [N,C] whose label (labels: i64 [N]) is among the k largest elements of
 * the row: an i64 scalar, no gradient. Of equal elements the earlier counts as larger. NaN, or a
 * label outside [0, C), is never among them. */
td_tensor *td_count_top_at(td_tensor *x, td_tensor *labels, int64_t k, td_site at);

/* ---- products; the result has the first input's dtype ---- */

/* [...,m,k] x [...,k,n] -> [...,m,n]; the other dimensions broadcast. A vector a [k] counts as one
 * row, a vector b [k] as one column; the result lacks that dimension. */
td_tensor *td_matmul_at(td_tensor *a, td_tensor *b, td_site at);
/* x w^T + b: x [...,in], w [out,in], b [out] or NULL -> [...,out]. A bf16 weight below an x of f32
 * is widened where neither takes a gradient; otherwise x is rounded to bf16. */
td_tensor *td_linear_at(td_tensor *x, td_tensor *w, td_tensor *b, td_site at);

/* td_conv2d(x, w, b, ...): x [N,C,H,W], w [O,C/groups,KH,KW], b [O] or NULL -> [N,O,OH,OW], with
 * OH = (H + 2 padding - dilation (KH - 1) - 1) / stride + 1. An option is given for height and
 * width together (.stride = 2) or for each (.stride_hw = { 2, 1 }); giving both is a mistake. */
typedef struct td_conv2d_options {
    int begin_; /* for the library */
    td_tensor *x, *w, *b;
    int stride, padding, dilation; /* stride and dilation 0: 1 */
    int stride_hw[2], padding_hw[2], dilation_hw[2];
    int groups;  /* 0: 1 */
    int pads[4]; /* instead of padding: top, left, bottom, right */
    bool same;   /* instead of padding: OH = H / stride, rounded up; PyTorch's "same" */
} td_conv2d_options;
td_tensor *td_conv2d_at(td_conv2d_options options, td_site at);

/* ---- shapes; more: autograd/ops/shapes.h. The result shares x's memory if x's strides allow it
 * ---- */

td_tensor *td_transpose_at(td_tensor *x, int dim0, int dim1, td_site at);
td_tensor *td_permute_at(td_tensor *x, const int *order, td_site at); /* order[ndim] */
/* The same elements, in row-major order, in another shape. One dimension may be -1. */
td_tensor *td_reshape_at(td_tensor *x, td_shape shape, td_site at);
td_tensor *td_flatten_at(td_tensor *x, int start_dim, td_site at); /* start_dim and later: one */
/* Elements start, start + step, ... before end along dim. Negative start and end count from the
 * end; end is clamped to the size. With a negative step: elements start, start + step, ...
 * after end, copied; to include element 0, give end = -size - 1 (-1 is the last element). */
td_tensor *td_slice_at(td_tensor *x, int dim, int64_t start, int64_t end, int64_t step, td_site at);
/* Repeats dimensions of size 1 until x has the given shape; nothing is copied. */
td_tensor *td_expand_at(td_tensor *x, td_shape shape, td_site at);
td_tensor *td_cat_at(td_tensor *const *parts, int count, int dim, td_site at);
td_tensor *td_contiguous_at(td_tensor *x, td_site at); /* row-major; x itself if it is already */

/* ---- normalisation ---- */

/* td_batch_norm(x, weight, bias, running_mean, running_var, ...): x [N,C,...], the others
 * [C]. y = (x - mean) / sqrt(var + eps) * weight + bias, per channel; weight or bias may be NULL.
 * Training takes mean and variance (divided by n) of the batch, and updates the running ones, if
 * they are not NULL: running = (1 - momentum) running + momentum batch, where the batch's variance
 * is divided by n - 1. Evaluation takes the running ones. */
typedef struct td_batch_norm_options {
    int begin_;
    td_tensor *x, *weight, *bias, *running_mean, *running_var;
    bool training;
    double momentum; /* 0: 0.1 */
    double eps;      /* 0: 1e-5 */
} td_batch_norm_options;
td_tensor *td_batch_norm_at(td_batch_norm_options options, td_site at);

/* td_layer_norm(x, weight, bias, eps): (x - mean) / sqrt(var + eps) * weight + bias, with mean and
 * variance of each row: over the last dimension of x [...,d]. weight, bias: [d] or NULL. If weight
 * or bias has k dimensions, or with .dims = k, over the last k dimensions. */
typedef struct td_layer_norm_options {
    int begin_;
    td_tensor *x, *weight, *bias;
    double eps;        /* 0: 1e-5 */
    int dims;          /* 0: as many as weight or bias has, or 1 */
    bool for_products; /* only products take the result: see td_nn_layer_norm_options */
} td_layer_norm_options;
td_tensor *td_layer_norm_at(td_layer_norm_options options, td_site at);
td_tensor *td_softmax_at(td_tensor *x, int dim, td_site at); /* exp(x) / sum of exp(x) along dim */
td_tensor *td_log_softmax_at(td_tensor *x, int dim, td_site at);

/* ---- pooling ---- */

/* td_max_pool2d(x, kernel, ...) and td_avg_pool2d(x, kernel, ...): x [N,C,H,W]. Height and width
 * are given together or as _hw, as in td_conv2d. Padding is at most half the kernel. */
typedef struct td_pool2d_options {
    int begin_;
    td_tensor *x;
    int kernel, stride, padding; /* stride 0: the kernel */
    int kernel_hw[2], stride_hw[2], padding_hw[2];
    bool exclude_pad; /* average: divide by the number of places inside the image */
    bool ceil_mode;   /* a last window may reach beyond the padding */
    int dilation;     /* only max_pool2d; 0: 1 */
    int dilation_hw[2];
} td_pool2d_options;
td_tensor *td_max_pool2d_at(td_pool2d_options options, td_site at);
td_tensor *td_avg_pool2d_at(td_pool2d_options options, td_site at);
td_tensor *td_global_avg_pool2d_at(td_tensor *x, td_site at); /* [N,C,H,W] -> [N,C,1,1] */

/* ---- others ---- */

/* With probability p in [0,1) an element becomes 0, otherwise it is multiplied by 1/(1-p). Random
 * numbers come from the generator Philox (tensor/random.h): the same key and counter draw the same
 * numbers, so give another counter in each step. (td_nn_dropout does that.) */
td_tensor *td_dropout_at(td_tensor *x, double p, td_philox_key key, uint64_t counter, td_site at);
/* The same for whole samples x[n,...]. */
td_tensor *td_stochastic_depth_at(td_tensor *x, double p, td_philox_key key, uint64_t counter,
                                  td_site at);
/* td_embedding(index, table, ...): rows of a table: index i64 [...] in [0, rows), table [rows,d] ->
 * [...,d]. */
typedef struct td_embedding_options {
    int begin_;
    td_tensor *index, *table;
    bool has_padding;    /* row padding_idx gets no gradient */
    int64_t padding_idx; /* negative: from the end */
} td_embedding_options;
td_tensor *td_embedding_at(td_embedding_options options, td_site at);
/* The same as td_dropout for whole channels x[n,c,...]. */
td_tensor *td_dropout2d_at(td_tensor *x, double p, td_philox_key key, uint64_t counter, td_site at);
td_tensor *td_detach_at(td_tensor *x, td_site at); /* the same memory, without gradient */
td_tensor *td_cast_at(td_tensor *x, td_dtype dtype, td_site at); /* floats keep their gradient */
/* A copy of x on another device; x itself if it is there. The gradient is copied back. So a model
 * may have a part on each of several devices. */
td_tensor *td_to_at(td_tensor *x, td_device device, td_site at);

/* Arithmetic in place: t += u (u broadcasts to t) and t *= s. Not recorded for backward. Allowed on
 * tensors without gradients, inside or outside a step; on a parameter only between td_no_grad_begin
 * and td_no_grad_end. Same dtype and device. */
void td_add_inplace_at(td_tensor *t, const td_tensor *u, td_site at);
void td_mul_scalar_inplace_at(td_tensor *t, double s, td_site at);

TD_END_C

/* ---- what you call ---- */

#define td_add(...) td_add_at(__VA_ARGS__, TD_HERE)
#define td_sub(...) td_sub_at(__VA_ARGS__, TD_HERE)
#define td_mul(...) td_mul_at(__VA_ARGS__, TD_HERE)
#define td_div(...) td_div_at(__VA_ARGS__, TD_HERE)
#define td_add_scalar(...) td_add_scalar_at(__VA_ARGS__, TD_HERE)
#define td_mul_scalar(...) td_mul_scalar_at(__VA_ARGS__, TD_HERE)
#define td_neg(...) td_neg_at(__VA_ARGS__, TD_HERE)
#define td_exp(...) td_exp_at(__VA_ARGS__, TD_HERE)
#define td_log(...) td_log_at(__VA_ARGS__, TD_HERE)
#define td_sqrt(...) td_sqrt_at(__VA_ARGS__, TD_HERE)
#define td_pow(...) td_pow_at(__VA_ARGS__, TD_HERE)
#define td_relu(...) td_relu_at(__VA_ARGS__, TD_HERE)
#define td_gelu(...) td_gelu_at(__VA_ARGS__, TD_HERE)
#define td_silu(...) td_silu_at(__VA_ARGS__, TD_HERE)
#define td_sigmoid(...) td_sigmoid_at(__VA_ARGS__, TD_HERE)
#define td_tanh(...) td_tanh_at(__VA_ARGS__, TD_HERE)
#define td_sum(...) td_sum_at(__VA_ARGS__, TD_HERE)
#define td_mean(...) td_mean_at(__VA_ARGS__, TD_HERE)
#define td_sum_dim(...) td_sum_dim_at(__VA_ARGS__, TD_HERE)
#define td_mean_dim(...) td_mean_dim_at(__VA_ARGS__, TD_HERE)
#define td_max_dim(...) td_max_dim_at(__VA_ARGS__, TD_HERE)
#define td_max(...) td_max_at(__VA_ARGS__, TD_HERE)
#define td_argmax(...) td_argmax_at(__VA_ARGS__, TD_HERE)
#define td_count_top(...) td_count_top_at(__VA_ARGS__, TD_HERE)
#define td_matmul(...) td_matmul_at(__VA_ARGS__, TD_HERE)
#define td_linear(...) td_linear_at(__VA_ARGS__, TD_HERE)
#define td_transpose(...) td_transpose_at(__VA_ARGS__, TD_HERE)
#define td_permute(...) td_permute_at(__VA_ARGS__, TD_HERE)
#define td_reshape(...) td_reshape_at(__VA_ARGS__, TD_HERE)
#define td_flatten(...) td_flatten_at(__VA_ARGS__, TD_HERE)
#define td_slice(...) td_slice_at(__VA_ARGS__, TD_HERE)
#define td_expand(...) td_expand_at(__VA_ARGS__, TD_HERE)
#define td_cat(...) td_cat_at(__VA_ARGS__, TD_HERE)
#define td_contiguous(...) td_contiguous_at(__VA_ARGS__, TD_HERE)
#define td_layer_norm(...) TD_CALL(td_layer_norm, TD_OPT4(x, weight, bias, eps, __VA_ARGS__))
#define td_softmax(...) td_softmax_at(__VA_ARGS__, TD_HERE)
#define td_log_softmax(...) td_log_softmax_at(__VA_ARGS__, TD_HERE)
#define td_global_avg_pool2d(...) td_global_avg_pool2d_at(__VA_ARGS__, TD_HERE)
#define td_dropout(...) td_dropout_at(__VA_ARGS__, TD_HERE)
#define td_dropout2d(...) td_dropout2d_at(__VA_ARGS__, TD_HERE)
#define td_stochastic_depth(...) td_stochastic_depth_at(__VA_ARGS__, TD_HERE)
#define td_embedding(...) TD_CALL(td_embedding, TD_OPT2(index, table, __VA_ARGS__))
#define td_detach(...) td_detach_at(__VA_ARGS__, TD_HERE)
#define td_cast(...) td_cast_at(__VA_ARGS__, TD_HERE)
#define td_to(...) td_to_at(__VA_ARGS__, TD_HERE)
#define td_add_(...) td_add_inplace_at(__VA_ARGS__, TD_HERE)
#define td_mul_scalar_(...) td_mul_scalar_inplace_at(__VA_ARGS__, TD_HERE)
#define td_conv2d(...) TD_CALL(td_conv2d, TD_OPT3(x, w, b, __VA_ARGS__))
#define td_batch_norm(...)                                                                         \
    td_batch_norm_at((td_batch_norm_options){ TD_OPT5(x, weight, bias, running_mean, running_var,  \
                                                      __VA_ARGS__) },                              \
                     TD_HERE)
#define td_max_pool2d(...)                                                                         \
    td_max_pool2d_at((td_pool2d_options){ TD_OPT2(x, kernel, __VA_ARGS__) }, TD_HERE)
#define td_avg_pool2d(...)                                                                         \
    td_avg_pool2d_at((td_pool2d_options){ TD_OPT2(x, kernel, __VA_ARGS__) }, TD_HERE)
