/* What the operations' files share: rules for 16-bit floats, views for the time of a call, and
 * common gradients. */
#pragma once

#include "autograd/ops/params.h"
#include "autograd/tape.h"
#include "tensor/storage.h"

/* "[32,13]", for messages. */
#define TD_SHAPE_TEXT(t) td_describe_shape(td_shape_of(t))

/* What an operation does with bf16 and f16: autograd/ops.def explains the rules. */
typedef enum td_rule {
    TD_RULE_IS_FACTOR,
    TD_RULE_IS_FOLLOWS,
    TD_RULE_IS_WIDENS,
    TD_RULE_IS_ANY,
} td_rule;

enum {
#define TD_OP(op, rule) TD_RULE_##op = TD_RULE_IS_##rule,
#include "autograd/ops.def"
};

/* The rule of an operation: TD_RULE_OF(conv2d). */
#define TD_RULE_OF(op) ((td_rule)TD_RULE_##op)

/* The dtype of a result that only products take: on a GPU what they cast x (f32) to, if kernels may
 * write that at once; otherwise x's. */
td_dtype td_op_product_dtype(const td_tensor *x);

/* An activation as an operation takes it: checked (f32, f64, bf16; on GPUs f16), and cast, on the
 * tape, where the rule says so. op and what go into messages. */
td_tensor *td_op_input(td_tensor *x, const char *op, const char *what, td_rule rule, td_site at);

/* A new tensor, row-major, on the device of `like`. */
static inline td_tensor *td_op_new(td_shape shape, td_dtype dtype, const td_tensor *like,
                                   td_site at)
{
    return td_step_new(shape, dtype, TD_ROW_MAJOR, td_device_of(like), at);
}

/* Checks the bias b [out] of an operation on x with weight w. NULL: there is none. */
void td_op_check_bias(const char *op, const td_tensor *x, const td_tensor *w, const td_tensor *b,
                      int64_t out, td_site at);

/* Casts the 16-bit one of two activations to f32 if the other is f32. */
void td_op_promote(td_tensor **a, td_tensor **b, td_site at);

/* The result's shape of an elementwise operation on a and b, by NumPy's broadcasting. Fatal unless
 * a and b broadcast, have one dtype and are on one device. */
td_shape td_op_together(const char *op, const td_tensor *a, const td_tensor *b, td_site at);
/* A new tensor for that result, in the memory order of a or b if one of them has the result's shape
 * (an image stays an image), otherwise row-major. */
td_tensor *td_op_result(const td_tensor *a, const td_tensor *b, td_shape shape, td_dtype dtype,
                        td_site at);

/* t [C], a number for each channel of x [N,C,...], as [C,1,...], so that it broadcasts with x. */
td_tensor *td_op_per_channel(td_tensor *t, const td_tensor *x, td_site at);

/* Views by value: headers on the caller's stack, through which kernels read or write. They do not
 * retain the storage, so they are valid during the call only. */

/* Broadcast to a larger shape: stride 0 where the size grows, missing dimensions in front. */
td_tensor td_op_expanded(const td_tensor *t, td_shape shape);
td_tensor td_op_swapped(const td_tensor *t, int dim0, int dim1);
td_tensor td_op_with_shape(const td_tensor *t, td_shape shape, const int64_t *stride);

/* The strides that show t's elements, in row-major order, in another shape of as many elements.
 * false: t's own strides do not allow it. */
bool td_op_view_strides(const td_tensor *t, td_shape shape, int64_t *stride);

/* t itself if it is row-major and dense, otherwise a step tensor that is. */
td_tensor *td_op_row_major(const td_tensor *t, td_site at);

/* t in another shape of as many elements: a view by value, of t if its strides allow, otherwise of
 * a row-major copy that lives as long as the scope. */
td_tensor td_op_reshaped(const td_tensor *t, td_shape shape, td_site at);

/* [..., k] as a matrix [rows, k], in the same way; a vector is one row. */
td_tensor td_op_matrix(const td_tensor *t, td_site at);

/* x's shape after a reduction along dims (none: all): with sizes of 1 there; td_op_reduced_shape
 * with `keep` false: without these dimensions. */
td_shape td_op_kept_shape(const td_tensor *x, td_shape dims, td_site at);
td_shape td_op_reduced_shape(const td_tensor *x, td_shape dims, bool keep, td_site at);

/* The gradient of input i is the matrix product a b, which has as many elements as the input, or
 * more where the input was broadcast. */
void td_op_grad_matmul(td_node *node, int i, const td_tensor *a, const td_tensor *b, td_math math);

/* Where a kernel writes the gradient of input i: the input's own slot, or a temporary in the order
 * of `like` that is handed over afterwards. */
typedef struct td_op_gradient {
    td_tensor *grad; /* NULL: not wanted */
    bool accumulate;
    bool temporary;
} td_op_gradient;
/* The slot itself if `direct`, otherwise a temporary. */
td_op_gradient td_op_grad_begin(td_node *node, int i, const td_tensor *like, bool direct);
void td_op_grad_end(td_node *node, int i, td_op_gradient *gradient);

/* Whether input i is the same tensor as an earlier one: a kernel that writes several gradients in
 * one pass then needs a temporary for it. */
bool td_op_repeats(td_node *node, int i);

/* The gradient of input i, shape [channels], is the sum of dy over all dimensions but one. */
void td_op_grad_channel_sum(td_node *node, int i, const td_tensor *dy, int channel_dim);

/* td_group_norm of an image in its device's layout (layer_norm.c). The caller has checked the
 * shapes of weight and bias. */
td_tensor *td_op_group_norm_image(td_tensor *x, int64_t groups, td_tensor *weight, td_tensor *bias,
                                  double eps, td_site at);

/* A fatal error if an element of an index (i64) is not in [0, limit). A GPU checks the elements
 * later: the error then comes when the host next reads a value. what: "index", a literal. */
void td_op_check_index(const td_tensor *index, int64_t limit, const char *op, const char *what,
                       td_site at);

/* x by indices that are known to be in range, those of argsort: on the tape as gather_dim. */
td_tensor *td_op_gather_known(td_tensor *x, int dim, td_tensor *index, td_site at);

/* ---- cross-entropy: what labels share (cross_entropy.c) ---- */

/* Fatal where a label is no class, unless it is ignored (TD_IGNORES_NONE: none is). */
void td_op_check_labels(const td_tensor *labels, int64_t classes, int64_t ignored, const char *op,
                        td_site at);
/* The options' ignore_index, as the kernels want it. */
int64_t td_op_ignored(int64_t ignore_index);

/* ---- linear_cross_entropy where w has only some words of the vocabulary ---- */

#define TD_WORD_IGNORED (-((int64_t)1 << 40))
typedef struct td_word_slices {
    int count;     /* equal slices of w's words, each computed by itself */
    int64_t words; /* of the whole vocabulary; 0: w has all */
    /* With functions: labels [N] as each slice counts its words, [count,N]: TD_WORD_IGNORED for one
     * that is ignored, and another number that is no word's for a word that is elsewhere. */
    td_tensor *(*labels)(td_tensor *labels, int64_t ignored, void *user, td_site at);
    /* stats [N,3] = those of all words: the largest logit, the sum of exponentials of the distances
     * to it, and the label's logit, which is NaN in all slices but the label's. mine: [count,N,3].
     */
    void (*join)(td_tensor *stats, const td_tensor *mine, void *user, td_site at);
    void (*sum)(td_tensor *dx, void *user, td_site at); /* adds dx of all words */
    void *user;
} td_word_slices;
td_tensor *td_op_sliced_cross_entropy(td_linear_cross_entropy_options o,
                                      const td_word_slices *slices, td_site at);
/* Whether there are kernels for chunks of words, and operations are not observed: td_word_slices
 * with functions need that. */
bool td_op_chunks_entropy(td_device device);

/* (size + 2 pad - dilation (kernel-1) - 1) / stride + 1: how often a window fits; 0 if it does
 * not. */
int64_t td_op_windows(int64_t size, int64_t kernel, int stride, int pad, int dilation);

/* The padding of "same", with which there are size / stride windows, rounded up; of an odd number
 * the larger half is behind. */
void td_op_same_padding(int64_t size, int64_t kernel, int stride, int dilation, int64_t *before,
                        int64_t *after);

/* x with a frame of a value: before[d] and after[d] elements more along each dimension. */
td_tensor *td_op_padded(td_tensor *x, const int64_t *before, const int64_t *after, double value,
                        td_site at);

/* ---- pooling: what max_pool2d, avg_pool2d and batch_norm share (pool2d.c) ---- */

/* Checks x and the options of a pooling, and reads them. */
td_pool2d_params td_op_pool_params(const td_tensor *x, const td_pool2d_options *options,
                                   const char *op, td_site at);
/* The same for a maximum, whose index is one byte. */
td_pool2d_params td_op_max_pool_params(const td_tensor *x, const td_pool2d_options *options,
                                       const char *op, td_site at);
/* A tensor of the pooled shape. */
td_tensor *td_op_pool_output(const td_tensor *x, const td_pool2d_params *params, td_dtype dtype,
                             const char *op, td_site at);
