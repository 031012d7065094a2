#include "apps/common/wine_train.h"

#include "apps/common/evaluate.h"
#include "apps/common/files.h"
#include "apps/common/ranks.h"
#include "apps/common/wine.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static const char *const metric_names[] = { "loss", "epoch_loss", "lr" };

void wine_options(wine_run *r)
{
    r->args = (train_args){ .data = "data/wine.csv",
                            .epochs = 100,
                            .batch_size = 32,
                            .lr = 1e-3,
                            .save = ".",
                            .save_every = 50 };
    train_args_options(&r->args, "The wine data, a CSV file", "Folder for checkpoints");
    train_args_add(&r->args, (cli_option){ .name = "shard",
                                           .help = "Print the loss of rank 0's own samples, not "
                                                   "the mean over all ranks",
                                           .kind = CLI_FLAG,
                                           .value = &r->shard });
    train_args_add(&r->args, (cli_option){ .name = "no-set-epoch",
                                           .help = "Do not tell the sampler the epoch: each has "
                                                   "the order of the first (a common mistake)",
                                           .kind = CLI_FLAG,
                                           .value = &r->no_set_epoch });
}

td_status wine_begin(wine_run *r)
{
    ranks_begin(&r->args);
    TD_TRY(train_args_apply(&r->args));
    TD_TRY(make_folders(r->args.save));
    TD_TRY(td_wine_split(r->args.data, 0.2, 42, &r->train, &r->test, NULL));
    return ranks_first() ? wine_print_first_sample(r->train) : TD_OK;
}

td_loader *wine_loader(wine_run *r, td_sampler *sampler)
{
    return sampler == NULL
               ? NULL
               : td_loader_open(r->train, &(td_loader_options){ .batch_size = r->args.batch_size,
                                                                .sampler = sampler,
                                                                .workers = (int)r->args.workers,
                                                                .device = r->args.device });
}

/* Each rank has a log of its own, in DIR/rank<r>: its own losses. */
static td_status open_log(wine_run *r)
{
    char folder[4096];
    if (r->args.log_dir == NULL) {
        return TD_OK;
    }
    snprintf(folder, sizeof(folder), "%s/rank%d", r->args.log_dir, td_dist_rank());
    int64_t step = r->state.epoch * td_loader_batches(r->loader) + r->state.batch;
    return metrics_open(folder, metric_names, 3, step, &r->log);
}

static td_status log_step(wine_run *r, double loss)
{
    if (r->log == NULL) {
        return TD_OK;
    }
    int64_t steps = td_loader_batches(r->loader), step = r->state.epoch * steps + r->state.batch;
    double mean = r->state.batch == steps ? r->state.loss_sum / (double)steps : NAN;
    return metrics_write(r->log, step, (double[]){ loss, mean, td_optim_lr(r->optim) });
}

/* The same lines as on one device: the averaging of the gradients is td_backward's last act. */
static td_status train_step(wine_run *r, const td_batch *batch)
{
    td_step_begin();
    td_tensor *loss = td_cross_entropy(td_forward(r->net, batch->x), batch->y);
    double value = td_item(loss);
    td_status status = check_loss(value, r->state.epoch + 1, r->state.batch + 1);
    if (status != TD_OK) {
        td_step_end();
        return status;
    }
    td_zero_grad(r->optim);
    td_backward(loss);
    td_optim_step(r->optim);
    td_step_end();

    r->state.batch++;
    r->state.loss_sum += value;
    return log_step(r, value);
}

static td_status run_epoch(wine_run *r)
{
    if (!r->no_set_epoch) {
        td_loader_set_epoch(r->loader, (uint64_t)r->state.epoch);
    }
    td_loader_skip_batches(r->loader, r->state.batch);
    for (td_batch batch; td_loader_next(r->loader, &batch);) {
        TD_TRY(train_step(r, &batch));
    }
    return td_loader_status(r->loader);
}

/* All ranks hold the same weights, so one of them saves. */
static td_status save(wine_run *r, int64_t epoch)
{
    char path[4096];
    if (!ranks_first() || r->args.save_every == 0 || epoch % r->args.save_every != 0) {
        return TD_OK;
    }
    snprintf(path, sizeof(path), "%s/model_%" PRId64 ".safetensors", r->args.save, epoch);
    TD_TRY(train_save(path, r->net, r->optim, &r->state, "wine", r->args.options,
                      r->args.option_count));
    ranks_print("Epoch %" PRId64 " | Model saved to model_%" PRId64 "...\n", epoch, epoch);
    return TD_OK;
}

static td_status run_epochs(wine_run *r)
{
    while (r->state.epoch < r->args.epochs) {
        int64_t epoch = r->state.epoch;
        TD_TRY(run_epoch(r));
        double sums[] = { r->state.loss_sum, (double)r->state.batch };
        TD_TRY(ranks_sum(sums, 2, r->shard));
        ranks_print("Epoch %" PRId64 ", Loss: %.4f\n", epoch, sums[0] / sums[1]);
        train_epoch_begin(&r->state, epoch + 1);
        TD_TRY(save(r, epoch));
    }
    return TD_OK;
}

/* By rank 0 alone: without gradients nothing waits for the others. */
static td_status test(wine_run *r)
{
    evaluation result;
    if (!ranks_first()) {
        return TD_OK;
    }
    TD_TRY(evaluate(r->net, r->test, r->test->length, 0, &result));
    ranks_print("Test: %" PRId64 "/%" PRId64 " right\n", result.correct, result.count);
    return TD_OK;
}

td_status wine_train(wine_run *r)
{
    if (r->net == NULL || r->loader == NULL) {
        return TD_E_NOMEM;
    }
    r->optim = td_adam(td_parameters(r->net), &(td_adam_options){ .lr = r->args.lr });
    if (r->optim == NULL) {
        return TD_E_NOMEM;
    }
    train_args_model(r->net, r->optim);
    train_epoch_begin(&r->state, 0);
    if (r->args.resume != NULL) {
        TD_TRY(train_load(r->args.resume, r->net, r->optim, &r->state, "wine"));
        td_optim_set_lr(r->optim, r->args.lr); /* --lr may be given anew */
    }
    TD_TRY(open_log(r));
    if (r->args.summary && ranks_first()) {
        TD_TRY(td_summary(r->net, TD_SHAPE(1, WINE_FEATURES), stdout));
    }
    TD_TRY(run_epochs(r));
    return test(r);
}

void wine_end(wine_run *r)
{
    train_args_end();
    metrics_close(r->log);
    td_loader_close(r->loader);
    td_optim_free(r->optim);
    td_module_free(r->net);
    td_dataset_free(r->train);
    td_dataset_free(r->test);
}
