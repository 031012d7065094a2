#include "apps/tools/common/cifar.h"

#include "apps/tools/common/log.h"
#include "apps/tools/common/ranks.h"
#include "data/inspect.h"
#include "tensor/extend.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { CLASSES = 10 };

/* ---- the model ---- */

static const char *stem_of(const train_run *r)
{
    return ((const cifar_run *)r)->stem;
}

td_module *cifar_net(const train_run *r)
{
    bool small = strcmp(stem_of(r), "cifar") == 0;
    td_defer_init(train_defers(r));
    td_module *net =
        td_model("resnet18", .classes = CLASSES, .stem = small ? TD_STEM_CIFAR : TD_STEM_IMAGENET);
    td_defer_init(false);
    if (net != NULL && td_module_to(net, r->args.device, TD_F32) != TD_OK) {
        td_module_free(net);
        return NULL;
    }
    return net;
}

td_optim *cifar_optim(const train_run *r)
{
    return r->net == NULL ? NULL
                          : td_sgd(td_parameters(r->net), .lr = r->args.lr, .momentum = 0.9,
                                   .nesterov = true, .weight_decay = 1e-4);
}

/* ---- the data ---- */

/* One rank of each host fetches the data; the others find them there. */
static td_status cifar_open(train_run *r)
{
    cifar_run *c = (cifar_run *)r;
    bool fetches = td_dist_local_rank() == 0;
    if (r->args.save != NULL) {
        TD_TRY(check_can_save(r->args.save));
    }
    if (!fetches) {
        TD_TRY(ranks_barrier());
    }
    TD_TRY(cifar_data_open(&(cifar_source){ .folder = r->args.data,
                                            .download = c->download && fetches,
                                            .limit = c->limit,
                                            .seed = (uint64_t)r->args.seed },
                           &c->data));
    if (fetches) {
        TD_TRY(ranks_barrier());
    }
    r->train = c->data.train;
    r->test = c->data.test;
    snprintf(r->data_name, sizeof(r->data_name), "%s", c->data.name);
    return notes_add_model(&r->notes,
                           &(model_input){ 32, 32, cifar_normalise.mean, cifar_normalise.std },
                           r->train, CLASSES);
}

static void cifar_close(train_run *r)
{
    cifar_data_close(&((cifar_run *)r)->data);
}

/* ---- what is printed, logged and saved ---- */

static void cifar_step_done(train_run *r, double loss)
{
    (void)loss;
    const train_state *s = &r->state;
    int64_t steps = td_loader_batches(r->loader);
    if (train_is_due(s->batch, ((cifar_run *)r)->print_every) || s->batch == steps) {
        progress_print(&r->progress,
                       "== step: [%3" PRId64 "/%" PRId64 "] [%" PRId64 "/%" PRId64
                       "] | loss: %.3f | acc: %6.3f%%",
                       s->batch, steps, s->epoch + 1, r->args.epochs, train_epoch_loss(r),
                       100 * train_epoch_accuracy(r));
    }
}

static void cifar_epoch_done(train_run *r, double seconds, char *path)
{
    const train_args *args = &r->args;
    int64_t epoch = r->state.epoch + 1;
    bool due =
        train_is_due(epoch, args->save_every) || (epoch == args->epochs && args->save_every > 0);
    progress_print(&r->progress,
                   "== epoch: [%" PRId64 "/%" PRId64 "] | %.1f s | %.0f images/s | waited for "
                   "data: %.1f s",
                   epoch, args->epochs, seconds, (double)(r->state.seen - r->seen_before) / seconds,
                   td_loader_wait_seconds(r->loader) - r->waited);
    if (args->save != NULL && due) {
        snprintf(path, TRAIN_PATH_BYTES, "%s", args->save);
    }
}

static void cifar_latest(const train_run *r, char *path)
{
    const train_args *args = &r->args;
    if (args->save != NULL || args->resume != NULL) {
        snprintf(path, TRAIN_PATH_BYTES, "%s", args->save != NULL ? args->save : args->resume);
    } else {
        snprintf(path, TRAIN_PATH_BYTES, "%s.safetensors", r->app);
    }
}

/* One process says it shortly, several say it as the article does. */
static void cifar_saved(train_run *r, const char *path, bool at_epoch)
{
    (void)at_epoch;
    progress_print(&r->progress,
                   td_dist_world_size() > 1 ? "(rank: 0)   == Saved: %s" : "== saved: %s", path);
}

/* Loss and accuracy over the test set. */
static td_status cifar_tested(train_run *r, const evaluation *result)
{
    double accuracy = (double)result->correct / (double)result->count;
    td_printf_rank0("\n== test: %" PRId64 " images | loss: %.3f | acc: %6.3f%%%s\n", result->count,
                    result->loss, 100 * accuracy,
                    r->test->synthetic ? " (synthetic, NOT CIFAR-10)" : "");
    return train_log_test(r, result);
}

static void describe(const train_run *r)
{
    char ranks[64] = "", loader[64] = "the images too";
    if (td_dist_world_size() > 1) {
        snprintf(ranks, sizeof(ranks), " on each of %d ranks", td_dist_world_size());
    }
    if (!td_loader_is_resident(r->loader)) {
        snprintf(loader, sizeof(loader), "%" PRId64 " loader threads", r->args.workers);
    }
    td_printf_rank0("tandem %s: ResNet-18 (%s stem), %" PRId64 " parameters\n"
                    "data: %s; batch %" PRId64 "%s, lr %g, seed %" PRId64 ", %s; %s, %s\n",
                    TANDEM_VERSION, stem_of(r), td_parameter_count(r->net), r->data_name,
                    r->args.batch_size, ranks, r->args.lr, r->args.seed, train_args_arithmetic(),
                    td_device_describe(r->args.device), loader);
}

static void cifar_begins(train_run *r)
{
    describe(r);
    progress_print(&r->progress, "\n=======  Training  =======\n");
}

static const train_task cifar_task = { .name = "ResNet-18 on CIFAR-10",
                                       .open = cifar_open,
                                       .close = cifar_close,
                                       .begins = cifar_begins,
                                       .step_done = cifar_step_done,
                                       .epoch_done = cifar_epoch_done,
                                       .latest = cifar_latest,
                                       .saved = cifar_saved,
                                       .metrics = TRAIN_FEW_METRICS,
                                       .tested = cifar_tested };

/* ---- options ---- */

static void add_options(cifar_run *c)
{
    train_recipe *recipe = &c->base.recipe;
    const cli_option table[] = {
        cli_flag("download", &c->download, "Fetch CIFAR-10 (170 MB) if it is not there"),
        cli_int("print-every", &c->print_every, 1, 1e9,
                "Steps between two lines of loss and accuracy"),
        cli_int("limit", &c->limit, 0, 1e9,
                "Use the first N images only, of the training and the test set; 0: all",
                .resume = CLI_FIXED),
        cli_text("stem", "NAME", &c->stem,
                 "First layers: imagenet (7x7, stride 2, pool; the articles') or cifar (3x3; "
                 "slower, better)",
                 .choices = "imagenet|cifar", .resume = CLI_FIXED),
        cli_int("accumulate", &recipe->accumulate, 1, 1e6,
                "Batches whose mean gradient makes one step: a batch N times as large, in the "
                "memory of one",
                .resume = CLI_RESTORE),
        cli_real("label-smoothing", &recipe->label_smoothing, 0, 1,
                 "Share of the labels that is spread over all classes; 0: none",
                 .resume = CLI_RESTORE),
        cli_real("clip-grad-norm", &recipe->clip_grad_norm, 0, 1e30,
                 "Shorten the gradient to this norm where it is longer; 0: not",
                 .resume = CLI_RESTORE),
        cli_real("ema", &recipe->ema_decay, 0, 0.999999999,
                 "Average the weights with this decay (0.999) and test with the averages; 0: not",
                 .resume = CLI_RESTORE),
        { 0 }
    };
    train_args_add(&c->base.args, table);
}

train_run *cifar_options(cifar_run *c, const char *app, double lr, int64_t print_every)
{
    *c = (cifar_run){ .base = { .task = &cifar_task,
                                .app = app,
                                .args = { .epochs = 5,
                                          .batch_size = 256,
                                          .lr = lr,
                                          .workers = train_default_workers(),
                                          .save_every = 1 },
                                .recipe = { .accumulate = 1 } },
                      .print_every = print_every,
                      .stem = "imagenet" };
    train_args_options(&c->base.args,
                       "Folder with CIFAR-10's binary files, or with cifar-10-batches-bin/; "
                       "otherwise $TANDEM_DATA, otherwise data/cifar10",
                       "Checkpoint to write; Ctrl-C writes one, too");
    add_options(c);
    return &c->base;
}
