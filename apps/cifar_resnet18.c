/* The main job: ResNet-18 on CIFAR-10 in every way of the lessons; options and the environment
 * choose the way.
 *
 *   cifar_resnet18                             one device (lesson 5)
 *   cifar_resnet18 --dp 2                      DataParallel: two devices of one process (lesson 6)
 *   cifar_resnet18 --spawn 2                   two processes that it starts (lesson 7)
 *   tdrun --nproc-per-node 2 cifar_resnet18    the launcher's processes (lesson 8)
 *   srun --ntasks 2 cifar_resnet18             Slurm's (lesson 9)
 *   mpirun -n 2 cifar_resnet18                 MPI's
 *
 * This file has the model, the data, what is printed, and this program's options. The training
 * loop, checkpoints, and the options that train_net has, too, are in apps/tools/common/train.h.
 *
 * All ranks use one seed, so they begin with equal weights. Crops and flips of an image depend on
 * the seed, the epoch and the image, not on the rank. */
#include "apps/tools/common/cifar_data.h"
#include "apps/tools/common/train.h"

enum { CLASSES = 10, TEST_BATCH = 256 };
enum { PRINT_EVERY_ALONE = 50, PRINT_EVERY_TOGETHER = 25 /* steps */ };

typedef struct job {
    train_run base; /* first: a train_run * of this program is a job * */
    int64_t limit, print_every, test_every, dp, spawn;
    const char *stem;
    bool download;
    cifar_data data;
} job;

static const job *job_of(const train_run *r)
{
    return (const job *)r;
}

/* ---- the model ---- */

/* ResNet-18 on the run's device; NULL when memory is short. */
static td_module *resnet18(const train_run *r)
{
    bool small = strcmp(job_of(r)->stem, "cifar") == 0;
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

/* The model for this run: on several devices, in several processes, or on one device. */
static td_module *wrapped_net(const train_run *r)
{
    td_device devices[TD_MAX_DEVICES];
    int count = (int)job_of(r)->dp;
    for (int i = 0; i < count; i++) {
        devices[i] = (td_device){ r->args.device.type, (unsigned char)(r->args.device.index + i) };
    }
    return count > 0                  ? td_data_parallel(resnet18(r), devices, count)
           : td_dist_is_initialized() ? train_ddp(r, resnet18(r))
                                      : resnet18(r);
}

/* ---- the data ---- */

/* One rank of each host downloads the data; the others wait and use the same files. */
static td_status open_data(train_run *r)
{
    job *j = (job *)r;
    bool fetches = td_dist_local_rank() == 0;
    TD_CHECK(!j->download || !ranks_elastic(), TD_E_ARG,
             "tdrun --elastic, and --download: processes that begin at different times would each "
             "fetch the data; run the program once without tdrun");
    if (!fetches) {
        TD_TRY(ranks_barrier());
    }
    TD_TRY(cifar_data_open(&(cifar_source){ .folder = r->args.data,
                                            .download = j->download && fetches,
                                            .limit = j->limit,
                                            .seed = (uint64_t)r->args.seed },
                           &j->data));
    if (fetches) {
        TD_TRY(ranks_barrier());
    }
    r->train = j->data.train;
    r->tests.data = j->data.test;
    snprintf(r->data_name, sizeof(r->data_name), "%s", j->data.name);
    return notes_add_model(
        &r->notes, &(model_input){ 32, 32, cifar_normalise.mean, cifar_normalise.std }, r->train);
}

static void close_data(train_run *r)
{
    cifar_data_close(&((job *)r)->data);
}

/* ---- what is printed, logged and saved ---- */

static void step_done(train_run *r, double loss)
{
    (void)loss;
    const train_state *s = &r->state;
    int64_t steps = td_loader_batches(r->loader);
    if (train_is_due(s->batch, job_of(r)->print_every) || s->batch == steps) {
        progress_print(&r->progress,
                       "== step: [%3" PRId64 "/%" PRId64 "] [%" PRId64 "/%" PRId64
                       "] | loss: %.3f | acc: %6.3f%%",
                       s->batch, steps, s->epoch + 1, r->args.epochs, train_epoch_loss(r),
                       100 * train_epoch_accuracy(r));
    }
}

static void epoch_done(train_run *r, double seconds, char *path)
{
    (void)path;
    progress_print(&r->progress,
                   "== epoch: [%" PRId64 "/%" PRId64 "] | %.1f s | %.0f images/s | waited for "
                   "data: %.1f s",
                   r->state.epoch + 1, r->args.epochs, seconds,
                   (double)(r->state.seen - r->clock.seen_before) / seconds,
                   td_loader_wait_seconds(r->loader) - r->clock.waited);
}

/* One process prints a short line, several print which rank has saved. */
static void saved(train_run *r, const char *path, bool at_epoch)
{
    (void)at_epoch;
    progress_print(&r->progress,
                   td_dist_world_size() > 1 ? "(rank: 0)   == Saved: %s" : "== saved: %s", path);
}

/* Loss and accuracy over the test set. */
static td_status tested(train_run *r, const td_evaluation *result)
{
    td_printf_rank0("\n== test: %" PRId64 " images | loss: %.3f | acc: %6.3f%%%s\n", result->seen,
                    result->loss, 100 * result->accuracy,
                    r->tests.data->synthetic ? " (synthetic, NOT CIFAR-10)" : "");
    return train_log_test(r, result);
}

/* After an epoch that is not the last, whose test is the run's. */
static td_status validate(train_run *r)
{
    td_evaluation e;
    int64_t epoch = r->state.epoch + 1;
    if (epoch == r->args.epochs || !train_is_due(epoch, job_of(r)->test_every)) {
        return TD_OK;
    }
    TD_TRY(train_validate(r, TEST_BATCH, &e));
    if (e.seen > 0) {
        progress_print(&r->progress,
                       "== test: [%" PRId64 "/%" PRId64 "] | loss: %.3f | acc: %6.3f%%", epoch,
                       r->args.epochs, e.loss, 100 * e.accuracy);
    }
    return TD_OK;
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
                    TANDEM_VERSION, job_of(r)->stem, td_parameter_count(r->net), r->data_name,
                    r->args.batch_size, ranks, r->args.lr, r->args.seed, train_args_arithmetic(),
                    td_device_describe(r->args.device), loader);
}

static void begins(train_run *r)
{
    describe(r);
    progress_print(&r->progress, "\n=======  Training  =======\n");
}

static const train_task task = { .name = "ResNet-18 on CIFAR-10",
                                 .open = open_data,
                                 .close = close_data,
                                 .begins = begins,
                                 .step_done = step_done,
                                 .epoch_done = epoch_done,
                                 .validate = validate,
                                 .saved = saved,
                                 .metrics = TRAIN_FEW_METRICS,
                                 .tested = tested };

/* ---- training ---- */

static td_loader *load(train_run *r)
{
    return train_loader(r, td_dist_is_initialized() ? train_sampler(r) : NULL);
}

static td_status train(train_run *r)
{
    if (td_dist_is_initialized() && !train_args_find(&r->args, "print-every")->given) {
        ((job *)r)->print_every = PRINT_EVERY_TOGETHER;
    }
    if (!train_args_find(&r->args, "lr")->given) {
        r->args.lr *= (double)train_world(r);
    }
    if (!train_args_find(&r->args, "test-every")->given) {
        ((job *)r)->test_every = job_of(r)->limit == 0;
    }
    TD_TRY(train_mesh(r));
    TD_TRY(train_begin(r));
    r->net = wrapped_net(r);
    r->optim = r->net == NULL ? NULL
                              : td_sgd(td_parameters(r->net), .lr = r->args.lr, .momentum = 0.9,
                                       .nesterov = true, .weight_decay = 1e-4);
    return train_loop(r, load);
}

static int run(job *j)
{
    train_run *r = &j->base;
    bool started = td_dist_is_launched();
    if ((j->dp > 0) + (j->spawn > 0) + started > 1) {
        fprintf(stderr,
                "%s: one way at a time: --dp, --spawn, or processes that tdrun, srun or mpirun has "
                "started%s\n",
                r->app, started ? " (the environment says that this is one of those)" : "");
        return 1;
    }
    return j->dp > 0 ? train_main(r, train) : train_start(r, train, sizeof *j, j->spawn);
}

/* ---- options ---- */

static void add_options(job *j)
{
    train_args *args = &j->base.args;
    train_recipe *recipe = &j->base.args.recipe;
    train_args_options(args,
                       "Folder with CIFAR-10's binary files, or with cifar-10-batches-bin/; "
                       "otherwise $TANDEM_DATA, otherwise data/cifar10",
                       "Checkpoint to write; Ctrl-C writes one, too");
    const cli_option table[] = {
        cli_flag("download", &j->download, "Fetch CIFAR-10 (170 MB) if it is not there"),
        cli_int("print-every", &j->print_every, 1, 1e9,
                "Steps between two lines of loss and accuracy"),
        cli_int("test-every", &j->test_every, 0, 1e6,
                "Epochs between two tests: 1, or with --limit 0: one test, at the end"),
        cli_int("limit", &j->limit, 0, 1e9,
                "Use the first N images only, of the training and the test set; 0: all",
                .resume = CLI_FIXED),
        cli_text("stem", "NAME", &j->stem,
                 "First layers: imagenet (7x7, stride 2, pool) or cifar (3x3; "
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
                 "Scale the gradient down to this norm if it is larger; 0: off",
                 .resume = CLI_RESTORE),
        cli_real("ema", &recipe->ema_decay, 0, 0.999999999,
                 "Average the weights with this decay (0.999) and test with the averages; 0: off",
                 .resume = CLI_RESTORE),
        cli_int("dp", &j->dp, 0, TD_MAX_DEVICES,
                "DataParallel: the number of devices of this process; 0: off"),
        cli_int("spawn", &j->spawn, 0, 1024,
                "DistributedDataParallel: the number of processes to start; 0: off"),
        { 0 }
    };
    train_args_add(args, table);
    train_args_rank_options(args);
}

int main(int argc, char **argv)
{
    job j = { .base = { .task = &task,
                        .app = "cifar_resnet18",
                        .args = { .epochs = 5,
                                  .batch_size = 256,
                                  .lr = 0.01,
                                  .workers = train_default_workers(),
                                  .files.save_every = 1,
                                  .recipe.accumulate = 1 } },
              .print_every = PRINT_EVERY_ALONE,
              .stem = "imagenet" };
    train_args *args = &j.base.args;
    add_options(&j);
    cli_parse_rest(
        argc, argv,
        "Trains ResNet-18 on CIFAR-10, and tests it: on one device, or by --dp, by --spawn, or "
        "as one of the processes that tdrun, srun or mpirun has started. Unless --lr is "
        "given, the learning rate is multiplied by the number of processes.",
        args->options, args->option_count, NULL);
    return run(&j);
}
