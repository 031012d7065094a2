#include "apps/tools/common/evaluate.h"

#include "apps/tools/common/ranks.h"
#include "dist/collectives.h"
#include "tensor/extend.h"
#include "nn/module.h"
#include "data/inspect.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* Each rank's part; no sample twice, or the figures would be wrong. */
static td_sampler *part_of(void)
{
    return td_dist_is_initialized() ? td_distributed_sampler(.no_padding = true) : NULL;
}

static void add_batch(td_module *net, const td_batch *batch, int64_t top_k, evaluation *sums)
{
    td_step_begin();
    td_tensor *logits = td_forward(net, batch->x);
    sums->loss += td_item(td_cross_entropy(logits, batch->y)) * (double)batch->size;
    sums->correct += (int64_t)td_item(td_count_top(logits, batch->y, 1));
    sums->correct_k += top_k > 0 ? (int64_t)td_item(td_count_top(logits, batch->y, top_k)) : 0;
    sums->count += batch->size;
    td_step_end();
}

/* Means for who watches; the sums stay sums. */
static void tell(const evaluate_options *o, const evaluation *sums, const td_batch *batch,
                 int64_t batches)
{
    if (o->batch_done != NULL) {
        evaluation so_far = *sums;
        so_far.loss /= (double)sums->count;
        o->batch_done(&so_far, batch->index + 1, batches, o->user);
    }
}

/* Ranks ask together, each as often as the one with most batches. */
static td_status ask_to_stop(const evaluate_options *o, evaluation *sums)
{
    double asked = o->stop != NULL && o->stop(o->user);
    if (o->stop != NULL) {
        TD_TRY(ranks_sum(&asked, 1));
    }
    sums->stopped = asked > 0;
    return TD_OK;
}

/* One of the rounds in which each rank takes a batch, if it has one left. */
static td_status run_round(td_module *net, td_loader *loader, int64_t at,
                           const evaluate_options *options, evaluation *sums)
{
    td_batch batch;
    TD_TRY(ask_to_stop(options, sums));
    if (sums->stopped || loader == NULL || at >= td_loader_batches(loader)) {
        return TD_OK;
    }
    if (!td_loader_next(loader, &batch)) {
        return td_loader_status(loader);
    }
    add_batch(net, &batch, options->top_k, sums);
    tell(options, sums, &batch, td_loader_batches(loader));
    return TD_OK;
}

/* loader: NULL where there are fewer samples than ranks. */
static td_status run(td_module *net, td_loader *loader, int64_t rounds,
                     const evaluate_options *options, evaluation *sums)
{
    td_status status = td_unshard(net); /* ranks may have different numbers of batches */
    td_eval(net);
    td_no_grad_begin();
    for (int64_t i = 0; i < rounds && status == TD_OK && !sums->stopped; i++) {
        status = run_round(net, loader, i, options, sums);
    }
    td_no_grad_end();
    td_train(net);
    td_reshard(net);
    return status;
}

static td_status total(evaluation *result)
{
    double sums[] = { (double)result->correct, (double)result->correct_k, (double)result->count,
                      result->loss };
    TD_TRY(ranks_sum(sums, 4));
    *result = (evaluation){ (int64_t)sums[0], (int64_t)sums[1], (int64_t)sums[2], sums[3] / sums[2],
                            result->stopped };
    return TD_OK;
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* This rank's part of the dataset. */
static td_status run_part(td_module *net, const td_dataset *dataset,
                          const evaluate_options *options, evaluation *sums)
{
    int64_t most = divide_up(dataset->length, td_dist_world_size());
    int64_t rounds = divide_up(most, options->batch_size);
    if (dataset->length <= td_dist_rank()) {
        return run(net, NULL, rounds, options, sums);
    }
    evaluate_kept own = { .loader = NULL }, *kept = options->kept != NULL ? options->kept : &own;
    if (kept->loader == NULL) {
        /* A loader draws from its generator even when it does not shuffle. */
        td_generator_seed(&kept->generator, 0);
        kept->loader =
            td_loader_open(dataset, .batch_size = options->batch_size, .sampler = part_of(),
                           .workers = options->workers, .generator = &kept->generator,
                           .streamed = options->streamed, .device = net->device);
    }
    if (kept->loader == NULL) {
        return TD_E_NOMEM;
    }
    td_status status = run(net, kept->loader, rounds, options, sums);
    /* The end, from which the next evaluation begins anew. */
    td_batch none;
    bool ended = status == TD_OK && !sums->stopped && !td_loader_next(kept->loader, &none);
    if (kept == &own || !ended || !td_loader_is_resident(kept->loader)) {
        evaluate_forget(kept);
    }
    return status;
}

void evaluate_forget(evaluate_kept *kept)
{
    td_loader_close(kept->loader);
    kept->loader = NULL;
}

td_status evaluate(td_module *net, const td_dataset *dataset, const evaluate_options *options,
                   evaluation *result)
{
    *result = (evaluation){ 0 };
    if (td_dist_is_initialized()) {
        TD_TRY(td_broadcast_buffers(net));
    }
    TD_TRY(run_part(net, dataset, options, result));
    return total(result);
}

td_status check_loss(double loss, int64_t epoch, int64_t step, const char *lr)
{
    if (isfinite(loss)) {
        return TD_OK;
    }
    return td_fail(TD_E_ARG,
                   "the loss is %g in epoch %" PRId64 ", step %" PRId64
                   ": try a lower %s; --debug-nan names the operation where it began",
                   loss, epoch, step, lr);
}
