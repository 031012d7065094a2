/* Tests a model during training: td_evaluate with the task's measure, shared by all ranks. */
#include "apps/tools/common/signals.h"
#include "apps/tools/common/train.h"

td_tensor *train_measure(td_module *net, const td_batch *batch, td_tensor **sums, void *user)
{
    const train_run *r = user;
    int64_t k = r->args.recipe.top_k;
    if (r->task->measure != NULL) {
        return r->task->measure(net, batch, sums, user);
    }
    td_tensor *logits = td_forward(net, batch->x);
    sums[0] = td_count_top(logits, batch->y, 1);
    sums[1] = k > 0 ? td_count_top(logits, batch->y, k) : NULL;
    return td_cross_entropy(logits, batch->y,
                            .label_smoothing = net->training ? r->args.recipe.label_smoothing : 0);
}

/* Whether a signal asks some rank to stop, where a resumed run validates again. */
static void ask_to_stop(train_run *r)
{
    double asked = stop_requested();
    if (r->task->validate != NULL) {
        r->stop = ranks_sum(&asked, 1) == TD_OK && asked > 0;
    }
}

/* Ranks ask together, so only after batches that each of them has, and that are not the last. */
static bool batch_done(const td_evaluation *so_far, void *user)
{
    train_run *r = user;
    if (r->task->batch_tested != NULL) {
        r->task->batch_tested(r, so_far, td_loader_batches(r->tests.loader));
    }
    if (so_far->batches < r->tests.common) {
        ask_to_stop(r);
    }
    return !r->stop;
}

/* Opens this rank's part, no sample twice, or the numbers would be wrong. With leaves no batch
 * depends on the number of ranks. */
static td_status open_part(train_run *r, int64_t batch_size)
{
    td_deal deal = train_readers(r);
    int64_t length = r->tests.data->length, fewest = length / deal.world_size;
    bool leaves = td_leaf_count(r->net) > 0;
    r->tests.common = leaves ? (length + batch_size - 1) / batch_size / deal.world_size
                             : (fewest + batch_size - 1) / batch_size;
    if (r->tests.loader != NULL) {
        return TD_OK;
    }
    /* A loader draws from its generator even when it does not shuffle. */
    td_generator_seed(&r->tests.generator, 0);
    bool alone = !td_dist_is_initialized();
    deal.no_padding = true;
    deal.each = leaves ? batch_size : 0;
    r->tests.loader =
        td_loader_open(r->tests.data, .batch_size = batch_size, .workers = (int)r->args.workers,
                       .sampler = alone ? NULL : td_distributed_sampler(.deal = deal),
                       .generator = &r->tests.generator, .streamed = r->args.compute.streamed,
                       .device = r->net->device);
    return r->tests.loader != NULL ? TD_OK : TD_E_NOMEM;
}

/* A loader whose images lie on a GPU stays for the next evaluation, so that they are sent once. */
static void close_part(train_run *r)
{
    if (r->stop || !td_loader_is_resident(r->tests.loader)) {
        td_loader_close(r->tests.loader);
        r->tests.loader = NULL;
    }
}

td_status train_check_evaluation(const train_run *r, const td_evaluation *e)
{
    TD_CHECK(e->seen != 0, TD_E_ARG, "no %s was tested", r->task->tokens ? "token" : "image");
    TD_CHECK(isfinite(e->loss), TD_E_ARG,
             "the test's loss is %g over %" PRId64
             " %s: weights or running statistics are so large, or so far from the "
             "data, that numbers overflow: try a lower %s, or larger batches; "
             "--debug-nan names the operation where it began",
             e->loss, e->seen, r->task->tokens ? "tokens" : "images", r->args.words.lr);
    return TD_OK;
}

td_status train_evaluate(train_run *r, int64_t batch_size, td_evaluation *e)
{
    ask_to_stop(r);
    if (r->stop) {
        return TD_OK;
    }
    TD_TRY(open_part(r, batch_size));
    notes_swap(r->made.ema);
    td_group *group = train_is_cut(r) ? td_mesh_group(r->ranks.mesh, "rep+dp") : NULL;
    *e = td_evaluate(r->net, r->tests.loader, .measure = train_measure, .batch_done = batch_done,
                     .user = r, .group = group);
    notes_swap(r->made.ema);
    close_part(r);
    bool no_numbers = e->status == TD_E_ARG && !isfinite(e->loss); /* train_check_evaluation's */
    return no_numbers ? TD_OK : e->status;
}

td_status train_validate(train_run *r, int64_t batch_size, td_evaluation *e)
{
    TD_TRY(train_evaluate(r, batch_size, e));
    if (r->stop) {
        e->seen = 0;
        return TD_OK;
    }
    TD_TRY(train_log_test(r, e));
    td_status usable = train_check_evaluation(r, e);
    if (usable != TD_OK && e->seen > 0 && r->state.epoch + 1 < r->args.epochs) {
        progress_print(&r->progress, "warning: after epoch %" PRId64 " of %" PRId64 " %s",
                       r->state.epoch + 1, r->args.epochs, td_last_error());
        e->seen = 0;
        return TD_OK;
    }
    return usable;
}
