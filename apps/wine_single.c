/* Lesson 1: a small network on one device.
 *
 * Three kinds of wine are told apart by 13 measurements (178 wines; 142 to train on, 36 to test).
 * The whole of training is here: data, optimizer, and the loop that takes batches, computes the
 * loss, runs backward, and steps; the model is in common/wine.c. The lessons that follow change one
 * thing each. */
#include "apps/common/evaluate.h"
#include "apps/common/files.h"
#include "apps/common/metrics.h"
#include "apps/common/resume.h"
#include "apps/common/signals.h"
#include "apps/common/train_args.h"
#include "apps/common/wine.h"
#include "tandem.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct run {
    train_args args;
    td_dataset *train, *test;
    td_module *net;
    td_optim *optim;
    td_loader *loader;
    metrics *log;
    train_state state;
} run;

static const char *const metric_names[] = { "loss", "epoch_loss", "lr" };

static td_status save(run *r, const char *name)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s.safetensors", r->args.save, name);
    return train_save(path, r->net, r->optim, &r->state, "wine", r->args.options,
                      r->args.option_count);
}

static td_status log_step(run *r, double loss, double epoch_loss)
{
    if (r->log == NULL) {
        return TD_OK;
    }
    int64_t step = r->state.epoch * td_loader_batches(r->loader) + r->state.batch;
    return metrics_write(r->log, step, (double[]){ loss, epoch_loss, td_optim_lr(r->optim) });
}

/* One batch: forward, backward, step. */
static td_status train_step(run *r, const td_batch *batch)
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
    bool last = r->state.batch == td_loader_batches(r->loader);
    return log_step(r, value, last ? r->state.loss_sum / (double)r->state.batch : NAN);
}

/* The rest of the running epoch, or less if a signal asks to stop. */
static td_status run_epoch(run *r)
{
    td_loader_set_epoch(r->loader, (uint64_t)r->state.epoch);
    td_loader_skip_batches(r->loader, r->state.batch);
    for (td_batch batch; !stop_requested() && td_loader_next(r->loader, &batch);) {
        TD_TRY(train_step(r, &batch));
    }
    return td_loader_status(r->loader);
}

static td_status train(run *r)
{
    while (r->state.epoch < r->args.epochs) {
        int64_t epoch = r->state.epoch;
        TD_TRY(run_epoch(r));
        if (r->state.batch < td_loader_batches(r->loader)) {
            break; /* asked to stop in mid-epoch */
        }
        printf("Epoch %" PRId64 ", Loss: %.4f\n", epoch,
               r->state.loss_sum / (double)r->state.batch);
        train_epoch_begin(&r->state, epoch + 1);
        if (r->args.save_every > 0 && epoch % r->args.save_every == 0) {
            char name[64];
            snprintf(name, sizeof(name), "model_%" PRId64, epoch);
            TD_TRY(save(r, name));
            printf("Epoch %" PRId64 " | Model saved to %s...\n", epoch, name);
        }
    }
    if (stop_requested()) {
        TD_TRY(save(r, "model_interrupted"));
        fprintf(stderr, "stopped; go on with --resume %s/model_interrupted.safetensors\n",
                r->args.save);
    }
    return TD_OK;
}

static td_status test(run *r)
{
    evaluation result;
    TD_TRY(evaluate(r->net, r->test, r->test->length, 0, &result));
    printf("Test: %" PRId64 "/%" PRId64 " right\n", result.correct, result.count);
    return TD_OK;
}

/* Everything that training needs. The weights are drawn here, first fc1's, then fc2's. */
static td_status prepare(run *r)
{
    train_args *args = &r->args;
    TD_TRY(train_args_apply(args));
    TD_TRY(make_folders(args->save));
    TD_TRY(td_wine_split(args->data, 0.2, 42, &r->train, &r->test, NULL));
    r->net = wine_net();
    if (r->net == NULL) {
        return TD_E_NOMEM;
    }
    TD_TRY(td_module_to(r->net, args->device, TD_F32));
    r->optim = td_adam(td_parameters(r->net), &(td_adam_options){ .lr = args->lr });
    r->loader = td_loader_open(r->train, &(td_loader_options){ .batch_size = args->batch_size,
                                                               .shuffle = true,
                                                               .workers = (int)args->workers,
                                                               .device = args->device });
    if (r->optim == NULL || r->loader == NULL) {
        return TD_E_NOMEM;
    }
    train_args_model(r->net, r->optim);
    train_epoch_begin(&r->state, 0);
    if (args->resume != NULL) {
        TD_TRY(train_load(args->resume, r->net, r->optim, &r->state, "wine"));
        td_optim_set_lr(r->optim, args->lr); /* --lr may be given anew */
    }
    if (args->log_dir != NULL) {
        int64_t step = r->state.epoch * td_loader_batches(r->loader) + r->state.batch;
        TD_TRY(metrics_open(args->log_dir, metric_names, 3, step, &r->log));
    }
    return args->summary ? td_summary(r->net, TD_SHAPE(1, WINE_FEATURES), stdout) : TD_OK;
}

static td_status wine_single(run *r)
{
    TD_TRY(prepare(r));
    TD_TRY(wine_print_first_sample(r->train));
    signals_catch();
    TD_TRY(train(r));
    signals_restore();
    return stop_requested() ? TD_OK : test(r);
}

int main(int argc, char **argv)
{
    run r = { .args = { .data = "data/wine.csv",
                        .epochs = 100,
                        .batch_size = 32,
                        .lr = 1e-3,
                        .save = ".",
                        .save_every = 50 } };
    train_args_options(&r.args, "The wine data, a CSV file", "Folder for checkpoints");
    cli_parse(argc, argv, "Trains a small network on the wine data, on one device.", r.args.options,
              r.args.option_count);

    td_status status = wine_single(&r);
    int code = status != TD_OK    ? app_failed("wine_single")
               : stop_requested() ? stop_exit_code()
                                  : 0;
    train_args_end();
    metrics_close(r.log);
    td_loader_close(r.loader);
    td_optim_free(r.optim);
    td_module_free(r.net);
    td_dataset_free(r.train);
    td_dataset_free(r.test);
    return code;
}
