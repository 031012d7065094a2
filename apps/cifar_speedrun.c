/* CIFAR-10 to 94 % in the shortest time: the recipe of airbench94 (Jordan 2024), built from the
 * framework's own parts. What the lessons' nets learn in five epochs, and better, it learns in one
 * or two; the parts are in apps/common/speedrun.c and nn/models/zoo/airbench.c, each with a line on
 * what it is for. The clock covers whitening, training and the test; reading the data is outside.
 */
#include "apps/common/cifar_data.h"
#include "apps/common/cli.h"
#include "apps/common/files.h"
#include "apps/common/notes.h"
#include "apps/common/progress.h"
#include "apps/common/signals.h"
#include "apps/common/speedrun.h"
#include "apps/common/train_args.h"

#include <inttypes.h>
#include <math.h>

static const char app_name[] = "cifar_speedrun";

enum { WHITENING_IMAGES = 5000, TRANSLATE = 2 };

typedef struct job {
    const char *recipe, *folder, *precision, *device_name, *save_model;
    bool download, plain_test, graph;
    td_device device;
    double epochs, width;
    int64_t batch_size, limit, runs, seed, threads, workers;
    cifar_data data;
    const speedrun_recipe *how;
} job;

/* Statistics of the training set's pixels. */
static const td_image_transform normalise = { .mean = { 0.4914f, 0.4822f, 0.4465f },
                                              .std = { 0.2470f, 0.2435f, 0.2616f } };

static void read_options(job *j, int argc, char **argv)
{
    cli_option options[] = {
        { .name = "recipe",
          .argument = "NAME",
          .kind = CLI_TEXT,
          .value = &j->recipe,
          .choices = "sgd|muon",
          .help = "sgd: Nesterov SGD with Lookahead, 9.9 epochs of batches of 1024. muon: Muon for "
                  "the filters, 8 epochs of batches of 2000" },
        { .name = "epochs",
          .argument = "X",
          .kind = CLI_REAL,
          .value = &j->epochs,
          .high = 1e6,
          .help = "Passes over the training set; 0: the recipe's" },
        { .name = "batch-size",
          .argument = "N",
          .kind = CLI_INT,
          .value = &j->batch_size,
          .high = 1e6,
          .help = "Pictures in a step; 0: the recipe's" },
        { .name = "width",
          .argument = "X",
          .kind = CLI_REAL,
          .value = &j->width,
          .low = 0.01,
          .high = 16,
          .help = "Multiplies the channels of the three blocks" },
        { .name = "limit",
          .argument = "N",
          .kind = CLI_INT,
          .value = &j->limit,
          .high = 1e9,
          .help = "Use the first N images only, of the training and the test set; 0: all" },
        { .name = "runs",
          .argument = "N",
          .kind = CLI_INT,
          .value = &j->runs,
          .low = 1,
          .high = 1e6,
          .help = "So many runs, with seeds that follow each other" },
        { .name = "seed",
          .argument = "N",
          .kind = CLI_INT,
          .value = &j->seed,
          .high = 9e15,
          .help = "Of the first run" },
        { .name = "plain-test",
          .kind = CLI_FLAG,
          .value = &j->plain_test,
          .help = "Test on each picture once instead of on six views of it" },
        { .name = "save-model",
          .argument = "PATH",
          .kind = CLI_TEXT,
          .value = &j->save_model,
          .help = "Write the trained model of the last run: for predict and td_load_model" },
        { .name = "data",
          .argument = "FOLDER",
          .kind = CLI_TEXT,
          .value = &j->folder,
          .help = "Folder with CIFAR-10's binary files; otherwise $TANDEM_DATA, otherwise "
                  "data/cifar10" },
        { .name = "download",
          .kind = CLI_FLAG,
          .value = &j->download,
          .help = "Fetch CIFAR-10 (170 MB) if it is not there" },
        { .name = "device",
          .argument = "NAME",
          .kind = CLI_TEXT,
          .value = &j->device_name,
          .help = "Where to compute: cpu, cuda, cuda:1" },
        { .name = "graph",
          .kind = CLI_FLAG,
          .value = &j->graph,
          .help = "GPUs: record a training step as a CUDA graph, and replay it: the same bits, and "
                  "the GPU no longer waits for the host" },
        { .name = "precision",
          .argument = "NAME",
          .kind = CLI_TEXT,
          .value = &j->precision,
          .choices = "fp32|bf16|bf16x3",
          .help = "Arithmetic of convolutions and products" },
        { .name = "threads",
          .argument = "N",
          .kind = CLI_INT,
          .value = &j->threads,
          .high = 1024,
          .help = "Threads that compute; 0: all CPUs. Results do not depend on it" },
        { .name = "workers",
          .argument = "N",
          .kind = CLI_INT,
          .value = &j->workers,
          .high = 256,
          .help = "Threads that prepare batches ahead; 0: none" },
    };
    cli_parse(argc, argv,
              "Trains airbench94's net on CIFAR-10, whitening, alternating flips, test-time "
              "augmentation and all, and says how good it is and how long it took.",
              options, sizeof options / sizeof *options);
}

static td_status apply_options(job *j)
{
    td_math math = { 0 };
    TD_REQUIRE(td_precision_parse(j->precision, &math.precision), TD_HERE,
               "--precision %s is none of its choices", j->precision);
    td_status parsed = td_device_parse(j->device_name, &j->device);
    if (parsed != TD_OK) {
        return td_fail_context(parsed, "--device");
    }
    TD_TRY(td_precision_check(j->device, math.precision));
    td_set_math(math);
    if (j->threads > 0) {
        TD_TRY(td_set_threads(TD_CPU, (int)j->threads));
    }
    if (j->save_model != NULL) {
        TD_TRY(check_can_save(j->save_model));
    }
    j->how = speedrun_recipe_of(j->recipe);
    j->epochs = j->epochs > 0 ? j->epochs : j->how->epochs;
    j->batch_size = j->batch_size > 0 ? j->batch_size : j->how->batch_size;
    TD_TRY(cifar_data_open(&(cifar_source){ .folder = j->folder,
                                            .download = j->download,
                                            .limit = j->limit,
                                            .seed = (uint64_t)j->seed },
                           &j->data));
    TD_TRY(td_dataset_set_transform(j->data.whole_test, &normalise));
    if (j->batch_size > j->data.train->length) {
        return td_fail(TD_E_ARG,
                       "--batch-size %" PRId64 " is more than the %" PRId64
                       " training images: take a smaller one",
                       j->batch_size, j->data.train->length);
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
    return td_loader_open(j->data.train, .batch_size = j->batch_size, .shuffle = true,
                          .drop_last = true, .device = j->device, .workers = (int)j->workers);
}

/* The mean loss since the last line. */
static void print_epoch(const speedrun *s, int64_t epoch, int64_t samples, double began)
{
    printf("== epoch: [%" PRId64 "] | step %" PRId64 "/%" PRId64 " | loss: %.4f | %.1f s\n", epoch,
           s->step, s->steps, td_item(s->loss) / (double)samples, seconds_now() - began);
    fflush(stdout);
    td_fill_(s->loss, 0.0);
}

static td_status train(speedrun *s, td_loader *loader, double began)
{
    td_status status = TD_OK;
    int64_t samples = 0;
    for (int64_t epoch = 1; s->step < s->steps && status == TD_OK && !stop_requested(); epoch++) {
        for (td_batch batch; s->step < s->steps && status == TD_OK && !stop_requested() &&
                             td_loader_next(loader, &batch);) {
            status = speedrun_step(s, &batch);
            samples += batch.size;
        }
        status = status == TD_OK ? td_loader_status(loader) : status;
        if (samples > 0) {
            print_epoch(s, epoch, samples, began);
        }
        samples = 0;
        td_loader_set_epoch(loader, (uint64_t)epoch);
    }
    return status;
}

/* How many steps were replayed, and what kept the others from it. */
static void print_graph(const speedrun *s)
{
    if (s->captured != NULL) {
        td_captured_stats stats = td_captured_now(s->captured);
        printf("graph: %" PRId64 " steps as ever, %" PRId64 " recorded, %" PRId64 " replayed%s%s\n",
               stats.eager, stats.recorded, stats.replayed, stats.why[0] != '\0' ? "; " : "",
               stats.why);
    }
}

static td_status save_model(const job *j, td_module *net)
{
    model_notes notes;
    td_status status =
        model_notes_make(&notes, &(model_input){ 32, 32, normalise.mean, normalise.std },
                         j->data.train, SPEEDRUN_CLASSES);
    if (status == TD_OK) {
        status = model_notes_save(j->save_model, net, NULL, &notes, NULL, 0);
    }
    model_notes_free(&notes);
    return status;
}

static td_status one_run(const job *j, int64_t seed, double *accuracy, double *seconds)
{
    td_manual_seed((uint64_t)seed);
    td_tensor *images = whitening_images(j);
    td_loader *loader = images != NULL ? open_loader(j, seed) : NULL;
    speedrun s = { 0 };
    double began = seconds_now();
    td_status status = loader == NULL
                           ? TD_E_NOMEM
                           : speedrun_begin(&s, &(speedrun_options){ .recipe = j->how,
                                                                     .images = images,
                                                                     .device = j->device,
                                                                     .width = j->width,
                                                                     .epochs = j->epochs,
                                                                     .loader = loader,
                                                                     .batch_size = j->batch_size,
                                                                     .graph = j->graph });
    td_free(images);
    if (status == TD_OK) {
        status = train(&s, loader, began);
    }
    if (status == TD_OK && !stop_requested()) {
        status = speedrun_finish(&s);
        print_graph(&s);
    }
    if (status == TD_OK && !stop_requested()) {
        status = speedrun_test(s.net, j->data.whole_test, j->data.test, &normalise, !j->plain_test,
                               accuracy);
        *seconds = seconds_now() - began;
    }
    if (status == TD_OK && !stop_requested() && j->save_model != NULL) {
        status = save_model(j, s.net);
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
        TD_TRY(one_run(j, j->seed + runs, &accuracy, &seconds));
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
    job j = { .recipe = "sgd",
              .precision = "fp32",
              .device_name = "cpu",
              .width = 1.0,
              .runs = 1,
              .workers = train_default_workers() };
    read_options(&j, argc, argv);
    signals_catch(true);
    td_status status = apply_options(&j);
    if (status == TD_OK) {
        printf("tandem %s: airbench94 by %s, batch %" PRId64 ", %g epochs, width %g, seed %" PRId64
               "; %s; %s; %s, %d threads\n",
               TANDEM_VERSION, j.recipe, j.batch_size, j.epochs, j.width, j.seed, j.data.name,
               td_device_name(j.device), train_args_arithmetic(), td_threads(TD_CPU));
        status = all_runs(&j);
    }
    cifar_data_close(&j.data);
    return status != TD_OK ? app_failed(app_name) : stop_requested() ? stop_exit_code() : 0;
}
