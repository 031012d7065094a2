/* Lesson 7: one step of ResNet-18 on two ranks, its gradients sent in three ways, as time lines.
 *
 *     overlap after trace.json       all gradients in one message, after backward
 *     overlap each trace.json        a message for each gradient
 *     overlap buckets trace.json     buckets, as td_ddp makes them
 *
 * docs/tutorial/7-cifar-ddp-spawn.md shows the time lines. */
#include <dist/trace.h>
#include <nn/module.h>
#include <tandem.h>

#include <string.h>
#include <time.h>

enum { BATCH = 50 };

static const char *way, *file; /* the options */
static int steps = 6;
static const td_option options[] = {
    { "steps", .number = &steps, .least = 2, .most = 1000 },
    { "WAY", .text = &way },
    { "TRACE", .text = &file },
    { 0 },
};
static const char usage[] = "[--steps N] after|each|buckets TRACE.json";

static void must(bool fine)
{
    if (!fine) {
        td_die();
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The mean of all gradients, in one message, while nothing is computed. */
static void send_all(td_module *net)
{
    td_tensor *gradients = td_params_flat_grad(td_parameters(net));
    double begin = now();
    must(td_all_reduce(NULL, gradients, TD_AVERAGE, NULL) == TD_OK);
    td_trace_communication("message 0", begin, now(), td_numel(gradients) * 4);
}

static int train(int rank, void *unused)
{
    (void)rank, (void)unused;
    bool after = strcmp(way, "after") == 0, each = strcmp(way, "each") == 0;
    must(td_dist_init() == TD_OK);
    td_dataset *set;
    must(td_synthetic_images((int64_t)2 * steps * BATCH, 0, &set) == TD_OK);
    td_manual_seed(0);
    td_module *net = td_ddp(td_model("resnet18", .classes = 10), .bucket_cap_mb = each ? 1e-6 : 0);
    must(net != NULL);
    td_optim *optim = td_sgd(td_parameters(net), .lr = 0.02, .momentum = 0.9);
    td_loader *loader = td_loader_open(set, .batch_size = BATCH,
                                       .sampler = td_distributed_sampler(.shuffle = true));
    must(optim != NULL && loader != NULL && td_trace_open(file) == TD_OK);
    for (td_batch batch; td_loader_next(loader, &batch);) {
        td_trace_begin("step");
        TD_STEP {
            td_tensor *loss = td_cross_entropy(td_forward(net, batch.x), batch.y);
            td_zero_grad(optim);
            if (after) {
                td_ddp_no_sync_begin(net); /* td_ddp sends nothing */
            }
            td_backward(loss);
            if (after) {
                td_ddp_no_sync_end(net);
                send_all(net);
            }
            td_optim_step(optim);
        }
        td_trace_end();
    }
    must(td_loader_status(loader) == TD_OK && td_trace_close() == TD_OK);
    td_loader_close(loader);
    td_optim_free(optim);
    td_module_free(net);
    td_dataset_free(set);
    td_dist_destroy();
    return 0;
}

int main(int argc, char **argv)
{
    td_read_options(argc, argv, usage, options);
    if (file == NULL ||
        (strcmp(way, "after") != 0 && strcmp(way, "each") != 0 && strcmp(way, "buckets") != 0)) {
        td_refuse_options(usage, "name a way, and a file for the time line");
    }
    must(td_spawn(train, NULL, 2) == TD_OK);
    return 0;
}
