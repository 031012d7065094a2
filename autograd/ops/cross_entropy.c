/* Softmax and negative log-likelihood in one: the mean over the batch of
 * (1-s) (-log p[label]) + s/K sum over classes of (-log p). */
#include "autograd/ops/op.h"
#include "tensor/hooks.h"
#include "tensor/extend.h"

static void cross_entropy_backward(td_node *node, const td_tensor *dy)
{
    const td_tensor *log_p = td_saved(node, 0), *labels = td_saved(node, 1);
    const double *smoothing = td_params_of(node);
    td_grad_slot slot = td_input_grad(node, 0);
    if (slot.grad != NULL) {
        td_kernels_of(td_device_of(dy))
            ->cross_entropy_grad(slot.grad, dy, log_p, labels, *smoothing, slot.accumulate);
    }
}

static void check(const td_tensor *logits, const td_tensor *labels, double smoothing, td_site at)
{
    td_check_tensor(labels, "cross_entropy", "labels", at);
    TD_REQUIRE(logits->ndim == 2 && labels->ndim == 1 && labels->dtype == TD_I64 &&
                   logits->shape[0] == labels->shape[0] && logits->shape[1] > 0,
               at,
               "cross_entropy: logits %s and labels %s: they must be [N,classes] of floats, and "
               "[N], i64",
               td_describe(logits), td_describe(labels));
    TD_REQUIRE(td_same_device(td_device_of(logits), td_device_of(labels)), at,
               "cross_entropy: logits %s and labels %s lie on different devices",
               td_describe(logits), td_describe(labels));
    TD_REQUIRE(smoothing >= 0.0 && smoothing <= 1.0, at,
               "cross_entropy: the label smoothing is %g; it must be between 0 and 1", smoothing);
    int64_t bad, classes = logits->shape[1];
    TD_REQUIRE(td_checked_by_device(labels, classes, "cross_entropy", "label", at) ||
                   td_kernels_of(td_device_of(logits))->indices_in_range(labels, classes, &bad),
               at, "cross_entropy: label %lld with logits%s: labels must be 0 to %lld",
               (long long)bad, TD_SHAPE_TEXT(logits), (long long)classes - 1);
}

td_tensor *td_cross_entropy_at(td_cross_entropy_options options, td_site at)
{
    td_tensor *logits =
        td_op_input(options.logits, "cross_entropy", "logits", TD_RULE_OF(cross_entropy), at);
    td_tensor *labels = options.labels;
    double smoothing = options.label_smoothing;
    check(logits, labels, smoothing, at);
    td_tensor *loss = td_step_new(TD_SCALAR, logits->dtype, TD_ROW_MAJOR, td_device_of(logits), at);
    td_tensor *log_p = td_step_new_like(logits, at);
    td_kernels_of(td_device_of(logits))->cross_entropy(loss, log_p, logits, labels, smoothing);
    return TD_RECORD(at, .op = "cross_entropy", .backward = cross_entropy_backward, .out = loss,
                     .inputs = { logits }, .saved = { log_p, labels }, .params = &smoothing,
                     .params_size = sizeof smoothing);
}
