/* Lesson 17: a run whose weights do not depend on the number of processes, to the last bit.
 *
 *     apps/same_bits --nprocs 1
 *     apps/same_bits --nprocs 3
 *     apps/same_bits --nprocs 8 --zero 2
 *
 * print one number. Without leaves the ranks of td_ddp compute means over batches whose size
 * depends on their number, and sums of floats depend on how they are cut. Here each step is cut
 * into 8 leaves, whoever computes them, and their gradients are added in one fixed tree.
 * docs/leaves.md explains it. */
#include <dist/leaves/leaves.h>
#include <nn/io/fingerprint.h>
#include <tandem.h>

static int total_epochs = 20, leaf_size = 4, leaves = 8, nprocs = 1, zero = 0;
static const td_option options[] = {
    { "nprocs", .number = &nprocs, .least = 1 },
    { "leaves", .number = &leaves, .least = 1 },
    { "leaf-size", .number = &leaf_size, .least = 1 },
    { "zero", .number = &zero, .least = 0 },
    { "TOTAL_EPOCHS", .number = &total_epochs, .least = 1 },
    { 0 },
};
static const char usage[] =
    "[--nprocs N] [--leaves N] [--leaf-size N] [--zero 0|1|2|3] [TOTAL_EPOCHS]";

static int train(int local_rank, void *unused)
{
    (void)local_rank, (void)unused;
    td_dataset *train_set, *test_set;
    if (td_dist_init() != TD_OK ||
        td_wine_split("data/wine.csv", 0.2, 42, &train_set, &test_set, NULL) != TD_OK) {
        td_die();
    }

    /* A model with all that usually depends on the layout: BatchNorm computes statistics over what
     * one rank has, and Dropout draws another mask on each rank. A leaf has its own of both. */
    td_manual_seed(0);
    td_module *net = td_nn_sequential(td_nn_linear(13, 64), td_nn_batch_norm2d(64), td_nn_relu(),
                                      td_nn_dropout(0.2), td_nn_linear(64, 3));
    /* td_zero divides the model among the ranks; with td_zero(0) each has all of it. */
    net = td_ddp(net, .strategy = td_leaves(leaves, .strategy = td_zero((td_shard)zero)));
    if (net == NULL) {
        td_die();
    }

    /* Leaf l gets the samples that rank l of `leaves` ranks would get. A batch of the loader has
     * the samples of all leaves of this rank. */
    td_optim *optim = td_adam(td_parameters(net), .lr = 1e-3);
    td_deal deal = td_leaf_deal(net, leaf_size);
    td_loader *loader =
        td_loader_open(train_set, .batch_size = leaf_size * deal.parts,
                       .sampler = td_distributed_sampler(.deal = deal, .shuffle = true));
    if (optim == NULL || loader == NULL) {
        td_die();
    }

    for (int epoch = 0; epoch < total_epochs; epoch++) {
        for (td_batch all; td_loader_next(loader, &all);) {
            /* One leaf after another, each with gradients of its own. After the last one of this
             * rank td_leaf_next returns -1, and all ranks have the mean of all leaves. */
            while (td_leaf_next(net) >= 0) {
                TD_STEP {
                    td_batch batch = td_leaf_batch(net, &all);
                    td_backward(td_cross_entropy(td_forward(net, batch.x), batch.y));
                }
            }
            td_optim_step(optim);
        }
        if (td_loader_status(loader) != TD_OK) {
            td_die();
        }
    }

    td_loader *test_loader = td_loader_open(test_set, .batch_size = 8,
                                            .sampler = td_distributed_sampler(.no_padding = true));
    td_evaluation test = td_evaluate(net, test_loader);
    /* One number for the bits of all weights and running statistics, also if they are divided. */
    td_fingerprints bits;
    if (test.status != TD_OK || td_fingerprint(&bits, .model = net) != TD_OK) {
        td_die();
    }
    td_printf_rank0(
        "Test: %d/%d right\n%d leaves on %d ranks: the fingerprint of the model is %016llx\n",
        (int)test.right, (int)test.seen, leaves, nprocs, (unsigned long long)bits.all);
    td_fingerprints_free(&bits);

    td_loader_close(test_loader);
    td_loader_close(loader);
    td_optim_free(optim);
    td_module_free(net);
    td_dataset_free(test_set);
    td_dataset_free(train_set);
    td_dist_destroy();
    return 0;
}

int main(int argc, char **argv)
{
    td_read_options(argc, argv, usage, options);
    if (td_spawn(train, NULL, nprocs) != TD_OK) {
        td_die();
    }
    return 0;
}
