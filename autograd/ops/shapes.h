/* More operations on shapes and along dimensions; the rules of autograd/ops.h apply here, too.
 * gather_dim, split_dim and prod_dim are PyTorch's gather, split and prod; other names are
 * PyTorch's, unless a comment gives PyTorch's name. The operations work for every dtype, unless a
 * comment says "floats". A negative dim counts from the end. */
#pragma once

#include "autograd/ops.h"

TD_BEGIN_C

/* ---- sizes of 1, parts, repetitions ---- */

td_tensor *td_squeeze_at(td_tensor *x, int dim, td_site at);   /* removes a dimension of size 1 */
td_tensor *td_unsqueeze_at(td_tensor *x, int dim, td_site at); /* inserts a size of 1 before dim */
/* Joins count tensors of one shape along a new dimension, which is dimension dim of the result. */
td_tensor *td_stack_at(td_tensor *const *parts, int count, int dim, td_site at);
/* Cuts x along dim: parts[i] has sizes[i] elements, and the sizes add up to x's size. */
void td_split_dim_at(td_tensor *x, const int64_t *sizes, int count, int dim, td_tensor **parts,
                     td_site at);
/* count parts of equal size; the last ones may be smaller, or empty. */
void td_chunk_at(td_tensor *x, int count, int dim, td_tensor **parts, td_site at);
/* Repeats x repeats[d] times along dimension d. repeats may have more dimensions than x: they are
 * added in front. */
td_tensor *td_tile_at(td_tensor *x, td_shape repeats, td_site at);
td_tensor *td_flip_at(td_tensor *x, int dim, td_site at); /* in the opposite order */

/* td_pad(x, .before = { 0, 1 }, .after = { 0, 2 }, ...): adds before[d] elements at the beginning
 * of dimension d, and after[d] at its end. REFLECT mirrors x without repeating the element at the
 * edge; REPLICATE repeats that element. */
typedef enum td_pad_mode { TD_PAD_CONSTANT, TD_PAD_REFLECT, TD_PAD_REPLICATE } td_pad_mode;
typedef struct td_pad_options {
    int begin_;
    td_tensor *x;
    int64_t before[TD_MAX_DIMS], after[TD_MAX_DIMS];
    td_pad_mode mode;
    double value; /* of TD_PAD_CONSTANT */
} td_pad_options;
td_tensor *td_pad_at(td_pad_options options, td_site at);

/* ---- by indices: i64, not negative, without a gradient ---- */

/* y[..., i, ...] = x[..., index[..., i, ...], ...], with i in dimension dim. index has as many
 * dimensions as x. Its sizes are at most x's sizes, except along dim, where any size is allowed. */
td_tensor *td_gather_dim_at(td_tensor *x, int dim, td_tensor *index, td_site at);
/* A copy of x, with source[..., i, ...] added to element [..., index[..., i, ...], ...]. Floats.
 * index has source's shape. */
td_tensor *td_scatter_add_at(td_tensor *x, int dim, td_tensor *index, td_tensor *source,
                             td_site at);
/* The slices of x at index[0], ..., index[n - 1] along dim. */
td_tensor *td_index_select_at(td_tensor *x, int dim, td_tensor *index, td_site at);
/* i64 [...] -> i64 [..., classes]: 1 at the index, otherwise 0. */
td_tensor *td_one_hot_at(td_tensor *index, int64_t classes, td_site at);

/* Sorts along dim; equal elements keep their order, and NaN counts as the largest. *index, unless
 * index is NULL, becomes the place of each element in x. */
td_tensor *td_sort_at(td_tensor *x, int dim, bool descending, td_tensor **index, td_site at);
/* The k largest elements along dim, the largest first. Of equal elements the earlier counts as
 * larger. */
td_tensor *td_topk_at(td_tensor *x, int64_t k, int dim, td_tensor **index, td_site at);
/* Like td_argmax (autograd/ops.h), but if several elements are the largest, the index of the last.
 */
td_tensor *td_argmax_last_at(td_tensor *x, int dim, bool keep, td_site at);

/* ---- triangles of the last two dimensions; PyTorch: tril, triu ---- */

td_tensor *td_tril_at(td_tensor *x, int64_t diagonal, td_site at); /* column <= row + diagonal */
td_tensor *td_triu_at(td_tensor *x, int64_t diagonal, td_site at); /* column >= row + diagonal */

/* ---- reductions of floats. dims: TD_DIMS(0, 2), TD_ALL_DIMS ---- */

#define TD_DIMS(...) TD_SHAPE(__VA_ARGS__)
#define TD_ALL_DIMS TD_SCALAR

td_tensor *td_sum_dims_at(td_tensor *x, td_shape dims, bool keep, td_site at);
td_tensor *td_mean_dims_at(td_tensor *x, td_shape dims, bool keep, td_site at);
/* var: sum (x - mean)^2 / (n - correction); correction 1 makes it unbiased. std: the square root of
 * var; its gradient is 0 where std is 0. */
td_tensor *td_var_at(td_tensor *x, td_shape dims, double correction, bool keep, td_site at);
td_tensor *td_std_at(td_tensor *x, td_shape dims, double correction, bool keep, td_site at);
/* sqrt(sum x^2); the gradient at 0 is 0. PyTorch: linalg.vector_norm */
td_tensor *td_norm_at(td_tensor *x, td_shape dims, bool keep, td_site at);
td_tensor *td_prod_dim_at(td_tensor *x, int dim, bool keep, td_site at); /* PyTorch: prod */
/* y[i] = x[0] + ... + x[i] along dim; of integers, too. */
td_tensor *td_cumsum_at(td_tensor *x, int dim, td_site at);

TD_END_C

#define td_squeeze(...) td_squeeze_at(__VA_ARGS__, TD_HERE)
#define td_unsqueeze(...) td_unsqueeze_at(__VA_ARGS__, TD_HERE)
#define td_stack(...) td_stack_at(__VA_ARGS__, TD_HERE)
#define td_split_dim(...) td_split_dim_at(__VA_ARGS__, TD_HERE)
#define td_chunk(...) td_chunk_at(__VA_ARGS__, TD_HERE)
#define td_tile(...) td_tile_at(__VA_ARGS__, TD_HERE)
#define td_flip(...) td_flip_at(__VA_ARGS__, TD_HERE)
#define td_gather_dim(...) td_gather_dim_at(__VA_ARGS__, TD_HERE)
#define td_scatter_add(...) td_scatter_add_at(__VA_ARGS__, TD_HERE)
#define td_index_select(...) td_index_select_at(__VA_ARGS__, TD_HERE)
#define td_one_hot(...) td_one_hot_at(__VA_ARGS__, TD_HERE)
#define td_sort(...) td_sort_at(__VA_ARGS__, TD_HERE)
#define td_topk(...) td_topk_at(__VA_ARGS__, TD_HERE)
#define td_argmax_last(...) td_argmax_last_at(__VA_ARGS__, TD_HERE)
#define td_tril(...) td_tril_at(__VA_ARGS__, TD_HERE)
#define td_triu(...) td_triu_at(__VA_ARGS__, TD_HERE)
#define td_sum_dims(...) td_sum_dims_at(__VA_ARGS__, TD_HERE)
#define td_mean_dims(...) td_mean_dims_at(__VA_ARGS__, TD_HERE)
#define td_var(...) td_var_at(__VA_ARGS__, TD_HERE)
#define td_std(...) td_std_at(__VA_ARGS__, TD_HERE)
#define td_norm(...) td_norm_at(__VA_ARGS__, TD_HERE)
#define td_prod_dim(...) td_prod_dim_at(__VA_ARGS__, TD_HERE)
#define td_cumsum(...) td_cumsum_at(__VA_ARGS__, TD_HERE)
#define td_pad(...) TD_CALL(td_pad, TD_OPT1(x, __VA_ARGS__))
