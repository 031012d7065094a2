#include "apps/common/train.h"

#include "apps/common/ranks.h"
#include "apps/common/signals.h"
#include "apps/common/train_save.h"

#include <stdio.h>

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
    return (double)r->state.correct / (double)r->state.seen;
}

bool train_is_due(int64_t number, int64_t every)
{
    return every > 0 && number % every == 0;
}

/* ---- a step ---- */

/* The means that are shown are those of all ranks, and if one of them is asked to stop, all do:
 * they must take the same number of steps. */
static td_status count_step(train_run *r, double loss, int64_t correct, int64_t samples)
{
    double own[] = { loss, (double)correct, (double)samples, stop_requested() };
    double all[] = { own[0], own[1], own[2], own[3] };
    TD_TRY(ranks_sum(all, 4));
    const double *shown = r->args.shard ? own : all;
    r->state.batch++;
    r->state.loss_sum += r->args.shard ? loss : all[0] / td_dist_world_size();
    r->state.correct += (int64_t)shown[1];
    r->state.seen += (int64_t)shown[2];
    r->step_samples = (int64_t)all[2];
    r->stop = all[3] > 0;
    return TD_OK;
}

static td_status check_step(const train_run *r, double loss)
{
    TD_TRY(r->ddp_status); /* a peer may have died */
    return check_loss(loss, r->state.epoch + 1, r->state.batch + 1);
}

/* One batch: forward, backward, step. */
static td_status train_step(train_run *r, const td_batch *batch, double *value)
{
    td_step_begin();
    td_tensor *logits = td_forward(r->net, batch->x);
    td_tensor *loss = td_cross_entropy(logits, batch->y);
    int64_t correct = count_correct(logits, batch);
    *value = td_item(loss);
    td_status status = check_step(r, *value);
    if (status == TD_OK) {
        td_zero_grad(r->optim);
        td_backward(loss);
        status = r->ddp_status;
    }
    if (status == TD_OK) {
        td_optim_step(r->optim);
    }
    td_step_end();
    TD_TRY(status);
    return count_step(r, *value, correct, batch->size);
}

/* ---- epochs ---- */

/* The live line, what the task prints and logs, and a checkpoint if it is time for one. (After an
 * epoch's last step that comes later: there the next epoch begins.) */
static td_status after_step(train_run *r, double loss)
{
    int64_t steps = td_loader_batches(r->loader);
    progress_step(&r->progress, &(progress_point){ .epoch = r->state.epoch + 1,
                                                   .epochs = r->args.epochs,
                                                   .step = r->state.batch,
                                                   .steps = steps,
                                                   .batch = r->step_samples,
                                                   .loss = train_epoch_loss(r),
                                                   .accuracy = train_epoch_accuracy(r) });
    TD_TRY(r->task->step_done(r, loss));
    bool due = train_is_due(train_steps_done(r), r->args.save_every_steps);
    return due && r->state.batch < steps ? train_save_latest(r) : TD_OK;
}

/* The rest of the running epoch, or less if a signal asks to stop. */
static td_status run_epoch(train_run *r)
{
    double loss;
    if (!r->no_set_epoch) {
        td_loader_set_epoch(r->loader, (uint64_t)r->state.epoch);
    }
    td_loader_skip_batches(r->loader, r->state.batch);
    for (td_batch batch; !r->stop && td_loader_next(r->loader, &batch);) {
        td_trace_begin("step");
        td_status status = train_step(r, &batch, &loss);
        td_trace_end();
        TD_TRY(status);
        TD_TRY(after_step(r, loss));
    }
    return td_loader_status(r->loader);
}

static td_status run_epochs(train_run *r)
{
    char path[TRAIN_PATH_BYTES];
    while (r->state.epoch < r->args.epochs && !r->stop) {
        r->began = seconds_now();
        r->seen_before = r->state.seen;
        r->waited = td_loader_wait_seconds(r->loader);
        TD_TRY(run_epoch(r));
        if (r->state.batch < td_loader_batches(r->loader)) {
            break; /* asked to stop in mid-epoch */
        }
        path[0] = '\0';
        r->task->epoch_done(r, seconds_now() - r->began, path);
        train_epoch_begin(&r->state, r->state.epoch + 1);
        TD_TRY(train_save_epoch(r, path));
    }
    return r->stop ? train_save_interrupted(r) : train_load_on_all_ranks(r);
}

/* ---- the whole ---- */

static void on_ddp_error(td_status status, const char *message, void *user)
{
    train_run *r = user;
    r->ddp_status = td_fail(status, "%s", message);
}

static td_status prepare(train_run *r)
{
    if (r->net == NULL || r->optim == NULL || r->loader == NULL) {
        return TD_E_NOMEM; /* or what else has kept the lesson from making them */
    }
    if (td_is_ddp(r->net)) {
        td_ddp_on_error(r->net, on_ddp_error, r);
    }
    train_args_model(&r->args, r->net, r->optim);
    TD_TRY(train_resume(r));
    if (r->args.log_dir != NULL) {
        TD_TRY(r->task->log_open(r));
    }
    return r->args.summary && ranks_first() ? td_summary(r->net, r->task->sample, stdout) : TD_OK;
}

static td_status test(train_run *r)
{
    evaluation result;
    TD_TRY(evaluate(r->net, r->test, TEST_BATCH, (int)r->args.workers, &result));
    return r->task->tested(r, &result);
}

td_status train_loop(train_run *r)
{
    TD_TRY(prepare(r));
    signals_catch(ranks_first());
    progress_begin(&r->progress, ranks_first(),
                   r->args.epochs * td_loader_batches(r->loader) - train_steps_done(r));
    if (r->task->begins != NULL) {
        r->task->begins(r);
    }
    td_status status = run_epochs(r);
    progress_end(&r->progress);
    signals_restore();
    TD_TRY(status);
    if (!r->stop) {
        TD_TRY(test(r));
    }
    if (td_is_ddp(r->net) && r->task->shows_figures && ranks_first()) {
        td_ddp_print_figures(r->net, stdout);
    }
    return r->args.trace != NULL ? td_trace_close() : TD_OK;
}
