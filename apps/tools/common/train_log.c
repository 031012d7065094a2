/* What a run logs: metrics of each step and test, on rank 0. */
#include "apps/tools/common/train.h"

#define METRIC_NAMES(rate)                                                                         \
    {                                                                                              \
        [TRAIN_LOSS] = "train/loss", [TRAIN_EPOCH_LOSS] = "train/epoch_loss",                      \
        [TRAIN_EPOCH_ACCURACY] = "train/epoch_accuracy", [TRAIN_LR] = "lr",                        \
        [TRAIN_IMAGES_PER_SECOND] = rate, [TRAIN_TEST_LOSS] = "test/loss",                         \
        [TRAIN_TEST_ACCURACY] = "test/accuracy",                                                   \
        [TRAIN_EPOCH_ACCURACY_K] = "train/epoch_accuracy_k",                                       \
        [TRAIN_TEST_ACCURACY_K] = "test/accuracy_k", [TRAIN_DATA_WAIT] = "data_wait_seconds",      \
        [TRAIN_EPOCH] = "epoch"                                                                    \
    }
static const char *const metric_names[2][TRAIN_METRICS] = { METRIC_NAMES("images_per_second"),
                                                            METRIC_NAMES("tokens_per_second") };

/* Of the world's rank 0, which may have been another one before. */
td_status train_log_open(train_run *r)
{
    if (!ranks_first()) {
        metrics_close(r->log.rows);
        r->log.rows = NULL;
    } else if (r->log.rows == NULL) {
        TD_TRY(metrics_open(r->args.files.log_dir, metric_names[r->task->tokens], r->task->metrics,
                            train_steps_done(r), &r->log.rows));
    }
    return train_write_settings(r);
}

td_status train_log_step(const train_run *r, double loss, double wait)
{
    const double values[TRAIN_METRICS] = {
        [TRAIN_LOSS] = loss,
        [TRAIN_EPOCH_LOSS] = train_epoch_loss(r),
        [TRAIN_EPOCH_ACCURACY] = train_epoch_accuracy(r),
        [TRAIN_LR] = td_optim_lr(r->optim),
        [TRAIN_IMAGES_PER_SECOND] = progress_rate(&r->progress, r->clock.step_targets),
        [TRAIN_TEST_LOSS] = NAN,
        [TRAIN_TEST_ACCURACY] = NAN,
        [TRAIN_EPOCH_ACCURACY_K] = train_epoch_accuracy_k(r),
        [TRAIN_TEST_ACCURACY_K] = NAN,
        [TRAIN_DATA_WAIT] = wait,
        [TRAIN_EPOCH] = (double)(r->state.epoch + 1),
    };
    return r->log.rows != NULL ? metrics_write(r->log.rows, train_steps_done(r), values) : TD_OK;
}

td_status train_log_test(const train_run *r, const td_evaluation *e)
{
    double values[TRAIN_METRICS];
    for (int i = 0; i < TRAIN_METRICS; i++) {
        values[i] = NAN;
    }
    values[TRAIN_TEST_LOSS] = e->loss;
    values[TRAIN_TEST_ACCURACY] = r->task->tokens ? NAN : e->accuracy;
    values[TRAIN_TEST_ACCURACY_K] = e->sums[1] / (double)e->seen;
    values[TRAIN_EPOCH] = (double)(r->state.epoch + 1);
    return r->log.rows != NULL ? metrics_write(r->log.rows, train_steps_done(r), values) : TD_OK;
}
