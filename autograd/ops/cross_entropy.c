/* Softmax and negative log-likelihood in one, and negative log-likelihood alone. The kernel takes
 * rows, a logit for each of K classes: logits [N,K,d...] are first rearranged to [N d...,K]. */
#include "autograd/ops/op.h"

static void entropy_backward(td_node *node, const td_tensor *dy)
{
    td_grad_slot slot = td_input_grad(node, 0);
    td_kernels_for(dy)->cross_entropy_grad(slot.grad, dy, td_saved(node, 3), td_saved(node, 0),
                                           td_saved(node, 1), td_saved(node, 2), td_params_of(node),
                                           slot.accumulate);
}

/* ---- checks ---- */

static void check_shapes(const td_tensor *x, const td_tensor *labels, const char *op, td_site at)
{
    TD_REQUIRE(
        x->ndim >= 2 && x->shape[1] > 0 && labels->dtype == TD_I64 &&
            td_shape_equal(td_op_reduced_shape(x, TD_SHAPE(1), false, at), td_shape_of(labels)),
        at,
        "%s: logits %s and labels %s: they must be [N,classes] of floats, and "
        "[N], i64 (or [N,classes,...] and [N,...])",
        op, td_describe(x), td_describe(labels));
    TD_REQUIRE(td_same_device(td_device_of(x), td_device_of(labels)), at,
               "%s: logits %s and labels %s are on different devices", op, td_describe(x),
               td_describe(labels));
}

/* The weights of classes, as f32 if logits have 16 bits; NULL: none. */
static td_tensor *checked_weight(const td_tensor *x, td_tensor *weight, const char *op, td_site at)
{
    if (weight == NULL) {
        return NULL;
    }
    weight = td_op_input(weight, op, "the weight", TD_RULE_OF(cross_entropy), at);
    td_check_match(x, weight, op, at);
    TD_REQUIRE(weight->ndim == 1 && weight->shape[0] == x->shape[1] && !td_needs_grad(weight), at,
               "%s: the weight%s must be [%lld], a number for each class, without gradient", op,
               TD_SHAPE_TEXT(weight), (long long)x->shape[1]);
    return weight;
}

/* Checks labels some of which may be `ignored`, which the kernel's check would refuse. Only on the
 * CPU: other devices give NaN for a label that is out of range. */
static void check_labels_but(const td_tensor *labels, int64_t classes, int64_t ignored,
                             const char *op, td_site at)
{
    if (td_device_of(labels).type != TD_DEVICE_CPU) {
        return;
    }
    int64_t n = td_numel(labels), *values = td_step_bytes((size_t)n * sizeof *values);
    td_read(labels, values, TD_I64);
    for (int64_t i = 0; i < n; i++) {
        TD_REQUIRE((values[i] >= 0 && values[i] < classes) || values[i] == ignored, at,
                   "%s: label %lld with %lld classes: labels must be 0 to %lld, or %lld, which is "
                   "ignored",
                   op, (long long)values[i], (long long)classes, (long long)classes - 1,
                   (long long)ignored);
    }
}

void td_op_check_labels(const td_tensor *labels, int64_t classes, int64_t ignored, const char *op,
                        td_site at)
{
    if (ignored != TD_IGNORES_NONE) {
        check_labels_but(labels, classes, ignored, op, at);
    } else {
        td_op_check_index(labels, classes, op, "label", at);
    }
}

int64_t td_op_ignored(int64_t ignore_index)
{
    return ignore_index == 0 ? TD_IGNORES_NONE : ignore_index == TD_IGNORE_ZERO ? 0 : ignore_index;
}

/* ---- rows ---- */

/* [N,K,d...] as [N d...,K]. */
static td_tensor *to_rows(td_tensor *x, td_site at)
{
    if (x->ndim == 2) {
        return x;
    }
    int order[TD_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++) {
        order[d] = d == 0 ? 0 : d + 1 < x->ndim ? d + 1 : 1;
    }
    return td_reshape_at(td_permute_at(x, order, at), TD_SHAPE(-1, x->shape[1]), at);
}

static td_tensor *losses_of_rows(const char *op, td_tensor *rows, td_tensor *labels,
                                 td_tensor *weight, const td_entropy_params *params,
                                 bool log_softmax, td_loss_reduction reduction, td_site at)
{
    td_device device = td_device_of(rows);
    td_shape shape = reduction == TD_LOSS_NONE ? TD_SHAPE(rows->shape[0]) : TD_SCALAR;
    td_tensor *loss = td_step_new(shape, rows->dtype, TD_ROW_MAJOR, device, at);
    td_tensor *total = td_step_new(TD_SCALAR, TD_F64, TD_ROW_MAJOR, device, at);
    td_tensor *log_p = log_softmax ? td_step_new_like(rows, at) : NULL;
    td_kernels_of(device)->cross_entropy(loss, total, log_p, rows, labels, weight, params);
    return TD_RECORD(at, .op = op, .backward = entropy_backward, .out = loss, .inputs = { rows },
                     .saved = { log_p, labels, weight, total }, TD_PARAMS(params));
}

static td_tensor *entropy(const char *op, td_tensor *x, td_tensor *labels, td_tensor *weight,
                          int64_t ignore_index, td_loss_reduction reduction, double smoothing,
                          bool log_softmax, td_site at)
{
    td_entropy_params params = {
        .smoothing = smoothing,
        .ignore = td_op_ignored(ignore_index),
        .sum = reduction == TD_LOSS_SUM,
    };
    check_shapes(x, labels, op, at);
    weight = checked_weight(x, weight, op, at);
    td_op_check_labels(labels, x->shape[1], params.ignore, op, at);
    td_tensor *flat = labels->ndim == 1 ? labels : td_reshape_at(labels, TD_SHAPE(-1), at);
    td_tensor *loss =
        losses_of_rows(op, to_rows(x, at), flat, weight, &params, log_softmax, reduction, at);
    bool turns = reduction == TD_LOSS_NONE && labels->ndim != 1;
    return turns ? td_reshape_at(loss, td_shape_of(labels), at) : loss;
}

/* ---- the operations ---- */

/* Targets are probabilities: composed. */
static td_tensor *soft(td_tensor *x, const td_cross_entropy_options *o, td_site at)
{
    td_tensor *target =
        td_op_input(o->labels, "cross_entropy", "labels", TD_RULE_OF(cross_entropy), at);
    TD_REQUIRE(x->ndim >= 2 && td_same_shape(x, target), at,
               "cross_entropy: logits%s and probabilities%s must have the same shape",
               TD_SHAPE_TEXT(x), TD_SHAPE_TEXT(target));
    TD_REQUIRE(o->ignore_index == 0, at,
               "cross_entropy: ignore_index is for labels, and there are probabilities");
    td_tensor *weight = checked_weight(x, o->weight, "cross_entropy", at);
    double s = o->label_smoothing, classes = (double)x->shape[1];
    if (s != 0.0) {
        target = td_add_scalar_at(td_mul_scalar_at(target, 1.0 - s, at), s / classes, at);
    }
    if (weight != NULL) {
        target = td_mul_at(target, td_op_per_channel(weight, x, at), at);
    }
    td_tensor *terms = td_mul_at(td_log_softmax_at(x, 1, at), target, at);
    if (o->reduction == TD_LOSS_NONE) {
        return td_neg_at(td_sum_dim_at(terms, 1, false, at), at);
    }
    double rows = o->reduction == TD_LOSS_SUM ? 1.0 : (double)td_numel(x) / classes;
    return td_mul_scalar_at(td_sum_at(terms, at), -1.0 / rows, at);
}

td_tensor *td_cross_entropy_at(td_cross_entropy_options o, td_site at)
{
    td_tensor *x = td_op_input(o.logits, "cross_entropy", "logits", TD_RULE_OF(cross_entropy), at);
    td_check_tensor(o.labels, "cross_entropy", "labels", at);
    TD_REQUIRE(o.label_smoothing >= 0.0 && o.label_smoothing <= 1.0, at,
               "cross_entropy: the label smoothing is %g; it must be between 0 and 1",
               o.label_smoothing);
    if (o.labels->dtype != TD_I64 && td_is_float(o.labels->dtype)) {
        return soft(x, &o, at);
    }
    return entropy("cross_entropy", x, o.labels, o.weight, o.ignore_index, o.reduction,
                   o.label_smoothing, true, at);
}

td_tensor *td_nll_loss_at(td_nll_loss_options o, td_site at)
{
    td_tensor *x = td_op_input(o.log_p, "nll_loss", "log_p", TD_RULE_OF(nll_loss), at);
    td_check_tensor(o.labels, "nll_loss", "labels", at);
    return entropy("nll_loss", x, o.labels, o.weight, o.ignore_index, o.reduction, 0.0, false, at);
}
