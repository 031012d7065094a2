/* Losses. Options are given by name (tensor/options.h). 16-bit inputs are computed in f32. */
#ifndef TD_AUTOGRAD_LOSSES_H
#define TD_AUTOGRAD_LOSSES_H

#include "tensor/extern_c.h"
#include "tensor/tensor.h"

TD_BEGIN_C

/* What becomes of the losses of single elements or rows. */
typedef enum td_loss_reduction {
    TD_LOSS_MEAN, /* a scalar, as the other two: the default */
    TD_LOSS_SUM,
    TD_LOSS_NONE, /* all of them, in their shape */
} td_loss_reduction;

/* td_cross_entropy(logits, labels, ...): F.cross_entropy. logits [N,K,...]; labels i64 [N,...] in
 * [0, K). With p = softmax(logits) over the K classes, s = label_smoothing, w = weight, the loss at
 * a place is -(1 - s) w[label] log p[label] - s/K sum_k w[k] log p[k]. The mean is divided by the
 * sum of w[label]. Labels may also be probabilities: floats t of logits' shape, with the loss
 * -sum_k w[k] t[k] log p[k]; the mean is then over the places. */
typedef struct td_cross_entropy_options {
    int begin_; /* for the library: lets the macro take an empty list */
    td_tensor *logits, *labels;
    double label_smoothing; /* from 0 to 1 */
    td_tensor *weight;      /* [K]; NULL: ones */
    int64_t ignore_index;   /* places with this label do not count (PyTorch: -100). 0: none is
                               ignored; TD_IGNORE_ZERO: class 0 */
    td_loss_reduction reduction;
} td_cross_entropy_options;
td_tensor *td_cross_entropy_at(td_cross_entropy_options options, td_site at);
#define TD_IGNORE_ZERO INT64_MAX

/* td_nll_loss(log_p, labels, ...): F.nll_loss, the same of log p, as td_log_softmax gives it. */
typedef struct td_nll_loss_options {
    int begin_;
    td_tensor *log_p, *labels, *weight;
    int64_t ignore_index;
    td_loss_reduction reduction;
} td_nll_loss_options;
td_tensor *td_nll_loss_at(td_nll_loss_options options, td_site at);

td_tensor *td_mse_loss_at(td_tensor *x, td_tensor *target, td_site at); /* mean((x - target)^2) */

TD_END_C

/* ---- what you call ---- */

#define td_cross_entropy(...)                                                                      \
    td_cross_entropy_at((td_cross_entropy_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)
#define td_nll_loss(...) td_nll_loss_at((td_nll_loss_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)
#define td_mse_loss(...) td_mse_loss_at(__VA_ARGS__, TD_HERE)

#endif
