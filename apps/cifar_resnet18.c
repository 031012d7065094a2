/* The main job: ResNet-18 on CIFAR-10, on one device (the articles' "single node, single card").
 *
 * The loop is that of wine_single.c. What is new: pictures, changed at random each time they are
 * seen; a model with running statistics, so training and evaluation differ; SGD with momentum; and
 * runs of minutes or hours, so progress, checkpoints and going on after an interruption matter. */
#include "apps/common/cifar_data.h"
#include "apps/common/evaluate.h"
#include "apps/common/files.h"
#include "apps/common/metrics.h"
#include "apps/common/progress.h"
#include "apps/common/resume.h"
#include "apps/common/signals.h"
#include "apps/common/train_args.h"
#include "tandem.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INTERRUPTED_CHECKPOINT "cifar_resnet18.safetensors"
enum { CLASSES = 10, PRINT_EVERY = 50 /* steps */, TEST_BATCH = 256 };

typedef struct run {
    train_args args;
    int64_t limit;
    bool download;
    const char *stem;
    cifar_data data;
    td_module *net;
    td_optim *optim;
    td_loader *loader;
    metrics *log;
    progress progress;
    train_state state;
} run;

enum { LOSS, EPOCH_LOSS, EPOCH_ACCURACY, LR, IMAGES_PER_SECOND, TEST_LOSS, TEST_ACCURACY, METRICS };
static const char *const metric_names[METRICS] = {
    [LOSS] = "train/loss",
    [EPOCH_LOSS] = "train/epoch_loss",
    [EPOCH_ACCURACY] = "train/epoch_accuracy",
    [LR] = "lr",
    [IMAGES_PER_SECOND] = "images_per_second",
    [TEST_LOSS] = "test/loss",
    [TEST_ACCURACY] = "test/accuracy",
};

/* ---- training ---- */

static int64_t steps_done(const run *r)
{
    return r->state.epoch * td_loader_batches(r->loader) + r->state.batch;
}

/* Shows and logs the step that has just been made. */
static td_status report_step(run *r, double loss, int64_t batch_size)
{
    const train_state *s = &r->state;
    int64_t steps = td_loader_batches(r->loader);
    double epoch_loss = s->loss_sum / (double)s->batch;
    double accuracy = (double)s->correct / (double)s->seen;
    progress_step(&r->progress, &(progress_point){ .epoch = s->epoch + 1,
                                                   .epochs = r->args.epochs,
                                                   .step = s->batch,
                                                   .steps = steps,
                                                   .batch = batch_size,
                                                   .loss = epoch_loss,
                                                   .accuracy = accuracy });
    if (s->batch % PRINT_EVERY == 0 || s->batch == steps) {
        progress_print(&r->progress,
                       "== step: [%3" PRId64 "/%" PRId64 "] [%" PRId64 "/%" PRId64
                       "] | loss: %.3f | acc: %6.3f%%",
                       s->batch, steps, s->epoch + 1, r->args.epochs, epoch_loss, 100 * accuracy);
    }
    if (r->log == NULL) {
        return TD_OK;
    }
    double values[METRICS] = {
        [LOSS] = loss,
        [EPOCH_LOSS] = epoch_loss,
        [EPOCH_ACCURACY] = accuracy,
        [LR] = td_optim_lr(r->optim),
        [IMAGES_PER_SECOND] = progress_rate(&r->progress, batch_size),
        [TEST_LOSS] = NAN,
        [TEST_ACCURACY] = NAN,
    };
    return metrics_write(r->log, steps_done(r), values);
}

/* One batch: forward, backward, step. */
static td_status train_step(run *r, const td_batch *batch)
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
    return report_step(r, value, batch->size);
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

static td_status save(run *r, const char *path)
{
    return train_save(path, r->net, r->optim, &r->state, r->data.name, r->args.options,
                      r->args.option_count);
}

static td_status save_interrupted(run *r)
{
    const char *path = r->args.save != NULL     ? r->args.save
                       : r->args.resume != NULL ? r->args.resume
                                                : INTERRUPTED_CHECKPOINT;
    TD_TRY(save(r, path));
    fprintf(stderr, "stopped after step %" PRId64 " of epoch %" PRId64 "; go on with --resume %s\n",
            r->state.batch, r->state.epoch + 1, path);
    return TD_OK;
}

static td_status train(run *r)
{
    progress_begin(&r->progress, r->args.epochs * td_loader_batches(r->loader) - steps_done(r));
    progress_print(&r->progress, "\n=======  Training  =======\n");
    while (r->state.epoch < r->args.epochs) {
        int64_t epoch = r->state.epoch, first = r->state.seen;
        double begin = seconds_now(), waited = td_loader_wait_seconds(r->loader);
        TD_TRY(run_epoch(r));
        if (r->state.batch < td_loader_batches(r->loader)) {
            break; /* asked to stop in mid-epoch */
        }
        double seconds = seconds_now() - begin;
        progress_print(&r->progress,
                       "== epoch: [%" PRId64 "/%" PRId64 "] | %.1f s | %.0f images/s | waited for "
                       "data: %.1f s",
                       epoch + 1, r->args.epochs, seconds,
                       (double)(r->state.seen - first) / seconds,
                       td_loader_wait_seconds(r->loader) - waited);
        train_epoch_begin(&r->state, epoch + 1);
        if (r->args.save != NULL && r->args.save_every > 0 &&
            (epoch + 1) % r->args.save_every == 0) {
            TD_TRY(save(r, r->args.save));
            progress_print(&r->progress, "== saved: %s", r->args.save);
        }
    }
    progress_end(&r->progress);
    return stop_requested() ? save_interrupted(r) : TD_OK;
}

/* ---- testing ---- */

/* Loss and accuracy over the test set. */
static td_status test(run *r)
{
    evaluation result;
    TD_TRY(evaluate(r->net, r->data.test, TEST_BATCH, (int)r->args.workers, &result));
    double accuracy = (double)result.correct / (double)result.count;
    printf("\n== test: %" PRId64 " images | loss: %.3f | acc: %6.3f%%%s\n", result.count,
           result.loss, 100 * accuracy,
           r->data.test->synthetic ? " (synthetic, NOT CIFAR-10)" : "");
    if (r->log == NULL) {
        return TD_OK;
    }
    double values[METRICS];
    for (int i = 0; i < METRICS; i++) {
        values[i] = NAN;
    }
    values[TEST_LOSS] = result.loss;
    values[TEST_ACCURACY] = accuracy;
    return metrics_write(r->log, steps_done(r), values);
}

/* ---- setting up ---- */

static td_status prepare_model(run *r)
{
    train_args *args = &r->args;
    r->net =
        td_resnet(18, CLASSES, strcmp(r->stem, "cifar") == 0 ? TD_STEM_CIFAR : TD_STEM_IMAGENET);
    if (r->net == NULL) {
        return TD_E_NOMEM;
    }
    TD_TRY(td_module_to(r->net, args->device, TD_F32));
    r->optim =
        td_sgd(td_parameters(r->net),
               &(td_sgd_options){
                   .lr = args->lr, .momentum = 0.9, .nesterov = true, .weight_decay = 1e-4 });
    return r->optim != NULL ? TD_OK : TD_E_NOMEM;
}

static td_status prepare(run *r)
{
    train_args *args = &r->args;
    TD_TRY(train_args_apply(args));
    if (args->save != NULL) {
        TD_TRY(check_can_save(args->save));
    }
    TD_TRY(cifar_data_open(&(cifar_options){ .folder = args->data,
                                             .download = r->download,
                                             .limit = r->limit,
                                             .seed = (uint64_t)args->seed },
                           &r->data));
    TD_TRY(prepare_model(r));
    r->loader = td_loader_open(r->data.train, &(td_loader_options){ .batch_size = args->batch_size,
                                                                    .shuffle = true,
                                                                    .workers = (int)args->workers,
                                                                    .device = args->device });
    if (r->loader == NULL) {
        return TD_E_NOMEM;
    }
    train_args_model(r->net, r->optim);
    train_epoch_begin(&r->state, 0);
    if (args->resume != NULL) {
        TD_TRY(train_load(args->resume, r->net, r->optim, &r->state, r->data.name));
        td_optim_set_lr(r->optim, args->lr); /* --lr may be given anew */
    }
    if (args->log_dir != NULL) {
        TD_TRY(metrics_open(args->log_dir, metric_names, METRICS, steps_done(r), &r->log));
    }
    return args->summary ? td_summary(r->net, TD_SHAPE(1, 3, 32, 32), stdout) : TD_OK;
}

static void describe(const run *r)
{
    printf("tandem %s: ResNet-18 (%s stem), %" PRId64 " parameters\n"
           "data: %s; batch %" PRId64 ", lr %g, seed %" PRId64 "; %s, %d threads, %" PRId64
           " loader threads\n",
           TANDEM_VERSION, r->stem, td_parameter_count(r->net), r->data.name, r->args.batch_size,
           r->args.lr, r->args.seed, td_device_name(r->args.device), td_threads(r->args.device),
           r->args.workers);
    if (r->args.resume != NULL) {
        printf("resumed from %s after step %" PRId64 " of epoch %" PRId64 "\n", r->args.resume,
               r->state.batch, r->state.epoch + 1);
    }
}

static td_status cifar_resnet18(run *r)
{
    TD_TRY(prepare(r));
    describe(r);
    signals_catch();
    TD_TRY(train(r));
    signals_restore();
    return stop_requested() ? TD_OK : test(r);
}

static void parse(run *r, int argc, char **argv)
{
    train_args *args = &r->args;
    train_args_options(args,
                       "Folder with CIFAR-10's binary files, or with cifar-10-batches-bin/; "
                       "otherwise $TANDEM_DATA, otherwise data/cifar10",
                       "Checkpoint to write; Ctrl-C writes one in any case");
    train_args_add(args, (cli_option){ .name = "download",
                                       .help = "Fetch CIFAR-10 (170 MB) if it is not there",
                                       .kind = CLI_FLAG,
                                       .value = &r->download });
    train_args_add(args,
                   (cli_option){ .name = "limit",
                                 .argument = "N",
                                 .help = "Use the first N images only, of the training and the "
                                         "test set; 0: all",
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
    cli_parse(argc, argv, "Trains ResNet-18 on CIFAR-10, on one device, and tests it.",
              args->options, args->option_count);
}

int main(int argc, char **argv)
{
    run r = { .args = { .epochs = 5,
                        .batch_size = 256,
                        .lr = 0.01,
                        .workers = train_default_workers(),
                        .save_every = 1 },
              .stem = "imagenet" };
    parse(&r, argc, argv);
    td_status status = cifar_resnet18(&r);
    progress_end(&r.progress);
    int code = status != TD_OK    ? app_failed("cifar_resnet18")
               : stop_requested() ? stop_exit_code()
                                  : 0;
    train_args_end();
    metrics_close(r.log);
    td_loader_close(r.loader);
    td_optim_free(r.optim);
    td_module_free(r.net);
    cifar_data_close(&r.data);
    return code;
}
