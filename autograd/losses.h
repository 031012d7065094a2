/* Losses. Options are given by name (tensor/options.h). 16-bit inputs are computed in f32. */
#pragma once

#include "tensor/tensor.h"

TD_BEGIN_C

/* How the losses of single elements or rows are combined. */
typedef enum td_loss_reduction {
    TD_LOSS_MEAN, /* their mean, a scalar; the default */
    TD_LOSS_SUM,  /* their sum, a scalar */
    TD_LOSS_NONE, /* not at all: the result has a loss for each element or row */
} td_loss_reduction;

/* td_cross_entropy(logits, labels, ...): F.cross_entropy. logits [N,K,...]; labels i64 [N,...] in
 * [0, K). With p = softmax(logits) over the K classes, s = label_smoothing, w = weight, the loss of
 * one label is -(1 - s) w[label] log p[label] - s/K sum_k w[k] log p[k]. TD_LOSS_MEAN is the sum of
 * the losses divided by the sum of w[label]. Labels may also be probabilities: floats t of logits'
 * shape, with the loss -sum_k w[k] t[k] log p[k]; the mean is then over rows. */
typedef struct td_cross_entropy_options {
    int begin_; /* for the library: lets the macro take an empty list */
    td_tensor *logits, *labels;
    double label_smoothing; /* from 0 to 1 */
    td_tensor *weight;      /* [K]; NULL: ones */
    int64_t ignore_index;   /* labels of this value do not count (PyTorch: -100). 0: all labels
                               count; TD_IGNORE_ZERO: labels of class 0 do not count */
    td_loss_reduction reduction;
} td_cross_entropy_options;
td_tensor *td_cross_entropy_at(td_cross_entropy_options options, td_site at);
#define TD_IGNORE_ZERO INT64_MAX

/* td_linear_cross_entropy(x, w, labels, ...): td_cross_entropy of the logits td_linear(x, w, NULL),
 * for the head of a language model: x [...,d], w [V,d], labels i64 [...] in [0, V). On the CPU
 * the whole logits never exist, unless the vocabulary is one chunk; the backward computes each
 * chunk again. TD_LOSS_NONE gives [N] for N labels, and has no chunks. */
typedef struct td_linear_cross_entropy_options {
    int begin_;
    td_tensor *x, *w, *labels;
    int64_t ignore_index; /* as td_cross_entropy's */
    td_loss_reduction reduction;
    int64_t chunk; /* words computed together; 0: 4096, or more if that takes up to 16 MB */
} td_linear_cross_entropy_options;
td_tensor *td_linear_cross_entropy_at(td_linear_cross_entropy_options options, td_site at);

/* td_nll_loss(log_p, labels, ...): F.nll_loss: td_cross_entropy for log p instead of logits, as
 * td_log_softmax computes it. */
typedef struct td_nll_loss_options {
    int begin_;
    td_tensor *log_p, *labels, *weight;
    int64_t ignore_index;
    td_loss_reduction reduction;
} td_nll_loss_options;
td_tensor *td_nll_loss_at(td_nll_loss_options options, td_site at);

/* ---- of single elements: x and target have one shape ---- */

typedef struct td_loss_options {
    int begin_;
    td_tensor *x, *target;
    td_loss_reduction reduction;
} td_loss_options;
/* td_mse_loss(x, target, ...): F.mse_loss, (x - target)^2. td_l1_loss: F.l1_loss, |x - target|. */
td_tensor *td_mse_loss_at(td_loss_options options, td_site at);
td_tensor *td_l1_loss_at(td_loss_options options, td_site at);

/* With d = |x - target|: td_huber_loss is F.huber_loss, d^2 / 2 if d < delta, otherwise delta (d -
 * delta / 2). td_smooth_l1_loss is F.smooth_l1_loss: the same divided by delta (PyTorch's beta); if
 * delta is TD_ZERO, it is d. */
typedef struct td_huber_loss_options {
    int begin_;
    td_tensor *x, *target;
    double delta; /* 0: 1 */
    td_loss_reduction reduction;
} td_huber_loss_options;
td_tensor *td_huber_loss_at(td_huber_loss_options options, td_site at);
td_tensor *td_smooth_l1_loss_at(td_huber_loss_options options, td_site at);

/* td_bce_with_logits(x, target, ...): F.binary_cross_entropy_with_logits. With p = sigmoid(x) and
 * targets t from 0 to 1: -weight (pos_weight t log p + (1 - t) log(1 - p)). */
typedef struct td_bce_options {
    int begin_;
    td_tensor *x, *target;
    td_tensor *weight, *pos_weight; /* broadcast to x's shape; NULL: ones */
    td_loss_reduction reduction;
} td_bce_options;
td_tensor *td_bce_with_logits_at(td_bce_options options, td_site at);

/* td_kl_div(log_p, target, ...): F.kl_div, t (log t - log p), where t is 0: 0. */
typedef struct td_kl_div_options {
    int begin_;
    td_tensor *log_p, *target;
    bool log_target; /* target is log t */
    bool batch_mean; /* the sum divided by the first size: the divergence (PyTorch: "batchmean") */
    td_loss_reduction reduction;
} td_kl_div_options;
td_tensor *td_kl_div_at(td_kl_div_options options, td_site at);

/* ---- of directions and signs ---- */

/* F.cosine_similarity: sum(a b) / (max(|a|, eps) max(|b|, eps)) along dim; eps 0: 1e-8. */
td_tensor *td_cosine_similarity_at(td_tensor *a, td_tensor *b, int dim, double eps, td_site at);

/* td_cosine_embedding_loss(a, b, target, ...): F.cosine_embedding_loss of a, b [N,d], and target
 * [N] of 1 and -1: 1 - cos(a, b) where it is 1, otherwise max(0, cos(a, b) - margin). */
typedef struct td_cosine_embedding_options {
    int begin_;
    td_tensor *a, *b, *target;
    double margin;
    td_loss_reduction reduction;
} td_cosine_embedding_options;
td_tensor *td_cosine_embedding_loss_at(td_cosine_embedding_options options, td_site at);

/* target has floats 1 and -1. td_hinge_loss(x, target, ...): max(0, margin - target x).
 * td_hinge_embedding_loss: F.hinge_embedding_loss, x where target is 1, otherwise
 * max(0, margin - x). */
typedef struct td_hinge_options {
    int begin_;
    td_tensor *x, *target;
    double margin; /* 0: 1 */
    td_loss_reduction reduction;
} td_hinge_options;
td_tensor *td_hinge_loss_at(td_hinge_options options, td_site at);
td_tensor *td_hinge_embedding_loss_at(td_hinge_options options, td_site at);

TD_END_C

/* ---- what you call ---- */

#define td_cross_entropy(...) TD_CALL(td_cross_entropy, TD_OPT2(logits, labels, __VA_ARGS__))
#define td_linear_cross_entropy(...)                                                               \
    td_linear_cross_entropy_at(                                                                    \
        (td_linear_cross_entropy_options){ TD_OPT3(x, w, labels, __VA_ARGS__) }, TD_HERE)
#define td_nll_loss(...) TD_CALL(td_nll_loss, TD_OPT2(log_p, labels, __VA_ARGS__))
#define td_mse_loss(...)                                                                           \
    td_mse_loss_at((td_loss_options){ TD_OPT2(x, target, __VA_ARGS__) }, TD_HERE)
#define td_l1_loss(...) td_l1_loss_at((td_loss_options){ TD_OPT2(x, target, __VA_ARGS__) }, TD_HERE)
#define td_huber_loss(...) TD_CALL(td_huber_loss, TD_OPT2(x, target, __VA_ARGS__))
#define td_smooth_l1_loss(...)                                                                     \
    td_smooth_l1_loss_at((td_huber_loss_options){ TD_OPT2(x, target, __VA_ARGS__) }, TD_HERE)
#define td_bce_with_logits(...)                                                                    \
    td_bce_with_logits_at((td_bce_options){ TD_OPT2(x, target, __VA_ARGS__) }, TD_HERE)
#define td_kl_div(...) TD_CALL(td_kl_div, TD_OPT2(log_p, target, __VA_ARGS__))
#define td_cosine_similarity(...) td_cosine_similarity_at(__VA_ARGS__, TD_HERE)
#define td_cosine_embedding_loss(...)                                                              \
    td_cosine_embedding_loss_at(                                                                   \
        (td_cosine_embedding_options){ TD_OPT3(a, b, target, __VA_ARGS__) }, TD_HERE)
#define td_hinge_loss(...)                                                                         \
    td_hinge_loss_at((td_hinge_options){ TD_OPT2(x, target, __VA_ARGS__) }, TD_HERE)
#define td_hinge_embedding_loss(...)                                                               \
    td_hinge_embedding_loss_at((td_hinge_options){ TD_OPT2(x, target, __VA_ARGS__) }, TD_HERE)
