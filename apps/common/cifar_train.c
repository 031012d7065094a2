#include "apps/common/cifar_train.h"

#include "apps/common/evaluate.h"
#include "apps/common/files.h"
#include "apps/common/progress.h"
#include "apps/common/ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CLASSES = 10 };

enum { EPOCH_LOSS, EPOCH_ACCURACY, LR, METRICS };
static const char *const metric_names[METRICS] = {
    [EPOCH_LOSS] = "train/epoch_loss",
    [EPOCH_ACCURACY] = "train/epoch_accuracy",
    [LR] = "lr",
};

/* ---- options ---- */

static void add_flag(train_args *args, const char *name, bool *value, const char *help)
{
    train_args_add(args,
                   (cli_option){ .name = name, .help = help, .kind = CLI_FLAG, .value = value });
}

void cifar_run_options(cifar_run *r, double lr, int64_t print_every)
{
    train_args *args = &r->args;
    *args = (train_args){ .epochs = 5,
                          .batch_size = 256,
                          .lr = lr,
                          .workers = train_default_workers(),
                          .save_every = 1 };
    r->stem = "imagenet";
    r->print_every = print_every;
    train_args_options(args,
                       "Folder with CIFAR-10's binary files, or with cifar-10-batches-bin/; "
                       "otherwise $TANDEM_DATA, otherwise data/cifar10",
                       "Checkpoint to write");
    add_flag(args, "auto-resume", &r->auto_resume,
             "Continue from --save's file if it is there: for programs that are started again");
    add_flag(args, "download", &r->download, "Fetch CIFAR-10 (170 MB) if it is not there");
    add_flag(args, "shard", &r->shard,
             "Print loss and accuracy of rank 0's own samples, not those of all ranks");
    train_args_add(args, (cli_option){ .name = "limit",
                                       .argument = "N",
                                       .help = "Use the first N images only; 0: all",
                                       .kind = CLI_INT,
                                       .value = &r->limit,
                                       .high = 1e9,
                                       .resume = CLI_FIXED });
    train_args_add(args, (cli_option){ .name = "stem",
                                       .argument = "NAME",
                                       .help = "First layers: imagenet (7x7, stride 2, pool; the "
                                               "articles') or cifar (3x3; slower, better)",
                                       .kind = CLI_TEXT,
                                       .value = &r->stem,
                                       .choices = "imagenet|cifar",
                                       .resume = CLI_FIXED });
    train_args_add(args, (cli_option){ .name = "trace",
                                       .argument = "FILE",
                                       .help = "Write a timeline for chrome://tracing or Perfetto",
                                       .kind = CLI_TEXT,
                                       .value = &r->trace });
}

/* ---- data and model ---- */

td_status cifar_begin(cifar_run *r)
{
    train_args *args = &r->args;
    ranks_begin(args);
    if (args->save != NULL) {
        TD_TRY(check_can_save(args->save));
    }
    if (r->auto_resume && args->save != NULL && access(args->save, F_OK) == 0) {
        args->resume = args->save;
    }
    TD_TRY(train_args_apply(args));
    if (r->trace != NULL) {
        TD_TRY(td_trace_open(r->trace));
    }
    /* One rank fetches the data; the others find them there. */
    if (!ranks_first()) {
        TD_TRY(ranks_barrier());
    }
    TD_TRY(cifar_data_open(&(cifar_options){ .folder = args->data,
                                             .download = r->download && ranks_first(),
                                             .limit = r->limit,
                                             .seed = (uint64_t)args->seed },
                           &r->data));
    return ranks_first() ? ranks_barrier() : TD_OK;
}

td_module *cifar_net(cifar_run *r)
{
    bool small = strcmp(r->stem, "cifar") == 0;
    td_module *net = td_resnet(18, CLASSES, small ? TD_STEM_CIFAR : TD_STEM_IMAGENET);
    if (net != NULL && td_module_to(net, r->args.device, TD_F32) != TD_OK) {
        td_module_free(net);
        return NULL;
    }
    return net;
}

td_loader *cifar_loader(cifar_run *r, td_sampler *sampler)
{
    return sampler == NULL ? NULL
                           : td_loader_open(r->data.train,
                                            &(td_loader_options){ .batch_size = r->args.batch_size,
                                                                  .sampler = sampler,
                                                                  .workers = (int)r->args.workers,
                                                                  .device = r->args.device });
}

/* ---- training ---- */

/* The epoch's figures so far, of all ranks together. */
static td_status report(cifar_run *r)
{
    const train_state *s = &r->state;
    int64_t steps = td_loader_batches(r->loader);
    if (s->batch % r->print_every != 0 && s->batch != steps) {
        return TD_OK;
    }
    double sums[] = { s->loss_sum, (double)s->batch, (double)s->correct, (double)s->seen };
    TD_TRY(ranks_sum(sums, 4, r->shard));
    double loss = sums[0] / sums[1], accuracy = sums[2] / sums[3];
    ranks_print("== step: [%3" PRId64 "/%" PRId64 "] [%" PRId64 "/%" PRId64
                "] | loss: %.3f | acc: %6.3f%%\n",
                s->batch, steps, s->epoch + 1, r->args.epochs, loss, 100 * accuracy);
    if (s->batch == steps) {
        double seconds = seconds_now() - r->epoch_began;
        ranks_print("== epoch: [%" PRId64 "/%" PRId64 "] | %.1f s | %.0f images/s\n", s->epoch + 1,
                    r->args.epochs, seconds, sums[3] / seconds);
    }
    if (r->log == NULL) {
        return TD_OK;
    }
    double values[METRICS] = {
        [EPOCH_LOSS] = loss, [EPOCH_ACCURACY] = accuracy, [LR] = td_optim_lr(r->optim)
    };
    return metrics_write(r->log, s->epoch * steps + s->batch, values);
}

/* The same lines as on one device. */
static td_status train_step(cifar_run *r, const td_batch *batch)
{
    td_step_begin();
    td_tensor *logits = td_forward(r->net, batch->x);
    td_tensor *loss = td_cross_entropy(logits, batch->y);
    double value = td_item(loss);
    td_status status = check_loss(value, r->state.epoch + 1, r->state.batch + 1);
    if (status != TD_OK) {
        td_step_end();
        return status;
    }
    int64_t correct = count_correct(logits, batch);
    td_zero_grad(r->optim);
    td_backward(loss);
    td_optim_step(r->optim);
    td_step_end();

    r->state.batch++;
    r->state.loss_sum += value;
    r->state.correct += correct;
    r->state.seen += batch->size;
    return report(r);
}

/* All ranks hold the same weights, so one of them saves. */
static td_status save(cifar_run *r)
{
    const char *path = r->args.save;
    if (path == NULL || !ranks_first()) {
        return TD_OK;
    }
    TD_TRY(train_save(path, r->net, r->optim, &r->state, r->data.name, r->args.options,
                      r->args.option_count));
    ranks_print("(rank: 0)   == Saved: %s\n", path);
    return TD_OK;
}

/* What the article does at the end: nobody may read before rank 0 has written. */
static td_status load_on_all_ranks(cifar_run *r)
{
    const char *path = r->args.save;
    TD_TRY(ranks_barrier());
    if (path == NULL) {
        return TD_OK;
    }
    TD_TRY(train_load(path, r->net, r->optim, &r->state, r->data.name));
    printf("(rank: %d)   == Loaded: %s\n", td_dist_rank(), path);
    fflush(stdout);
    return TD_OK;
}

static td_status run_epochs(cifar_run *r)
{
    ranks_print("\n=======  Training  =======\n\n");
    while (r->state.epoch < r->args.epochs) {
        int64_t epoch = r->state.epoch, every = r->args.save_every;
        r->epoch_began = seconds_now();
        td_loader_set_epoch(r->loader, (uint64_t)epoch);
        td_loader_skip_batches(r->loader, r->state.batch);
        for (td_batch batch; td_loader_next(r->loader, &batch);) {
            TD_TRY(train_step(r, &batch));
        }
        TD_TRY(td_loader_status(r->loader));
        train_epoch_begin(&r->state, epoch + 1);
        bool last = epoch + 1 == r->args.epochs;
        if (last || (every > 0 && (epoch + 1) % every == 0)) {
            TD_TRY(save(r));
        }
    }
    return load_on_all_ranks(r);
}

static td_status prepare(cifar_run *r)
{
    train_args *args = &r->args;
    if (r->net == NULL || r->loader == NULL) {
        return TD_E_NOMEM;
    }
    r->optim =
        td_sgd(td_parameters(r->net),
               &(td_sgd_options){
                   .lr = args->lr, .momentum = 0.9, .nesterov = true, .weight_decay = 1e-4 });
    if (r->optim == NULL) {
        return TD_E_NOMEM;
    }
    train_args_model(r->net, r->optim);
    train_epoch_begin(&r->state, 0);
    if (args->resume != NULL) {
        TD_TRY(train_load(args->resume, r->net, r->optim, &r->state, r->data.name));
        td_optim_set_lr(r->optim, args->lr); /* --lr may be given anew */
        ranks_print("resumed from %s after step %" PRId64 " of epoch %" PRId64 "\n", args->resume,
                    r->state.batch, r->state.epoch + 1);
    }
    if (args->log_dir != NULL && ranks_first()) {
        int64_t step = r->state.epoch * td_loader_batches(r->loader) + r->state.batch;
        TD_TRY(metrics_open(args->log_dir, metric_names, METRICS, step, &r->log));
    }
    return args->summary && ranks_first() ? td_summary(r->net, TD_SHAPE(1, 3, 32, 32), stdout)
                                          : TD_OK;
}

td_status cifar_train(cifar_run *r)
{
    TD_TRY(prepare(r));
    ranks_print("data: %s; batch %" PRId64 ", lr %g, seed %" PRId64
                "; rank 0: %s, %d threads, %" PRId64 " loader threads\n",
                r->data.name, r->args.batch_size, r->args.lr, r->args.seed,
                td_device_name(r->args.device), td_threads(r->args.device), r->args.workers);
    TD_TRY(run_epochs(r));
    return r->trace != NULL ? td_trace_close() : TD_OK;
}

void cifar_end(cifar_run *r)
{
    train_args_end();
    metrics_close(r->log);
    td_loader_close(r->loader);
    td_optim_free(r->optim);
    td_module_free(r->net);
    cifar_data_close(&r->data);
}
