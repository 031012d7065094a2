/* For tests: slow operations in double precision, written as their formulas read. Arrays are
 * row-major; each element may come with the sum of the absolute terms that it was summed from,
 * against which its error is measured. */
#pragma once

#include "autograd/autograd.h"

typedef struct ref {
    td_shape shape;
    int64_t n;
    double *v;
    double *terms; /* NULL: no such sum; then errors are measured over the whole array */
} ref;

/* A persistent tensor with random values in [from, to); always the same ones in the same order of
 * calls after ref_end. Float values are exact in f32; integers are rounded down. */
td_tensor *ref_input(td_shape shape, td_dtype dtype, td_layout layout, double from, double to);

/* All arrays and inputs live until ref_end. */
ref ref_new(td_shape shape, bool with_terms);
ref ref_read(const td_tensor *t);
void ref_end(void);

/* Flat place <-> index. */
void ref_index(td_shape shape, int64_t place, int64_t *index);
int64_t ref_place(td_shape shape, const int64_t *index);

/* Fails the test unless y has r's shape and values: within 1e-6 (f32) or 1e-12 (f64) of the
 * absolute terms, or in relative L2. exact: bit for bit. */
void ref_expect(const td_tensor *y, ref r, const char *what);
void ref_expect_exact(const td_tensor *y, ref r, const char *what);

/* ---- elements, reductions, shapes (ops_reference.c) ---- */
ref ref_unary(ref x, double (*f)(double x, double p), double p);
typedef enum ref_binary_op { REF_ADD, REF_SUB, REF_MUL, REF_DIV } ref_binary_op;
ref ref_binary(ref_binary_op op, ref a, ref b);
typedef enum ref_reduce_op { REF_SUM, REF_MEAN, REF_MAX, REF_ARGMAX } ref_reduce_op;
ref ref_reduce(ref_reduce_op op, ref x, int dim, bool keep); /* dim -1: all, a scalar */
ref ref_reshape(ref x, td_shape shape);
ref ref_permute(ref x, const int *order);
ref ref_slice(ref x, int dim, int64_t start, int64_t count, int64_t step);
ref ref_expand(ref x, td_shape shape);
ref ref_cat(ref a, ref b, int dim);

/* ---- layers (ops_reference_layers.c) ---- */
ref ref_matmul(ref a, ref b);
ref ref_linear(ref x, ref w, const ref *b);
typedef struct ref_window {
    int kernel[2], stride[2], pad[2], dilation[2];
} ref_window;
ref ref_conv2d(ref x, ref w, const ref *b, ref_window window, int64_t groups);
ref ref_max_pool2d(ref x, ref_window window);
ref ref_avg_pool2d(ref x, ref_window window, bool count_pad);
/* Statistics of x per channel: mean and (biased) variance, each [C]. */
void ref_channel_stats(ref x, ref *mean, ref *var);
ref ref_batch_norm(ref x, const ref *w, const ref *b, ref mean, ref var, double eps, const ref *add,
                   bool relu);
ref ref_layer_norm(ref x, const ref *w, const ref *b, double eps);
ref ref_softmax(ref x, int dim, bool log);
ref ref_cross_entropy(ref logits, ref labels, double smoothing);
ref ref_dropout(ref x, double p, td_philox_key key, uint64_t counter);
ref ref_embedding(ref index, ref table);
