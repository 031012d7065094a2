/* Lesson 22: three programs with a fault each, and what finds it.
 *
 *     debugging nan             trains, and the loss is not a number
 *     debugging nan find        the same with td_set_debug_nan, which names the operation
 *     debugging hang            two ranks, one of which stops in the third step
 *     debugging slow FILE       a network that is slow: a profile, and a trace in FILE for
 * apps/report
 *
 * docs/tutorial/22-debugging.md explains the ideas. */
#include <dist/trace.h>
#include <tandem.h>
#include <tensor/observe/profile.h>

#include <string.h>
#include <unistd.h>

static const char *fault = "", *how; /* the options */
static const td_option options[] = {
    { "FAULT", .text = &fault },
    { "HOW", .text = &how },
    { 0 },
};
static const char usage[] = "nan [find] | hang | slow [FILE]";

static void must(bool fine)
{
    if (!fine) {
        td_die();
    }
}

/* The fault: the measurements are not standardised, and some are above 1000. So the logits are
 * large, and the probability of the right class is 0 in f32. Its logarithm is minus infinity. */
static void train_nan(void)
{
    td_dataset *data = td_csv_dataset("data/wine.csv");
    td_manual_seed(0);
    td_module *net = td_nn_sequential(td_nn_linear(13, 64), td_nn_relu(), td_nn_linear(64, 3));
    must(data != NULL && net != NULL);
    td_optim *optim = td_sgd(td_parameters(net), .lr = 0.1);
    td_loader *loader = td_loader_open(data, .batch_size = 32, .shuffle = true);
    must(optim != NULL && loader != NULL);
    td_set_debug_nan(how != NULL);
    for (td_batch batch; td_loader_next(loader, &batch);) {
        TD_STEP {
            td_tensor *probabilities = td_softmax(td_forward(net, batch.x), 1);
            td_tensor *loss = td_nll_loss(td_log(probabilities), batch.y);
            td_zero_grad(optim);
            td_backward(loss);
            td_optim_step(optim);
            printf("batch %d: loss %g\n", (int)batch.index, td_item(loss));
        }
    }
    td_loader_close(loader);
    td_optim_free(optim);
    td_module_free(net);
    td_dataset_free(data);
}

/* The fault: rank 1 does not come back from the third step. */
static int train_hang(int local_rank, void *unused)
{
    (void)local_rank, (void)unused;
    must(td_dist_init(.timeout = 3) == TD_OK); /* seconds; otherwise 300 */
    td_manual_seed(0);
    td_module *net = td_ddp(td_nn_linear(13, 3));
    td_tensor *x = td_zeros(TD_SHAPE(8, 13), TD_F32, TD_CPU);
    must(net != NULL && x != NULL);
    for (int step = 1; step <= 5; step++) {
        if (td_dist_rank() == 1 && step == 3) {
            pause(); /* in earnest: reading from a disk that does not answer, a lock, endless data
                      */
        }
        TD_STEP {
            td_backward(td_mean(td_forward(net, x)));
        }
        td_printf_rank0("step %d\n", step);
    }
    td_free(x);
    td_module_free(net);
    td_dist_destroy();
    return 0;
}

/* The fault: one layer is a hundred times as wide as the others. */
static void train_slow(void)
{
    td_manual_seed(0);
    td_module *net =
        td_nn_sequential(td_nn_linear(13, 32), td_nn_relu(), td_nn_linear(32, 3200), td_nn_relu(),
                         td_nn_linear(3200, 32), td_nn_relu(), td_nn_linear(32, 3));
    td_tensor *x = td_zeros(TD_SHAPE(64, 13), TD_F32, TD_CPU);
    must(net != NULL && x != NULL);
    td_optim *optim = td_sgd(td_parameters(net), .lr = 0.1);
    must(optim != NULL && td_trace_open(how) == TD_OK && td_profile_start(NULL) == TD_OK);
    for (int step = 0; step < 20; step++) {
        td_trace_begin("step");
        TD_STEP {
            td_trace_begin("forward");
            td_tensor *loss = td_mean(td_forward(net, x));
            td_trace_end();
            td_zero_grad(optim);
            td_trace_begin("backward");
            td_backward(loss);
            td_trace_end();
            td_optim_step(optim);
        }
        td_trace_end();
    }
    td_profile_stop();
    td_profile_print(stdout, 8);
    must(td_trace_close() == TD_OK);
    td_optim_free(optim);
    td_free(x);
    td_module_free(net);
}

int main(int argc, char **argv)
{
    td_read_options(argc, argv, usage, options);
    if (strcmp(fault, "nan") == 0) {
        train_nan();
    } else if (strcmp(fault, "hang") == 0) {
        must(td_spawn(train_hang, NULL, 2, .stop_timeout = 1) == TD_OK);
    } else if (strcmp(fault, "slow") == 0) {
        train_slow();
    } else {
        td_refuse_options(usage, "name a fault");
    }
    return td_finish();
}
