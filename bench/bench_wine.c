/* The wine job, loader included: one "step" of the protocol is one whole epoch of 142 rows in
 * batches of 32 (5 optimizer steps). usage: bench_wine CSV */
#include "tandem.h"
#include "tensor/kernels/kernels.h"

#include "bench/peer.h"

typedef struct job {
    td_module *net;
    td_optim *optim;
    td_loader *loader;
} job;

static void train_epoch(void *user)
{
    job *j = user;
    double sum = 0;
    for (td_batch batch; td_loader_next(j->loader, &batch);) {
        td_step_begin();
        td_tensor *loss = td_cross_entropy(td_forward(j->net, batch.x), batch.y);
        td_zero_grad(j->optim);
        td_backward(loss);
        td_optim_step(j->optim);
        sum += td_item(loss);
        td_step_end();
    }
    if (!(sum < 1e6)) {
        fprintf(stderr, "bench_wine: the loss is %g\n", sum);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    td_dataset *train, *test;
    if (td_wine_split(argc > 1 ? argv[1] : "data/wine.csv", 0.2, 42, &train, &test, NULL) !=
        TD_OK) {
        fprintf(stderr, "bench_wine: %s\n", td_last_error());
        return 1;
    }
    td_manual_seed(0);
    job j = { .net = td_nn_sequential(td_nn_linear(13, 64), td_nn_relu(), td_nn_linear(64, 3)) };
    j.optim = td_adam(td_parameters(j.net), .lr = 1e-3);
    j.loader = td_loader_open(train, .batch_size = 32, .shuffle = true);
    char facts[160];
    snprintf(facts, sizeof facts, "tandem %s, %s", TANDEM_VERSION, td_kernels_of(TD_CPU)->name);
    bench_serve(facts, train_epoch, &j);
    td_loader_close(j.loader);
    td_optim_free(j.optim);
    td_module_free(j.net);
    td_dataset_free(train);
    td_dataset_free(test);
    return 0;
}
