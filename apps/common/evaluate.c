#include "apps/common/evaluate.h"

#include <inttypes.h>
#include <math.h>

int64_t count_correct(td_tensor *logits, const td_batch *batch)
{
    td_tensor *best = td_argmax(logits, 1, false);
    int64_t correct = 0;
    for (int64_t i = 0; i < batch->size; i++) {
        correct += td_get(best, &i) == td_get(batch->y, &i);
    }
    return correct;
}

td_status evaluate(td_module *net, const td_dataset *dataset, int64_t batch_size, int workers,
                   evaluation *result)
{
    td_generator own; /* a loader draws from its generator even when it does not shuffle */
    td_generator_seed(&own, 0);
    td_loader *loader = td_loader_open(dataset, &(td_loader_options){ .batch_size = batch_size,
                                                                      .workers = workers,
                                                                      .generator = &own,
                                                                      .device = net->device });
    if (loader == NULL) {
        return TD_E_NOMEM;
    }
    double loss_sum = 0;
    *result = (evaluation){ 0 };
    td_eval(net);
    td_no_grad_begin();
    for (td_batch batch; td_loader_next(loader, &batch);) {
        td_step_begin();
        td_tensor *logits = td_forward(net, batch.x);
        loss_sum += td_item(td_cross_entropy(logits, batch.y)) * (double)batch.size;
        result->correct += count_correct(logits, &batch);
        result->count += batch.size;
        td_step_end();
    }
    td_no_grad_end();
    td_train(net);
    result->loss = loss_sum / (double)dataset->length;
    td_status status = td_loader_status(loader);
    td_loader_close(loader);
    return status;
}

td_status check_loss(double loss, int64_t epoch, int64_t step)
{
    if (isfinite(loss)) {
        return TD_OK;
    }
    return td_fail(TD_E_ARG,
                   "the loss is %g in epoch %" PRId64 ", step %" PRId64
                   ": try a lower --lr; --debug-nan names the operation where it began",
                   loss, epoch, step);
}
