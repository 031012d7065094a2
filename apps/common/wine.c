#include "apps/common/wine.h"

#include "apps/common/files.h"
#include "apps/common/ranks.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FEATURES = 13, HIDDEN = 64, CLASSES = 3 };

/* ---- the model ---- */

static td_tensor *wine_forward(td_module *net, td_tensor *x, td_site at)
{
    (void)at;
    return td_forward(net->children[1], td_relu(td_forward(net->children[0], x)));
}

td_module *wine_net(const train_run *r)
{
    static const td_module_type type = { .name = "WineNet", .forward = wine_forward };
    td_module *net = td_module_new(&type, 0);
    td_module_add(net, "fc1", td_nn_linear(FEATURES, HIDDEN));
    td_module_add(net, "fc2", td_nn_linear(HIDDEN, CLASSES));
    net = td_module_finish(net);
    if (net != NULL && td_module_to(net, r->args.device, TD_F32) != TD_OK) {
        td_module_free(net);
        return NULL;
    }
    return net;
}

td_optim *wine_optim(const train_run *r)
{
    return r->net == NULL ? NULL : td_adam(td_parameters(r->net), .lr = r->args.lr);
}

/* ---- the data ---- */

/* The first training sample, as the article prints it. */
static td_status print_first_sample(const td_dataset *train)
{
    td_tensor *x = td_new(TD_SHAPE(1, FEATURES), TD_F32, TD_CPU);
    td_tensor *y = td_new(TD_SHAPE(1), TD_I64, TD_CPU);
    td_status status = TD_E_NOMEM;
    if (x != NULL && y != NULL) {
        status = train->vtable->fetch(train, (int64_t[]){ 0 }, 1, 0, x, y);
    }
    if (status == TD_OK) {
        printf("Sample from dataset:\nData: ");
        td_print(x, stdout);
        printf("Target: %.0f\n\n", td_item(y));
    }
    td_free(x);
    td_free(y);
    return status;
}

static td_status wine_open(train_run *r)
{
    wine_run *w = (wine_run *)r;
    TD_TRY(make_folders(r->args.save));
    TD_TRY(td_wine_split(r->args.data, 0.2, 42, &w->train, &w->test, NULL));
    r->train = w->train;
    r->test = w->test;
    snprintf(r->data_name, sizeof(r->data_name), "wine");
    return ranks_first() ? print_first_sample(w->train) : TD_OK;
}

static void wine_close(train_run *r)
{
    wine_run *w = (wine_run *)r;
    td_dataset_free(w->train);
    td_dataset_free(w->test);
}

/* ---- what is printed and saved ---- */

static void wine_begins(train_run *r)
{
    if (r->args.device.type != TD_DEVICE_CPU) {
        ranks_print("On %s, %s\n", td_device_describe(r->args.device), train_args_arithmetic());
    }
}

/* Each rank has a log of its own losses; of several ranks in DIR/rank<r>. */
static td_status wine_log_open(train_run *r)
{
    static const char *const names[] = { "loss", "epoch_loss", "lr" };
    char folder[TRAIN_PATH_BYTES];
    snprintf(folder, sizeof(folder), "%s/rank%d", r->args.log_dir, td_dist_rank());
    return metrics_open(td_dist_is_initialized() ? folder : r->args.log_dir, names, 3,
                        train_steps_done(r), &r->log);
}

static td_status wine_step_done(train_run *r, double loss)
{
    if (r->log == NULL) {
        return TD_OK;
    }
    bool last = r->state.batch == td_loader_batches(r->loader);
    double values[] = { loss, last ? train_epoch_loss(r) : NAN, td_optim_lr(r->optim) };
    return metrics_write(r->log, train_steps_done(r), values);
}

static void wine_epoch_done(train_run *r, double seconds, char *path)
{
    (void)seconds;
    int64_t epoch = r->state.epoch;
    progress_print(&r->progress, "Epoch %" PRId64 ", Loss: %.4f", epoch, train_epoch_loss(r));
    if (train_is_due(epoch, r->args.save_every)) {
        snprintf(path, TRAIN_PATH_BYTES, "%s/model_%" PRId64 ".safetensors", r->args.save, epoch);
    }
}

static void wine_latest(const train_run *r, char *path)
{
    snprintf(path, TRAIN_PATH_BYTES, "%s/model_latest.safetensors", r->args.save);
}

static void wine_saved(train_run *r, const char *path, bool at_epoch)
{
    int64_t epoch = r->state.epoch - 1; /* the next one has begun */
    (void)path;
    if (at_epoch) {
        progress_print(&r->progress, "Epoch %" PRId64 " | Model saved to model_%" PRId64 "...",
                       epoch, epoch);
    }
}

static td_status wine_tested(train_run *r, const evaluation *result)
{
    (void)r;
    ranks_print("Test: %" PRId64 "/%" PRId64 " right\n", result->correct, result->count);
    return TD_OK;
}

static const train_task wine_task = { .name = "wine",
                                      .open = wine_open,
                                      .close = wine_close,
                                      .begins = wine_begins,
                                      .step_done = wine_step_done,
                                      .epoch_done = wine_epoch_done,
                                      .latest = wine_latest,
                                      .saved = wine_saved,
                                      .log_open = wine_log_open,
                                      .tested = wine_tested,
                                      .sample = { 2, { 1, FEATURES } },
                                      .loads_at_end = true };

/* ---- options ---- */

train_run *wine_options(wine_run *w, const char *app)
{
    *w = (wine_run){ .base = { .task = &wine_task,
                               .app = app,
                               .args = { .data = "data/wine.csv",
                                         .epochs = 100,
                                         .batch_size = 32,
                                         .lr = 1e-3,
                                         .save = ".",
                                         .save_every = 50 } } };
    train_args_options(&w->base.args, "The wine data, a CSV file", "Folder for checkpoints");
    return &w->base;
}

void wine_rank_options(train_run *r)
{
    train_args_rank_options(&r->args);
    train_args_add(&r->args, (cli_option){ .name = "no-set-epoch",
                                           .help = "Every epoch in the order of the first (PyTorch "
                                                   "without set_epoch: a common mistake)",
                                           .kind = CLI_FLAG,
                                           .value = &r->no_set_epoch });
}
