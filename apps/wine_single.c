/* Lesson 1: a small network learns to tell three kinds of wine apart, on one device.
 *
 * There are 178 wines with 13 measurements each: 142 to learn from (training), 36 to be tested on.
 * A program that trains always has the same order: data, model, optimizer, loader; the loop; the
 * test. docs/tutorial/1-wine-single.md explains the ideas. */
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
    td_device device = td_default_device(); /* TANDEM_DEVICE=cuda: a GPU; otherwise the CPU */

    /* The data: 20 % are for testing, chosen at random with the seed 42. Each measurement is scaled
     * to mean 0 and deviation 1. */
    td_dataset *train_set, *test_set;
    if (td_wine_split("data/wine.csv", 0.2, 42, &train_set, &test_set, NULL) != TD_OK) {
        td_die();
    }
    print_first_sample(train_set);

    /* The model: 13 measurements in, 3 numbers (logits) out, one for each kind of wine. Its
     * parameters (weights and biases) begin as random numbers, drawn with the seed 0. */
    td_manual_seed(0);
    td_module *net = td_nn_sequential(td_nn_linear(13, 64), td_nn_relu(), td_nn_linear(64, 3));
    if (net == NULL || td_module_to(net, device, TD_F32) != TD_OK) {
        td_die();
    }

    /* The optimizer moves the parameters; the loaders shuffle the samples and cut batches. */
    td_optim *optim = td_adam(td_parameters(net), .lr = 1e-3);
    td_loader *loader =
        td_loader_open(train_set, .batch_size = batch_size, .device = device, .shuffle = true);
    td_loader *test_loader = td_loader_open(test_set, .batch_size = batch_size, .device = device);
    if (optim == NULL || loader == NULL || test_loader == NULL) {
        td_die();
    }

    /* The loop. An epoch visits each sample once. */
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
                td_backward(loss);    /* reads the tape backwards: a gradient for each parameter */
                td_optim_step(optim); /* moves each parameter a little against its gradient */
                sum += td_item(loss); /* a number outlives the step, a tensor does not */
            }
        }
        if (td_loader_status(loader) != TD_OK) { /* the loop ends on an error, too */
            td_die();
        }
        double mean = sum / (double)td_loader_batches(loader);
        printf("Epoch %d, Loss: %.4f\n", epoch, mean);

        if (epoch % save_every == 0) {
            char path[64];
            snprintf(path, sizeof path, "model_%d.safetensors", epoch);
            if (td_save(path, net) != TD_OK) {
                td_die();
            }
            printf("Epoch %d | Model saved to model_%d...\n", epoch, epoch);
        }
    }

    /* The test, with wines that the model has never seen. */
    td_evaluation test = td_evaluate(net, test_loader);
    if (test.status != TD_OK) {
        td_die();
    }
    printf("Test: %d/%d right\n", (int)test.right, (int)test.seen);

    /* The end: free loaders and optimizers first, then models, then datasets. */
    td_loader_close(test_loader);
    td_loader_close(loader);
    td_optim_free(optim); /* uses the model's parameters */
    td_module_free(net);
    td_dataset_free(test_set);
    td_dataset_free(train_set);
    return td_finish(); /* flushes stdout and returns 0, or ends the program with an error */
}

int main(int argc, char **argv)
{
    td_read_options(argc, argv, usage, options);
    return train();
}
