/* Tests a model during training: rounds over a dataset that are shared by all ranks. */
#include "apps/tools/common/ranks.h"
#include "apps/tools/common/signals.h"
#include "apps/tools/common/train.h"
#include "dist/comm/collectives.h"
#include "dist/ddp/extra.h"
#include "tensor/extend.h"
#include "nn/module.h"
#include "data/inspect.h"

#include <inttypes.h>
#include <math.h>

static void add_batch(const train_run *r, const td_batch *batch, evaluation *sums)
{
    int64_t k = r->recipe.top_k;
    td_step_begin();
    td_tensor *logits = td_forward(r->net, batch->x);
    sums->loss += td_item(td_cross_entropy(logits, batch->y)) * (double)batch->size;
    sums->correct += (int64_t)td_item(td_count_top(logits, batch->y, 1));
    sums->correct_k += k > 0 ? (int64_t)td_item(td_count_top(logits, batch->y, k)) : 0;
    sums->count += batch->size;
    td_step_end();
}

/* Means for who watches; the sums stay sums. */
static void tell(train_run *r, const evaluation *sums, int64_t batch)
{
    if (r->task->batch_tested != NULL) {
        evaluation so_far = *sums;
        so_far.loss /= (double)sums->count;
        r->task->batch_tested(r, &so_far, batch, td_loader_batches(r->test_loader));
    }
}

/* Ranks ask together, each as often as the one with most batches. */
static td_status ask_to_stop(const train_run *r, evaluation *sums)
{
    double asked = stop_requested();
    if (r->task->validate != NULL) {
        TD_TRY(ranks_sum(&asked, 1));
        sums->stopped = asked > 0;
    }
    return TD_OK;
}

/* One of the rounds in which each rank takes a batch, if it has one left. */
static td_status run_round(train_run *r, int64_t at, evaluation *sums)
{
    td_batch batch;
    TD_TRY(ask_to_stop(r, sums));
    if (sums->stopped || at >= td_loader_batches(r->test_loader)) {
        return TD_OK;
    }
    if (!td_loader_next(r->test_loader, &batch)) {
        return td_loader_status(r->test_loader);
    }
    add_batch(r, &batch, sums);
    tell(r, sums, at + 1);
    return TD_OK;
}

static td_status run(train_run *r, int64_t rounds, evaluation *sums)
{
    td_status status = td_unshard(r->net); /* ranks may have different numbers of batches */
    td_eval(r->net);
    td_no_grad_begin();
    for (int64_t i = 0; i < rounds && status == TD_OK && !sums->stopped; i++) {
        status = run_round(r, i, sums);
    }
    td_no_grad_end();
    td_train(r->net);
    td_reshard(r->net);
    return status;
}

/* Opens this rank's part, no sample twice, or the numbers would be wrong. */
static td_status open_part(train_run *r, int64_t batch_size)
{
    if (r->test_loader != NULL) {
        return TD_OK;
    }
    /* A loader draws from its generator even when it does not shuffle. */
    td_generator_seed(&r->test_generator, 0);
    bool alone = !td_dist_is_initialized();
    r->test_loader = td_loader_open(
        r->test, .batch_size = batch_size, .workers = (int)r->args.workers,
        .sampler = alone ? NULL : td_distributed_sampler(.no_padding = true),
        .generator = &r->test_generator, .streamed = r->args.streamed, .device = r->net->device);
    return r->test_loader != NULL ? TD_OK : TD_E_NOMEM;
}

/* A loader whose images lie on a GPU stays for the next evaluation, so that they are sent once. */
static void close_part(train_run *r, bool whole)
{
    td_batch none;
    bool ended = whole && !td_loader_next(r->test_loader, &none);
    if (!ended || !td_loader_is_resident(r->test_loader)) {
        td_loader_close(r->test_loader);
        r->test_loader = NULL;
    }
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static td_status evaluate(train_run *r, int64_t batch_size, evaluation *e)
{
    int64_t most = divide_up(r->test->length, td_dist_world_size());
    *e = (evaluation){ 0 };
    if (td_dist_is_initialized()) {
        TD_TRY(td_broadcast_buffers(r->net));
    }
    TD_TRY(open_part(r, batch_size));
    td_status status = run(r, divide_up(most, batch_size), e);
    close_part(r, status == TD_OK && !e->stopped);
    TD_TRY(status);
    double sums[] = { (double)e->correct, (double)e->correct_k, (double)e->count, e->loss };
    TD_TRY(ranks_sum(sums, 4));
    *e = (evaluation){ (int64_t)sums[0], (int64_t)sums[1], (int64_t)sums[2], sums[3] / sums[2],
                       e->stopped };
    return TD_OK;
}

td_status train_check_evaluation(const train_run *r, const evaluation *e)
{
    if (e->count == 0) {
        return td_fail(TD_E_ARG, "no image was tested");
    }
    return isfinite(e->loss)
               ? TD_OK
               : td_fail(TD_E_ARG,
                         "the test's loss is %g over %" PRId64
                         " images: weights or running statistics are so large, or so far from the "
                         "data, that numbers overflow: try a lower %s, or larger batches; "
                         "--debug-nan names the operation where it began",
                         e->loss, e->count, r->args.words.lr);
}

td_status train_evaluate(train_run *r, int64_t batch_size, evaluation *result)
{
    if (r->ema == NULL) {
        return evaluate(r, batch_size, result);
    }
    td_ema_swap(r->ema);
    td_status status = evaluate(r, batch_size, result);
    td_ema_swap(r->ema);
    return status;
}
