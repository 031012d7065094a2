/* Lesson 4: the network of lesson 2, started by a launcher.
 *
 * The program starts no processes and has no options for hosts. A launcher starts it once for each
 * rank. Environment variables say which rank it is: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
 * with tdrun; Slurm's srun and mpirun have variables of their own.
 *
 *   tdrun --nproc-per-node 2 wine_ddp_launch
 *   srun --ntasks 2 wine_ddp_launch
 *
 * docs/tutorial/4-wine-ddp-launch.md explains the ideas. */
#include <tandem.h>

/* The options, and their defaults. A name in capitals is a positional argument. */
static int total_epochs = 100, save_every = 50, batch_size = 32;
static const td_option options[] = {
    { "batch-size", .number = &batch_size, .least = 1 },
    { "TOTAL_EPOCHS", .number = &total_epochs, .least = 1 },
    { "SAVE_EVERY", .number = &save_every, .least = 1 },
    { 0 },
};
static const char usage[] = "[--batch-size N] [TOTAL_EPOCHS [SAVE_EVERY]]";

/* A loader hands out a dataset in batches. */
static void print_first_sample(td_dataset *dataset)
{
    td_loader *loader = td_loader_open(dataset, .batch_size = 1);
    td_batch sample;
    if (loader == NULL || !td_loader_next(loader, &sample)) {
        td_die(); /* prints what went wrong, and exits with 1 */
    }
    printf("Sample from dataset:\nData: ");
    td_print(sample.x, stdout);
    printf("Target: %.0f\n\n", td_item(sample.y));
    td_loader_close(loader);
}

static int train(void)
{
    /* All ranks wait here for the last one; from then on they are a process group. The launcher has
     * put rank, number of ranks and meeting place into the environment. */
    if (td_dist_init() != TD_OK) {
        td_die();
    }
    printf("[init] == local rank: %d, global rank: %d ==\n", td_dist_local_rank(), td_dist_rank());
    td_device device = td_default_device(); /* TANDEM_DEVICE=cuda: a GPU; otherwise the CPU */

    /* The data: 20 % are for testing, chosen at random with the seed 42. Each measurement is scaled
     * to mean 0 and deviation 1. */
    td_dataset *train_set, *test_set;
    if (td_wine_split("data/wine.csv", 0.2, 42, &train_set, &test_set, NULL) != TD_OK) {
        td_die();
    }
    if (td_dist_rank() == 0) {
        print_first_sample(train_set);
    }

    /* The model: 13 measurements in, 3 numbers (logits) out, one for each kind of wine. Its
     * parameters (weights and biases) begin as random numbers, drawn with the seed 0. */
    td_manual_seed(0);
    td_module *net = td_nn_sequential(td_nn_linear(13, 64), td_nn_relu(), td_nn_linear(64, 3));
    if (net == NULL || td_module_to(net, device, TD_F32) != TD_OK) {
        td_die();
    }
    /* DistributedDataParallel: copies rank 0's parameters to all ranks. From now on td_backward
     * replaces each gradient by its mean over the ranks. A bucket is a group of gradients that are
     * sent together, as soon as td_backward has computed the last of them. */
    net = td_ddp(net);
    if (net == NULL) {
        td_die();
    }

    /* The optimizer moves the parameters; the loaders shuffle the samples and cut batches. All
     * ranks shuffle in the same way; each takes its own part. In the test each sample must count
     * once. */
    td_optim *optim = td_adam(td_parameters(net), .lr = 1e-3);
    td_loader *loader = td_loader_open(train_set, .batch_size = batch_size, .device = device,
                                       .sampler = td_distributed_sampler(.shuffle = true));
    td_loader *test_loader = td_loader_open(test_set, .batch_size = batch_size, .device = device,
                                            .sampler = td_distributed_sampler(.no_padding = true));
    if (optim == NULL || loader == NULL || test_loader == NULL) {
        td_die();
    }

    /* The loop. In an epoch the ranks together visit each sample once (a few may repeat). */
    for (int epoch = 0; epoch < total_epochs; epoch++) {
        double sum = 0;
        /* batch.x and batch.y belong to the loader and are valid until the next td_loader_next. */
        for (td_batch batch; td_loader_next(loader, &batch);) {
            /* A step. The results of operations (logits, loss) belong to the step: they are gone
             * at its end, and you do not free them. Each operation is recorded on the tape. */
            TD_STEP {
                td_tensor *logits = td_forward(net, batch.x);
                td_tensor *loss = td_cross_entropy(logits, batch.y);
                td_zero_grad(optim);  /* backward adds: forget the old gradients */
                td_backward(loss);    /* every rank gets the mean of all ranks' gradients */
                td_optim_step(optim); /* moves each parameter a little against its gradient */
                sum += td_item(loss); /* a number outlives the step, a tensor does not */
            }
        }
        if (td_loader_status(loader) != TD_OK) { /* the loop ends on an error, too */
            td_die();
        }
        double mean = td_all_reduce_mean(sum / (double)td_loader_batches(loader));
        td_printf_rank0("Epoch %d, Loss: %.4f\n", epoch, mean);

        if (epoch % save_every == 0 && td_dist_rank() == 0) {
            char path[64];
            snprintf(path, sizeof path, "model_%d.safetensors", epoch);
            if (td_save(path, net) != TD_OK) {
                td_die();
            }
            printf("Epoch %d | Model saved to model_%d...\n", epoch, epoch);
        }
    }

    /* The test, with wines that the model has never seen. Each rank tests its part, and all get the
     * sum. */
    td_evaluation test = td_evaluate(net, test_loader);
    if (test.status != TD_OK) {
        td_die();
    }
    td_printf_rank0("Test: %d/%d right\n", (int)test.right, (int)test.seen);

    /* The end: free loaders and optimizers first, then models, then datasets. */
    td_loader_close(test_loader);
    td_loader_close(loader);
    td_optim_free(optim); /* uses the model's parameters */
    td_module_free(net);
    td_dataset_free(test_set);
    td_dataset_free(train_set);
    td_dist_destroy();
    return td_finish();
}

int main(int argc, char **argv)
{
    td_read_options(argc, argv, usage, options);
    return train();
}
