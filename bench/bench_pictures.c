/* Pictures of a folder as a training run takes them: decoded, RandomResizedCrop to 224, flipped,
 * normalised, in batches of 16 by the loader's workers.
 *
 * usage: bench_pictures FOLDER [WORKERS]        one "step" of the protocol is 480 pictures
 *        bench_pictures FOLDER WORKERS STEPS    trains ResNet-50 on them in fp32, and says how much
 *                                               of the time it has waited for pictures */
#include "tandem.h"

#include "bench/peer.h"
#include "data/inspect.h"

enum { PICTURES = 480, BATCH = 16, SIZE = 224 };

typedef struct job {
    td_dataset *data;
    td_loader *loader;
} job;

static void fail(void)
{
    fprintf(stderr, "bench_pictures: %s\n", td_last_error());
    exit(1);
}

/* ---- a small folder, again and again, so that an epoch is long enough to be timed ---- */

static int64_t repeated_order(td_sampler *sampler, uint64_t epoch, int64_t length, int64_t *index)
{
    (void)sampler, (void)epoch;
    for (int64_t i = 0; i < PICTURES; i++) {
        index[i] = i % length;
    }
    return PICTURES;
}

static int64_t repeated_count(const td_sampler *sampler, int64_t length)
{
    (void)sampler, (void)length;
    return PICTURES;
}

static void repeated_free(td_sampler *sampler)
{
    free(sampler);
}

static td_sampler *repeated(void)
{
    td_sampler *sampler = calloc(1, sizeof *sampler);
    if (sampler != NULL) {
        *sampler =
            (td_sampler){ .order = repeated_order, .count = repeated_count, .free = repeated_free };
    }
    return sampler;
}

static void open_pictures(job *j, const char *folder, int workers)
{
    j->data = td_image_folder_open(folder, .transform = { .size = SIZE,
                                                          .flip = true,
                                                          .mean = { 0.485f, 0.456f, 0.406f },
                                                          .std = { 0.229f, 0.224f, 0.225f } });
    if (j->data == NULL) {
        fail();
    }
    j->loader =
        td_loader_open(j->data, .batch_size = BATCH, .sampler = repeated(), .workers = workers);
    if (j->loader == NULL) {
        fail();
    }
}

/* ---- loading alone ---- */

static void load_all(void *user)
{
    job *j = user;
    int64_t seen = 0;
    for (td_batch batch; td_loader_next(j->loader, &batch);) {
        seen += batch.size;
    }
    if (td_loader_status(j->loader) != TD_OK || seen != PICTURES) {
        fail();
    }
}

/* ---- training on them ---- */

static void train(job *j, int steps)
{
    td_manual_seed(0);
    td_module *net = td_model("resnet50");
    td_optim *optim = td_sgd(td_parameters(net), .lr = 0.01, .momentum = 0.9);
    double begin = 0, waited = 0;
    td_batch batch;
    for (int i = -1; i < steps; i++) { /* the first is for warming up */
        if (i == 0) {
            begin = bench_now_ms();
            waited = td_loader_wait_seconds(j->loader);
        }
        if (!td_loader_next(j->loader, &batch) && !td_loader_next(j->loader, &batch)) {
            fail();
        }
        td_step_begin();
        td_zero_grad(optim);
        td_backward(td_cross_entropy(td_forward(net, batch.x), batch.y));
        td_optim_step(optim);
        td_step_end();
    }
    double all = (bench_now_ms() - begin) / 1e3;
    waited = td_loader_wait_seconds(j->loader) - waited;
    printf("ResNet-50 at %d, batch %d, fp32: %d steps of %.3f s; waited for data: %.2f %%\n", SIZE,
           BATCH, steps, all / steps, 100 * waited / all);
    td_optim_free(optim);
    td_module_free(net);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench_pictures FOLDER [WORKERS [STEPS]]\n");
        return 64;
    }
    job j;
    int workers = argc > 2 ? atoi(argv[2]) : 2;
    open_pictures(&j, argv[1], workers);
    if (argc > 3) {
        train(&j, atoi(argv[3]));
    } else {
        char facts[160];
        snprintf(facts, sizeof facts, "tandem %s, %d workers", TANDEM_VERSION, workers);
        bench_serve(facts, load_all, &j);
    }
    td_loader_close(j.loader);
    td_dataset_free(j.data);
    return 0;
}
