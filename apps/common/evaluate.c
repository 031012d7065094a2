#include "apps/common/evaluate.h"

#include "apps/common/ranks.h"
#include "dist/dist.h"

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

/* Running statistics are each rank's own between two training steps. */
static td_status share_buffers(td_module *net)
{
    td_status status = TD_OK;
    td_state_list list = td_module_state(net);
    for (int i = 0; i < list.count && status == TD_OK; i++) {
        if (list.items[i].buffer) {
            status = td_broadcast(NULL, list.items[i].tensor, 0, NULL);
        }
    }
    td_state_list_free(&list);
    return list.count < 0 ? TD_E_NOMEM : status;
}

/* Each rank's part; no sample twice, or the figures would be wrong. */
static td_sampler *part_of(void)
{
    return td_dist_is_initialized()
               ? td_distributed_sampler(&(td_distributed_options){ .no_padding = true })
               : td_sequential_sampler();
}

static void run(td_module *net, td_loader *loader, evaluation *sums)
{
    td_eval(net);
    td_no_grad_begin();
    for (td_batch batch; td_loader_next(loader, &batch);) {
        td_step_begin();
        td_tensor *logits = td_forward(net, batch.x);
        sums->loss += td_item(td_cross_entropy(logits, batch.y)) * (double)batch.size;
        sums->correct += count_correct(logits, &batch);
        sums->count += batch.size;
        td_step_end();
    }
    td_no_grad_end();
    td_train(net);
}

static td_status total(evaluation *result)
{
    double sums[] = { (double)result->correct, (double)result->count, result->loss };
    TD_TRY(ranks_sum(sums, 3));
    *result = (evaluation){ (int64_t)sums[0], (int64_t)sums[1], sums[2] / sums[1] };
    return TD_OK;
}

td_status evaluate(td_module *net, const td_dataset *dataset, int64_t batch_size, int workers,
                   evaluation *result)
{
    td_generator own; /* a loader draws from its generator even when it does not shuffle */
    td_generator_seed(&own, 0);
    if (td_dist_is_initialized()) {
        TD_TRY(share_buffers(net));
    }
    td_loader *loader = td_loader_open(dataset, &(td_loader_options){ .batch_size = batch_size,
                                                                      .sampler = part_of(),
                                                                      .workers = workers,
                                                                      .generator = &own,
                                                                      .device = net->device });
    if (loader == NULL) {
        return TD_E_NOMEM;
    }
    *result = (evaluation){ 0 };
    run(net, loader, result);
    td_status status = td_loader_status(loader);
    td_loader_close(loader);
    TD_TRY(status);
    return total(result);
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
