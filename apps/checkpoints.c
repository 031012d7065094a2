/* Lesson 19: checkpoints. A run that was stopped in the middle of an epoch goes on as if nothing
 * had happened, to the last bit.
 *
 *     checkpoints                              a run without checkpoints
 *     checkpoints --stop 13 run.safetensors    saves after every fourth step, and ends after step
 * 13 checkpoints run.safetensors              goes on from run.safetensors, because it is there
 *
 * docs/tutorial/19-checkpoints.md explains the ideas. */
#include <nn/io/fingerprint.h>
#include <tandem.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int epochs = 5, save_every = 4, stop, seed; /* the options; stop 0: the run is not stopped */
static const char *file, *load = "all";
static const td_option options[] = {
    { "epochs", .number = &epochs, .least = 1 },
    { "save-every", .number = &save_every, .least = 1 },
    { "stop", .number = &stop, .least = 1 },
    { "seed", .number = &seed },
    { "load", .text = &load },
    { "FILE", .text = &file },
    { 0 },
};
static const char usage[] = "[--epochs N] [--save-every STEPS] [--stop STEP] [--seed N]\n"
                            "       [--load all|optimizer|weights] [FILE]";

static void must(bool fine)
{
    if (!fine) {
        td_die();
    }
}

/* Everything that the next step depends on: the weights; the optimizer's averages and its count of
 * steps; with .loader the place in the epoch, the epoch's order, and the random numbers, which
 * Dropout draws, too. The metadata are the program's own: here the epoch. */
static void save(td_module *net, td_optim *optim, td_loader *loader)
{
    char epoch[24];
    snprintf(epoch, sizeof epoch, "%d", (int)td_loader_epoch(loader));
    const td_metadata mine[] = { { "epoch", epoch } };
    must(td_checkpoint_save(file, net, .optim = optim, .loader = loader, .metadata = mine,
                            .metadata_count = 1) == TD_OK);
}

/* A run that loads less than all does not know where it was in the epoch, and begins it again. */
static void resume(td_module *net, td_optim *optim, td_loader *loader)
{
    bool all = strcmp(load, "all") == 0, weights = strcmp(load, "weights") == 0;
    must(td_checkpoint_load(file, net, .optim = weights ? NULL : optim,
                            .loader = all ? loader : NULL) == TD_OK);
    if (!all) {
        char epoch[24];
        must(td_checkpoint_metadata(file, "epoch", epoch, sizeof epoch) == TD_OK);
        td_loader_seek(loader, strtoull(epoch, NULL, 10), 0);
    }
    printf("loaded %s of %s\n", load, file);
}

/* The run, from wherever it is. */
static void train(td_module *net, td_optim *optim, td_loader *loader)
{
    while (td_loader_epoch(loader) < (uint64_t)epochs) {
        int epoch = (int)td_loader_epoch(loader);
        for (td_batch batch; td_loader_next(loader, &batch);) {
            int step = epoch * (int)td_loader_batches(loader) + (int)batch.index + 1;
            TD_STEP {
                td_tensor *loss = td_cross_entropy(td_forward(net, batch.x), batch.y);
                td_zero_grad(optim);
                td_backward(loss);
                td_optim_step(optim);
                printf("epoch %d, batch %d, step %2d: loss %.4f\n", epoch, (int)batch.index, step,
                       td_item(loss));
            }
            if (file != NULL && step % save_every == 0) {
                save(net, optim, loader);
                printf("saved %s\n", file);
            }
            if (step == stop) {
                printf("stopped\n");
                fflush(stdout);
                _exit(0); /* nothing is tidied up, as after kill -9 */
            }
        }
        must(td_loader_status(loader) == TD_OK);
    }
}

int main(int argc, char **argv)
{
    td_read_options(argc, argv, usage, options);
    if (strcmp(load, "all") != 0 && strcmp(load, "optimizer") != 0 &&
        strcmp(load, "weights") != 0) {
        td_refuse_options(usage, "--load: '%s' is not all, optimizer or weights", load);
    }
    td_dataset *train_set, *test_set;
    must(td_wine_split("data/wine.csv", 0.2, 42, &train_set, &test_set, NULL) == TD_OK);
    td_manual_seed((uint64_t)seed);
    td_module *net = td_nn_sequential(td_nn_linear(13, 64), td_nn_relu(), td_nn_dropout(0.2),
                                      td_nn_linear(64, 3));
    must(net != NULL);
    td_optim *optim = td_adam(td_parameters(net), .lr = 3e-3);
    td_loader *loader = td_loader_open(train_set, .batch_size = 32, .shuffle = true);
    td_loader *test_loader = td_loader_open(test_set, .batch_size = 36);
    must(optim != NULL && loader != NULL && test_loader != NULL);

    if (file != NULL && access(file, F_OK) == 0) {
        resume(net, optim, loader);
    }
    train(net, optim, loader);

    td_evaluation test = td_evaluate(net, test_loader);
    td_fingerprints bits; /* of all that a checkpoint would hold */
    must(test.status == TD_OK &&
         td_fingerprint(&bits, .model = net, .optim = optim, .with_random = true) == TD_OK);
    printf("test: loss %.4f, %d/%d right\n", test.loss, (int)test.right, (int)test.seen);
    printf("fingerprint of the run: %016llx\n", (unsigned long long)bits.all);

    td_fingerprints_free(&bits);
    td_loader_close(test_loader);
    td_loader_close(loader);
    td_optim_free(optim);
    td_module_free(net);
    td_dataset_free(test_set);
    td_dataset_free(train_set);
    return td_finish();
}
