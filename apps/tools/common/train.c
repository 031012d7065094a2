/* The training loop of cifar_resnet18, train_net and gpt. */
#include "apps/tools/common/train.h"
#include "tensor/clock.h"

#include "apps/tools/common/signals.h"
#include "dist/ddp/extra.h"
#include "dist/trace.h"
#include "nn/extra/inspect.h"
#include "tensor/tune/tune.h"
#include "tensor/kernels/kernel_types.h"

enum { TEST_BATCH = 256 };

int64_t train_steps_done(const train_run *r)
{
    return r->state.epoch * td_loader_batches(r->loader) + r->state.batch;
}

double train_epoch_loss(const train_run *r)
{
    return r->state.loss_sum / (double)r->state.batch;
}

double train_epoch_accuracy(const train_run *r)
{
    return r->task->tokens ? NAN : r->state.sums[0] / (double)r->state.seen;
}

double train_epoch_accuracy_k(const train_run *r)
{
    return r->task->tokens ? NAN : r->state.sums[1] / (double)r->state.seen;
}

bool train_is_due(int64_t number, int64_t every)
{
    return every > 0 && number % every == 0;
}

/* ---- a step ---- */

/* The means that are shown are those of all ranks, and if one of them is asked to stop, all do:
 * they must take the same number of steps. If the disk has a checkpoint that was saved in the
 * background, the program says so. */
static td_status count_step(train_run *r, const double *results, int64_t targets)
{
    bool writes = r->saving.thread != NULL && !td_saving_is_written(r->saving.thread);
    double sums[6] = { results[RESULT_LOSS], results[RESULT_SUMS], results[RESULT_SUMS + 1] };
    sums[3] = (double)targets, sums[4] = stop_requested(), sums[5] = writes;
    TD_TRY(ranks_sum(sums, 6));
    for (int i = 1; i < 4; i++) { /* of each batch once */
        sums[i] /= train_copies(r);
    }
    r->state.batch++;
    r->state.loss_sum +=
        r->ranks.leaves.loss != NULL ? results[RESULT_LOSS] : sums[0] / td_dist_world_size();
    r->state.sums[0] += sums[1];
    r->state.sums[1] += sums[2];
    r->state.seen += (int64_t)sums[3];
    r->clock.step_targets = (int64_t)sums[3];
    r->stop = sums[4] > 0;
    return sums[5] == 0 ? train_save_finish(r) : TD_OK;
}

td_status train_check_loss(const train_run *r, double loss)
{
    TD_TRY(r->ranks.status); /* a peer may have died */
    TD_CHECK(isfinite(loss), TD_E_ARG,
             "the loss is %g in epoch %" PRId64 ", step %" PRId64
             ": try a lower %s; --debug-nan names the operation where it began",
             loss, r->state.epoch + 1, r->state.batch + 1, r->args.words.lr);
    return TD_OK;
}

int64_t train_group_size(const train_run *r)
{
    return r->args.recipe.accumulate > 0 ? r->args.recipe.accumulate : 1;
}

train_group train_group_of(const train_run *r, int64_t batch)
{
    int64_t most = train_group_size(r), at = batch % most;
    int64_t left = td_loader_batches(r->loader) - (batch - at);
    int64_t size = most < left ? most : left;
    return (train_group){ td_loader_share(r->loader, batch, most), at == 0, at == size - 1 };
}

int64_t train_batches_asked(const train_run *r)
{
    return r->state.batch + runner_waiting(&r->runner);
}

/* Whether no batch's gradient waits for others: here a run may stop and be saved. */
static bool between_groups(const train_run *r)
{
    return train_batches_asked(r) % train_group_size(r) == 0;
}

/* The part of the group's mean loss, in which all samples count alike. */
static td_tensor *part_of(td_tensor *loss, train_group group)
{
    return group.share < 1 ? td_mul_scalar(loss, group.share) : loss;
}

/* After gradients beyond f16 the step is skipped: here, or in a captured step by the device. */
void train_optimize(train_run *r)
{
    if (!td_scaler_unscale(r->made.scaler, td_parameters(r->net))) {
        return;
    }
    if (r->args.recipe.clip_grad_norm > 0) {
        td_clip_grad_norm(td_parameters(r->net), r->args.recipe.clip_grad_norm);
    }
    td_optim_step(r->optim);
    if (r->made.ema != NULL) {
        td_ema_update(r->made.ema);
    }
}

/* Forward, backward, and at a group's end a step; an eager one needs a loss that is finite. */
static td_status learn(void *user, td_tensor *const *inputs, td_tensor **results)
{
    train_run *r = user;
    train_group group = train_group_of(r, train_batches_asked(r));
    bool unsynced = td_is_ddp(r->net) && !group.last; /* ranks exchange once for each group */
    td_batch batch = { .x = inputs[0], .y = inputs[1], .size = inputs[0]->shape[0] };
    td_tensor *sums[TD_SUMS] = { NULL };
    td_loader_make(r->loader);
    TD_TRY(train_hash(r, TRAIN_BEFORE));
    if (unsynced) {
        td_ddp_no_sync_begin(r->net);
    }
    results[RESULT_LOSS] = train_measure(r->net, &batch, sums, r);
    for (int i = 0; i < TRAIN_SUMS; i++) { /* without a sum, a number that is not shown */
        results[RESULT_SUMS + i] = sums[i] != NULL ? sums[i] : results[RESULT_LOSS];
    }
    bool eager = r->runner.captured == NULL;
    td_status status = eager ? train_check_loss(r, td_item(results[RESULT_LOSS])) : TD_OK;
    if (status == TD_OK && group.first) {
        td_zero_grad(r->optim);
    }
    if (status == TD_OK) {
        td_backward(td_scaler_loss(r->made.scaler, part_of(results[RESULT_LOSS], group)));
        results[RESULT_OUTCOME] = r->made.scaler != NULL ? td_scaler_outcome(r->made.scaler) : NULL;
    }
    if (unsynced) {
        td_ddp_no_sync_end(r->net);
    }
    TD_TRY(status);
    TD_TRY(r->ranks.status);
    TD_TRY(train_hash(r, TRAIN_GRADIENTS));
    if (group.last) {
        train_optimize(r);
    }
    return train_hash(r, TRAIN_AFTER);
}

/* ---- epochs ---- */

/* The live line, what the task prints and logs, and a checkpoint if one is due in mid-epoch. */
static td_status after_step(train_run *r, double loss)
{
    int64_t steps = td_loader_batches(r->loader);
    progress_step(&r->progress, &(progress_point){ .epoch = r->state.epoch + 1,
                                                   .epochs = r->args.epochs,
                                                   .step = r->state.batch,
                                                   .steps = steps,
                                                   .batch = r->clock.step_targets,
                                                   .loss = train_epoch_loss(r),
                                                   .accuracy = train_epoch_accuracy(r) });
    r->task->step_done(r, loss);
    double waited = td_loader_wait_seconds(r->loader);
    TD_TRY(train_log_step(r, loss, waited - r->clock.step_waited));
    r->clock.step_waited = waited;
    bool due =
        train_is_due(train_steps_done(r), r->args.files.save_every_steps) && between_groups(r);
    return due && r->state.batch < steps ? train_save_latest(r) : TD_OK;
}

static td_status take_results(train_run *r)
{
    double results[RESULTS] = { 0 };
    int64_t batch = r->state.batch;
    bool last = train_group_of(r, batch).last; /* otherwise the outcome is that of a step before */
    TD_TRY(runner_next(&r->runner, results));
    TD_TRY(train_sum_leaves(r, &results[RESULT_LOSS]));
    TD_TRY(train_check_loss(r, results[RESULT_LOSS]));
    bool hopeless = last && results[RESULT_OUTCOME] == TD_SCALE_HOPELESS; /* the smallest scale */
    TD_CHECK(!hopeless, TD_E_ARG,
             "gradients are not finite in epoch %" PRId64 ", step %" PRId64
             ", however small the loss is scaled, so that no step can be taken: --debug-nan names "
             "the operation where it began; try a lower %s, or %s bf16",
             r->state.epoch + 1, r->state.batch + 1, r->args.words.lr, r->args.words.precision);
    r->so_far.optim_steps += last && results[RESULT_OUTCOME] == TD_SCALE_TAKEN;
    TD_TRY(count_step(r, results, r->so_far.targets[batch % RUNNER_DEPTH]));
    TD_TRY(r->ranks.elastic != NULL ? train_commit(r) : TD_OK);
    return after_step(r, results[RESULT_LOSS]);
}

/* What a batch's step depends on. The last group of an epoch may have fewer samples, always the
 * same number. */
static int kind_of(const train_run *r, train_group group)
{
    bool usual = group.share == 1.0 / (double)train_group_size(r);
    return group.first + 2 * group.last + 4 * !usual;
}

/* With --graph what comes after a step comes some steps later, except where the weights of just
 * that step are to be saved. */
static td_status one_step(train_run *r, const td_batch *batch)
{
    int64_t now = train_batches_asked(r);
    if (r->task->step_begins != NULL) {
        r->task->step_begins(r, now);
    }
    r->so_far.targets[now % RUNNER_DEPTH] = batch->size * td_dataset_targets(r->train);
    TD_TRY(runner_step(&r->runner, kind_of(r, train_group_of(r, now)), batch));
    TD_TRY(train_autotune_after_step(r));
    int64_t asked = train_steps_done(r) + runner_waiting(&r->runner);
    bool all = train_is_due(asked, r->args.files.save_every_steps);
    while (runner_full(&r->runner) || (all && runner_waiting(&r->runner) > 0)) {
        TD_TRY(take_results(r));
    }
    return TD_OK;
}

/* A loader that an elastic run has opened in mid-epoch draws again what the epoch's first one has
 * drawn. */
static bool next_batch(train_run *r, td_batch *batch)
{
    td_generator *g = td_default_generator(), before = *g;
    bool there = td_loader_next(r->loader, batch);
    if (r->ranks.elastic != NULL && r->state.batch > 0) {
        *g = before;
    }
    return there;
}

/* The rest of the running epoch, or less if a signal asks to stop, or the world ends. */
static td_status run_epoch(train_run *r)
{
    if (r->state.batch == td_loader_batches(r->loader) &&
        td_loader_epoch(r->loader) > (uint64_t)r->state.epoch) {
        return TD_OK; /* resumed behind the last batch of an epoch that was not tested */
    }
    td_loader_seek(r->loader, (uint64_t)r->state.epoch, r->state.batch);
    for (td_batch batch;
         !(r->stop && between_groups(r)) && train_stands(r) && next_batch(r, &batch);) {
        td_trace_begin("step");
        td_status status = one_step(r, &batch);
        td_trace_end();
        TD_TRY(status);
    }
    while (runner_waiting(&r->runner) > 0) {
        TD_TRY(take_results(r));
    }
    return td_loader_status(r->loader);
}

/* Where this epoch's checkpoint goes, by --save and --save-every; "": it has none. */
static void name_epoch(const train_run *r, char *path)
{
    const train_files *files = &r->args.files;
    int64_t epoch = r->state.epoch + 1;
    bool last = epoch == r->args.epochs && files->save_every > 0;
    bool due = files->save != NULL && (last || train_is_due(epoch, files->save_every));
    snprintf(path, TRAIN_PATH_BYTES, "%s", due ? files->save : "");
}

static td_status run_epochs(train_run *r)
{
    char path[TRAIN_PATH_BYTES];
    if (r->state.epoch >= r->args.epochs) {
        progress_print(&r->progress, "all %" PRId64 " epochs are done", r->args.epochs);
    }
    while (r->state.epoch < r->args.epochs && !r->stop) {
        if (r->state.batch == 0 || r->clock.began == 0) { /* not begun in an earlier world */
            r->clock.began = td_clock();
            r->clock.seen_before = r->state.seen;
        }
        r->clock.waited = r->clock.step_waited = td_loader_wait_seconds(r->loader);
        if (r->task->epoch_begins != NULL) {
            r->task->epoch_begins(r);
        }
        progress_epoch(&r->progress, td_loader_batches(r->loader));
        TD_TRY(run_epoch(r));
        if (r->state.batch < td_loader_batches(r->loader) || !train_stands(r)) {
            break; /* asked to stop in mid-epoch, or the next world goes on */
        }
        name_epoch(r, path);
        r->task->epoch_done(r, td_clock() - r->clock.began, path);
        bool validates = r->task->validate != NULL;
        td_status tested = validates && !r->stop ? r->task->validate(r) : TD_OK;
        if (validates && r->stop) {
            break; /* the resumed run validates: that may take long */
        }
        TD_TRY(train_save_finish(r)); /* of this epoch */
        train_epoch_begin(&r->state, r->state.epoch + 1);
        TD_TRY(train_save_epoch(r, path));
        if (tested != TD_OK) { /* what was trained is kept */
            return train_save_finish(r) != TD_OK ? TD_E_IO : tested;
        }
    }
    TD_TRY(train_save_finish(r));
    return r->stop ? train_save_interrupted(r) : TD_OK;
}

/* ---- the whole ---- */

/* After a failure, too, the last checkpoint is completed; it is told of where no other ranks would
 * have to agree. */
static td_status finish_saving(train_run *r, td_status status)
{
    if (status == TD_OK || r->saving.thread == NULL) {
        return status;
    }
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", td_last_error());
    if (r->saving.together) {
        td_saving_cancel(&r->saving.thread);
    } else if (train_save_finish(r) != TD_OK) {
        fprintf(stderr, "%s: %s\n", r->app, td_last_error());
    }
    return td_fail(status, "%s", reason);
}

static void on_ddp_error(td_status status, const char *message, void *user)
{
    train_run *r = user;
    r->ranks.status = td_fail(status, "%s", message);
}

/* What the program has made, and what belongs to it. */
static td_status prepare(train_run *r)
{
    if (r->net == NULL || r->optim == NULL) {
        return TD_E_NOMEM; /* or what else has kept the program from making them */
    }
    if (strcmp(r->args.compute.recompute, "none") != 0) {
        bool blocks = strcmp(r->args.compute.recompute, "block") == 0;
        td_model_recompute(r->net, blocks ? TD_PART_BLOCK : TD_PART_STAGE);
    }
    bool averages = r->args.recipe.ema_decay > 0;
    bool scales = td_math_now().precision == TD_PRECISION_FP16;
    r->made.ema =
        averages ? td_ema_new(r->net, .decay = r->args.recipe.ema_decay, .warmup = true) : NULL;
    r->made.scaler = scales ? td_scaler_new() : NULL;
    return (averages && r->made.ema == NULL) || (scales && r->made.scaler == NULL) ? TD_E_NOMEM
                                                                                   : TD_OK;
}

/* What depends on the world. */
static td_status open_here(train_run *r)
{
    if (td_is_ddp(r->net) && r->ranks.elastic == NULL) {
        td_ddp_on_error(r->net, on_ddp_error, r);
    }
    r->loader = r->ranks.load(r);
    return r->loader != NULL ? train_begin_leaves(r) : TD_E_NOMEM;
}

/* Where nothing has refused the run. */
static td_status accept(train_run *r, bool first)
{
    TD_TRY(r->task->accepted != NULL ? r->task->accepted(r) : TD_OK);
    TD_TRY(train_hash_open(r));
    TD_TRY(r->args.files.log_dir != NULL ? train_log_open(r) : TD_OK);
    return first && r->args.summary ? train_show_summary(r) : TD_OK;
}

static td_status test(train_run *r)
{
    td_evaluation result;
    if (r->tests.data == NULL || r->task->tested == NULL) {
        return TD_OK;
    }
    TD_TRY(train_evaluate(r, TEST_BATCH, &result));
    if (r->stop) {
        return TD_OK; /* a signal has ended the test: there is no whole result */
    }
    TD_TRY(train_check_evaluation(r, &result));
    return r->task->tested(r, &result);
}

/* A run too short for the scaler to find its scale has learned nothing, unless it was resumed. */
static td_status check_learned(const train_run *r)
{
    if (r->made.scaler == NULL || r->so_far.optim_steps > 0 || r->args.files.resume != NULL) {
        return TD_OK;
    }
    td_scaler_state now = td_scaler_now(r->made.scaler);
    TD_CHECK(
        now.skipped == 0, TD_E_ARG,
        "nothing was learned: the gradients of all %" PRId64
        " steps were beyond f16, though the loss was scaled by less in each, down to %g: train "
        "for more steps (--epochs, a smaller --batch-size), with --precision bf16, or in fp32",
        now.skipped, now.scale);
    return TD_OK;
}

/* --save-model: the weights that were tested. */
static td_status save_model(train_run *r)
{
    const char *path = r->args.files.save_model;
    if (path == NULL || !train_saves_model(r)) {
        return TD_OK;
    }
    TD_TRY(r->task->save_model != NULL ? r->task->save_model(r, path)
                                       : notes_save_model(&r->notes, path, r->net, r->made.ema));
    td_printf_rank0("model saved: %s\n", path);
    return TD_OK;
}

static td_status train_epochs(train_run *r, bool first)
{
    td_autotune_first_step(); /* --summary's was none */
    signals_catch(ranks_first());
    progress_begin(&r->progress, ranks_first() && !r->args.quiet,
                   r->args.epochs * td_loader_batches(r->loader) - train_steps_done(r));
    r->progress.tokens = r->task->tokens;
    if (first && r->task->begins != NULL) {
        r->task->begins(r);
    }
    r->runner = (runner){ .step = train_has_stages(r)            ? train_learn_stages
                                  : r->ranks.leaves.loss != NULL ? train_learn_leaves
                                                                 : learn,
                          .user = r,
                          .results = r->made.scaler != NULL ? RESULTS : RESULT_OUTCOME };
    td_status status = r->args.compute.graph ? runner_capture(&r->runner, r->args.device, r->loader,
                                                              r->args.words.graph)
                                             : TD_OK;
    status = status == TD_OK ? finish_saving(r, run_epochs(r)) : status;
    progress_end(&r->progress);
    runner_end(&r->runner);
    if (r->ranks.elastic == NULL || (status == TD_OK && train_stands(r))) {
        signals_restore(); /* otherwise the next world goes on */
    }
    return status;
}

/* What comes after the training. */
static td_status finish(train_run *r)
{
    if (!r->stop) {
        TD_TRY(check_learned(r));
        TD_TRY(test(r));
        TD_TRY(save_model(r));
    }
    if (td_is_ddp(r->net) && ranks_first() && !r->stop && !r->args.quiet && !train_simulates()) {
        td_ddp_print_stats(r->net, stdout);
    }
    TD_TRY(train_report_end(r));
    return train_print_fingerprint(r);
}

/* A world of an elastic run. */
static td_status train_here(train_run *r, bool first)
{
    TD_TRY(open_here(r));
    TD_TRY(accept(r, first));
    TD_TRY(train_epochs(r, first));
    return train_stands(r) ? finish(r) : TD_OK;
}

td_status train_loop(train_run *r, td_loader *(*load)(train_run *r))
{
    r->ranks.load = load;
    TD_TRY(prepare(r));
    if (ranks_elastic()) {
        TD_TRY(train_resume(r));
        return train_worlds(r, train_here);
    }
    TD_TRY(open_here(r));
    train_hook_tell(r);
    train_shard_tell(r);
    TD_TRY(train_resume(r));
    TD_TRY(accept(r, true));
    TD_TRY(train_epochs(r, true));
    return finish(r);
}
