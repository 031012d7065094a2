/* What a run of train_net prints, validates, logs and saves. */
#include "apps/tools/train_net/classify.h"
#include "tensor/clock.h"

static classify_run *classifier(train_run *r)
{
    return (classify_run *)r;
}

/* OUT_DIR/CFG_DEST, when nothing has refused the run: that of an earlier run is not lost before. */
static td_status accepted(train_run *r)
{
    const settings *s = &classifier(r)->s;
    char path[2 * CLI_TEXT_BYTES];
    snprintf(path, sizeof path, "%s/%s", s->out_dir, s->cfg_dest);
    td_status status = ranks_first() ? config_write(&r->args, path) : TD_OK;
    return status == TD_OK ? TD_OK : td_fail_context(status, "OUT_DIR");
}

/* ---- training ---- */

static void begins(train_run *r)
{
    const settings *s = &classifier(r)->s;
    char ranks[64] = "", steps[64] = "";
    if (td_dist_world_size() > 1) {
        snprintf(ranks, sizeof ranks, " on each of %d ranks", td_dist_world_size());
    }
    if (r->args.recipe.accumulate > 1) {
        snprintf(steps, sizeof steps, ", %" PRId64 " of them a step", r->args.recipe.accumulate);
    }
    progress_print(&r->progress,
                   "tandem %s: %s, %" PRId64 " classes, %" PRId64 " parameters\n"
                   "data: %s; batch %" PRId64 "%s%s, lr %g, seed %" PRId64
                   ", %s; %s, %d threads, %" PRId64 " loader threads",
                   TANDEM_VERSION, s->model.arch, s->model.num_classes, td_parameter_count(r->net),
                   r->data_name, r->args.batch_size, ranks, steps, r->args.lr, r->args.seed,
                   train_args_arithmetic(), td_device_name(r->args.device),
                   td_threads(r->args.device), r->args.workers);
    if (!s->cudnn.benchmark || s->cudnn.deterministic || !s->train.pin_memory) {
        progress_print(&r->progress,
                       "CUDNN.BENCHMARK, CUDNN.DETERMINISTIC and TRAIN.PIN_MEMORY have an effect "
                       "only on GPUs; results here are deterministic always");
    }
}

static void epoch_begins(train_run *r)
{
    classify_run *c = classifier(r);
    td_optim_set_lr(r->optim, settings_lr(&c->s, &r->args, r->state.epoch));
    c->first_batch = r->state.batch;
    c->step_at = r->clock.began;
}

static void print_step(train_run *r, double loss, double now, double waited)
{
    const classify_run *c = classifier(r);
    const train_state *st = &r->state;
    double steps = (double)(st->batch - c->first_batch);
    char eta[32];
    progress_eta(&r->progress, eta, sizeof eta);
    progress_print(&r->progress,
                   "Epoch [%" PRId64 "/%" PRId64 "] [%4" PRId64 "/%" PRId64
                   "]  lr %.6f  ETA %s  Time %.3f (%.3f)  Data %.3f (%.3f)  Loss %.4f (%.4f)  "
                   "Acc@1 %.3f  Acc@%" PRId64 " %.3f",
                   st->epoch + 1, r->args.epochs, st->batch, td_loader_batches(r->loader),
                   td_optim_lr(r->optim), eta, now - c->step_at, (now - r->clock.began) / steps,
                   waited - r->clock.step_waited, (waited - r->clock.waited) / steps, loss,
                   train_epoch_loss(r), 100 * train_epoch_accuracy(r), r->args.recipe.top_k,
                   100 * train_epoch_accuracy_k(r));
}

static void step_done(train_run *r, double loss)
{
    classify_run *c = classifier(r);
    double now = td_clock();
    if (train_is_due(r->state.batch, c->s.train.print_freq) ||
        r->state.batch == td_loader_batches(r->loader)) {
        print_step(r, loss, now, td_loader_wait_seconds(r->loader));
    }
    c->step_at = now;
}

static void epoch_done(train_run *r, double seconds, char *path)
{
    if (r->state.seen > r->clock.seen_before) { /* not if it was stopped while it was tested */
        progress_print(&r->progress,
                       "Epoch [%" PRId64 "/%" PRId64
                       "] trained in %.1f s: %.0f images/s, waited %.1f s for data",
                       r->state.epoch + 1, r->args.epochs, seconds,
                       (double)(r->state.seen - r->clock.seen_before) / seconds,
                       td_loader_wait_seconds(r->loader) - r->clock.waited);
    }
    classify_epoch_path(classifier(r), r->state.epoch + 1, path);
}

/* ---- validation ---- */

static void batch_tested(train_run *r, const td_evaluation *e, int64_t batches)
{
    if (train_is_due(e->batches, classifier(r)->s.test.print_freq)) {
        progress_print(&r->progress,
                       "Test: [%3" PRId64 "/%" PRId64 "]  Loss %.4f  Acc@1 %.3f  Acc@%" PRId64
                       " %.3f",
                       e->batches, batches, e->loss, 100 * e->accuracy, r->args.recipe.top_k,
                       100 * e->sums[1] / (double)e->seen);
    }
}

static td_status validate(train_run *r)
{
    classify_run *c = classifier(r);
    td_evaluation e;
    TD_TRY(train_validate(r, c->s.test.batch_size, &e));
    if (e.seen == 0) {
        return TD_OK;
    }
    bool best = e.accuracy > r->state.best;
    r->state.best = best ? e.accuracy : r->state.best;
    progress_print(&r->progress,
                   "Epoch [%" PRId64 "/%" PRId64 "] tested on %" PRId64
                   " images: Loss %.4f  Acc@1 %.3f  Acc@%" PRId64 " %.3f  best %.3f",
                   r->state.epoch + 1, r->args.epochs, e.seen, e.loss, 100 * e.accuracy,
                   r->args.recipe.top_k, 100 * e.sums[1] / (double)e.seen, 100 * r->state.best);
    return best && train_saves_model(r) ? classify_save_best(c, e.accuracy) : TD_OK;
}

/* ---- checkpoints ---- */

static void latest(const train_run *r, char *path)
{
    classify_step_path((const classify_run *)r, r->state.epoch, r->state.batch, path);
}

static void saved(train_run *r, const char *path, bool at_epoch)
{
    progress_print(&r->progress, "saved: %s", path);
    if (at_epoch) {
        classify_remove_old(classifier(r), r->state.epoch);
    }
}

const train_task classify_task = { .name = "train_net",
                                   .open = classify_open,
                                   .close = classify_close,
                                   .begins = begins,
                                   .epoch_begins = epoch_begins,
                                   .step_done = step_done,
                                   .epoch_done = epoch_done,
                                   .validate = validate,
                                   .batch_tested = batch_tested,
                                   .latest = latest,
                                   .saved = saved,
                                   .accepted = accepted,
                                   .metrics = TRAIN_METRICS,
                                   .goes_on = "the same command goes on from there" };
