/* A worker of an elastic run under tdrun: worker_elastic FOLDER STEPS. It writes its pid to
 * FOLDER/pids, and the checkpoint FOLDER/run.safetensors every 100 steps, from which a run that is
 * started again goes on. Rank 0 prints the fingerprint at the end. With STEPS 0 it ends itself. */
#include "dist/elastic/elastic.h"
#include "dist/leaves/leaves.h"
#include "nn/io/fingerprint.h"
#include "tandem.h"
#include "tensor/clock.h"
#include "tensor/extend.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LEAVES = 6, SAMPLES = 2, FEATURES = 8, SAVE_EVERY = 100 };

typedef struct worker {
    td_module *net;
    td_optim *optim;
    td_elastic *run;
    char path[512];
} worker;

static void worker_die(void)
{
    fprintf(stderr, "worker_elastic: %s\n", td_last_error());
    exit(7);
}

static void note_pid(const char *folder)
{
    char path[512];
    snprintf(path, sizeof path, "%s/pids", folder);
    FILE *file = fopen(path, "a");
    if (file == NULL || fprintf(file, "%ld\n", (long)getpid()) < 0 || fclose(file) != 0) {
        exit(8);
    }
}

static void worker_step(worker *w)
{
    int64_t step = td_elastic_step(w->run);
    for (int leaf; (leaf = td_leaf_next(w->net)) >= 0;) {
        TD_STEP {
            td_generator g;
            td_generator_seed(&g, (uint64_t)(step * LEAVES + leaf));
            td_tensor *x =
                td_step_new(TD_SHAPE(SAMPLES, FEATURES), TD_F32, TD_ROW_MAJOR, TD_CPU, TD_HERE);
            td_normal_(x, 0, 1, &g);
            td_tensor *y = td_forward(w->net, x);
            td_backward(td_mean(td_mul(y, y)));
        }
    }
    td_sleep(0.001);
    if (!td_elastic_commit(w->run)) {
        return;
    }
    td_optim_step(w->optim);
    if ((step + 1) % SAVE_EVERY == 0 && td_dist_rank() == 0) {
        char text[32];
        snprintf(text, sizeof text, "%" PRId64, step + 1);
        td_metadata steps = { "steps", text };
        if (td_checkpoint_save(.path = w->path, .model = w->net, .optim = w->optim,
                               .with_random = true, .metadata = &steps,
                               .metadata_count = 1) != TD_OK) {
            worker_die();
        }
    }
}

/* The steps of the checkpoint, if there is one. */
static int64_t worker_resume(const worker *w)
{
    char text[32] = "0";
    if (access(w->path, R_OK) != 0) {
        return 0;
    }
    if (td_checkpoint_load(.path = w->path, .model = w->net, .optim = w->optim,
                           .with_random = true) != TD_OK ||
        td_checkpoint_metadata(w->path, "steps", text, sizeof text) != TD_OK) {
        worker_die();
    }
    return strtoll(text, NULL, 10);
}

static void worker_finish(worker *w)
{
    td_fingerprints bits;
    if (td_fingerprint(&bits, .model = w->net, .optim = w->optim) != TD_OK) {
        worker_die();
    }
    td_printf_rank0("fingerprint %016" PRIx64 "\n", bits.all);
    td_fingerprints_free(&bits);
    (void)td_elastic_finish(w->run);
}

int main(int argc, char **argv)
{
    worker w = { 0 };
    if (argc != 3) {
        return 9;
    }
    int64_t steps = strtoll(argv[2], NULL, 10);
    note_pid(argv[1]);
    if (steps == 0) {
        raise(SIGKILL);
    }
    snprintf(w.path, sizeof w.path, "%s/run.safetensors", argv[1]);
    td_manual_seed(3);
    w.net = td_nn_sequential(td_nn_linear(FEATURES, 12), td_nn_batch_norm2d(12), td_nn_dropout(0.1),
                             td_nn_linear(12, 3));
    w.optim = td_sgd(td_parameters(w.net), .lr = 0.01, .momentum = 0.9);
    td_checkpoint_options state = { .model = w.net, .optim = w.optim };
    w.run = td_elastic_open(&state, .leaves = LEAVES, .step = worker_resume(&w), .timeout = 20);
    if (w.run == NULL) {
        worker_die();
    }
    while (td_elastic_meet(w.run)) {
        while (td_elastic_stands(w.run) && td_elastic_step(w.run) < steps) {
            worker_step(&w);
        }
        if (td_elastic_stands(w.run)) {
            worker_finish(&w);
        }
    }
    if (td_elastic_close(w.run) != TD_OK) {
        worker_die();
    }
    td_optim_free(w.optim);
    td_module_free(w.net);
    return 0;
}
