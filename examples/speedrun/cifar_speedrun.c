/* CIFAR-10 to 94 % in the shortest time: the recipe of airbench94 (Jordan 2024), built on
 * the library. What the lessons' nets learn in five epochs, and better, it learns in one
 * or two; the parts are in the files of this folder, each with a line on what it is for. The clock
 * covers whitening, training and the test; reading the data is outside.
 */
#include "apps/tools/common/cifar_data.h"
#include "tensor/clock.h"
#include "apps/tools/common/cli.h"
#include "apps/tools/common/log.h"
#include "apps/tools/common/progress.h"
#include "apps/tools/common/signals.h"
#include "examples/speedrun/speedrun.h"
#include "apps/tools/common/train_args.h"
#include "tensor/extend.h"

#include <inttypes.h>
#include <math.h>

static const char app_name[] = "cifar_speedrun";

enum { WHITENING_IMAGES = 5000, TRANSLATE = 2 };

typedef struct job {
    train_args args;
    const char *recipe;
    bool download, plain_test;
    double epochs, width;
    int64_t limit, runs;
    cifar_data data;
    const speedrun_recipe *how;
} job;

/* Statistics of the training set's pixels. */
static const td_image_transform normalise = { .mean = { 0.4914f, 0.4822f, 0.4465f },
                                              .std = { 0.2470f, 0.2435f, 0.2616f } };

static void read_options(job *j, int argc, char **argv)
{
    train_args *args = &j->args;
    const cli_option table[] = {
        cli_text("recipe", "NAME", &j->recipe,
                 "sgd: Nesterov SGD with Lookahead, 9.9 epochs of batches of 1024. muon: Muon for "
                 "the filters, 8 epochs of batches of 2000",
                 .choices = "sgd|muon"),
        cli_real("epochs", &j->epochs, 0, 1e6, "Passes over the training set; 0: the recipe's"),
        cli_int("batch-size", &args->batch_size, 0, 1e6, "Images in a step; 0: the recipe's"),
        cli_real("width", &j->width, 0.01, 16, "Multiplies the channels of the three blocks"),
        cli_int("limit", &j->limit, 0, 1e9,
                "Use the first N images only, of the training and the test set; 0: all"),
        cli_int("runs", &j->runs, 1, 1e6, "The number of runs, with seeds that follow each other"),
        cli_int("seed", &args->seed, 0, 9e15, "Of the first run"),
        cli_flag("plain-test", &j->plain_test,
                 "Test on each image once instead of on six views of it"),
        cli_text("save-model", "PATH", &args->files.save_model,
                 "Write the weights of the last run: td_load reads them into an airbench_new"),
        cli_text("data", "FOLDER", &args->data,
                 "Folder with CIFAR-10's binary files; otherwise $TANDEM_DATA, otherwise "
                 "data/cifar10"),
        cli_flag("download", &j->download, "Fetch CIFAR-10 (170 MB) if it is not there"),
        cli_text("device", "NAME", &args->compute.device_name,
                 "Where to compute: cpu, cuda, cuda:1"),
        cli_flag("graph", &args->compute.graph,
                 "GPUs: record a training step as a CUDA graph, and replay it: the same bits, and "
                 "the GPU no longer waits for the host"),
        cli_text("precision", "NAME", &args->compute.precision_name,
                 "Arithmetic of convolutions and products", .choices = "fp32|bf16|bf16x3"),
        cli_int("threads", &args->compute.threads, 0, 1024,
                "Threads that compute; 0: all CPUs. Results do not depend on it"),
        cli_int("workers", &args->workers, 0, 256, "Threads that prepare batches ahead; 0: none"),
        { 0 }
    };
    train_args_add(args, table);
    cli_parse_rest(argc, argv,
                   "Trains airbench94's net on CIFAR-10, whitening, alternating flips, test-time "
                   "augmentation and all, and says how good it is and how long it took.",
                   args->options, args->option_count, NULL);
}

static td_status apply_options(job *j)
{
    TD_TRY(train_args_apply(&j->args, app_name));
    if (j->args.files.save_model != NULL) {
        TD_TRY(check_can_save(j->args.files.save_model));
    }
    j->how = speedrun_recipe_of(j->recipe);
    j->epochs = j->epochs > 0 ? j->epochs : j->how->epochs;
    j->args.batch_size = j->args.batch_size > 0 ? j->args.batch_size : j->how->batch_size;
    TD_TRY(cifar_data_open(&(cifar_source){ .folder = j->args.data,
                                            .download = j->download,
                                            .limit = j->limit,
                                            .seed = (uint64_t)j->args.seed },
                           &j->data));
    TD_TRY(td_dataset_set_transform(j->data.whole_test, &normalise));
    if (j->args.batch_size > j->data.train->length) {
        return td_fail(TD_E_ARG,
                       "--batch-size %" PRId64 " is more than the %" PRId64
                       " training images: take a smaller one",
                       j->args.batch_size, j->data.train->length);
    }
    return TD_OK;
}

/* The first training images as they are, normalised, to find the whitening with. */
static td_tensor *whitening_images(const job *j)
{
    int64_t n = j->data.train->length < WHITENING_IMAGES ? j->data.train->length : WHITENING_IMAGES;
    td_loader *loader = NULL;
    td_tensor *images = NULL;
    if (td_dataset_set_transform(j->data.whole_train, &normalise) == TD_OK) {
        loader = td_loader_open(j->data.train, .batch_size = n);
    }
    td_batch batch;
    if (loader != NULL && td_loader_next(loader, &batch)) {
        images = td_clone(batch.x);
    }
    td_loader_close(loader);
    return images;
}

static td_loader *open_loader(const job *j, int64_t seed)
{
    td_image_transform transform = normalise;
    transform.crop_padding = TRANSLATE;
    transform.reflect = transform.flip = transform.alternate_flip = true;
    transform.seed = (uint64_t)seed;
    if (td_dataset_set_transform(j->data.whole_train, &transform) != TD_OK) {
        return NULL;
    }
    return td_loader_open(j->data.train, .batch_size = j->args.batch_size, .shuffle = true,
                          .drop_last = true, .device = j->args.device,
                          .workers = (int)j->args.workers);
}

/* The mean loss since the last line. */
static td_status print_epoch(const speedrun *s, int64_t epoch, int64_t samples, double began)
{
    double loss = td_item(s->loss) / (double)samples;
    if (!isfinite(loss)) {
        return td_fail(TD_E_ARG, "the loss is %g in epoch %" PRId64, loss, epoch);
    }
    printf("== epoch: [%" PRId64 "] | step %" PRId64 "/%" PRId64 " | loss: %.4f | %.1f s\n", epoch,
           s->step, s->steps, loss, td_clock() - began);
    fflush(stdout);
    td_fill_(s->loss, 0.0);
    return TD_OK;
}

static td_status train(speedrun *s, double began)
{
    td_status status = TD_OK;
    int64_t samples = 0;
    for (int64_t epoch = 1; s->step < s->steps && status == TD_OK && !stop_requested(); epoch++) {
        for (td_batch batch; s->step < s->steps && status == TD_OK && !stop_requested() &&
                             td_loader_next(s->loader, &batch);) {
            status = speedrun_step(s, &batch);
            samples += batch.size;
        }
        status = status == TD_OK ? td_loader_status(s->loader) : status;
        if (samples > 0 && status == TD_OK) {
            status = print_epoch(s, epoch, samples, began);
        }
        samples = 0;
        td_loader_seek(s->loader, (uint64_t)epoch, 0);
    }
    return status;
}

static td_status one_run(const job *j, int64_t seed, double *accuracy, double *seconds)
{
    td_manual_seed((uint64_t)seed);
    td_tensor *images = whitening_images(j);
    td_loader *loader = images != NULL ? open_loader(j, seed) : NULL;
    speedrun s = { .recipe = j->how,
                   .images = images,
                   .device = j->args.device,
                   .width = j->width,
                   .epochs = j->epochs,
                   .loader = loader,
                   .batch_size = j->args.batch_size,
                   .graph = j->args.compute.graph };
    double began = td_clock();
    td_status status = loader != NULL ? speedrun_begin(&s) : TD_E_NOMEM;
    td_free(images);
    if (status == TD_OK) {
        status = train(&s, began);
    }
    if (status == TD_OK && !stop_requested()) {
        status = speedrun_finish(&s);
    }
    if (status == TD_OK && !stop_requested()) {
        status = speedrun_test(s.net, j->data.whole_test, j->data.test, &normalise, !j->plain_test,
                               accuracy);
        *seconds = td_clock() - began;
    }
    if (status == TD_OK && !stop_requested() && j->args.files.save_model != NULL) {
        status = td_save(j->args.files.save_model, s.net);
    }
    td_loader_close(loader);
    speedrun_free(&s);
    return status;
}

static td_status all_runs(const job *j)
{
    double sum = 0.0, squares = 0.0;
    int64_t runs = 0;
    for (; runs < j->runs; runs++) {
        double accuracy = 0.0, seconds = 0.0;
        TD_TRY(one_run(j, j->args.seed + runs, &accuracy, &seconds));
        if (stop_requested()) {
            printf("stopped\n");
            break;
        }
        printf("== test: %" PRId64 " images | acc: %6.2f%% | %.2f s%s\n", j->data.test->length,
               100 * accuracy, seconds,
               j->data.test->synthetic ? " (synthetic, NOT CIFAR-10)" : "");
        sum += accuracy;
        squares += accuracy * accuracy;
    }
    if (runs > 1) {
        double mean = sum / (double)runs;
        double variance = (squares - sum * mean) / (double)(runs - 1);
        printf("== %" PRId64 " runs: mean %.2f%%, standard deviation %.2f\n", runs, 100 * mean,
               100 * sqrt(variance > 0.0 ? variance : 0.0));
    }
    return TD_OK;
}

int main(int argc, char **argv)
{
    job j = { .args = { .compute = { .precision_name = "fp32", .device_name = "cpu" },
                        .words = { .device = "--device" },
                        .workers = train_default_workers() },
              .recipe = "sgd",
              .width = 1.0,
              .runs = 1 };
    read_options(&j, argc, argv);
    signals_catch(true);
    td_status status = apply_options(&j);
    if (status == TD_OK) {
        printf("tandem %s: airbench94 by %s, batch %" PRId64 ", %g epochs, width %g, seed %" PRId64
               "; %s; %s; %s, %d threads\n",
               TANDEM_VERSION, j.recipe, j.args.batch_size, j.epochs, j.width, j.args.seed,
               j.data.name, td_device_name(j.args.device), train_args_arithmetic(),
               td_threads(TD_CPU));
        status = all_runs(&j);
    }
    cifar_data_close(&j.data);
    return status != TD_OK ? app_failed(app_name) : stop_requested() ? stop_exit_code() : 0;
}
