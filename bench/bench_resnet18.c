/* One training step of ResNet-18 (ImageNet stem, 10 classes, 32x32) on a fixed batch: forward,
 * loss, backward, SGD with Nesterov momentum. usage: bench_resnet18 [batch] [threads] [f32|f64] */
#include "tandem.h"
#include "tensor/kernels.h"

#include "bench/peer.h"

typedef struct job {
    td_module *net;
    td_optim *optim;
    td_tensor *x, *y;
    double loss;
} job;

static void train_step(void *user)
{
    job *j = user;
    td_step_begin();
    td_tensor *loss = td_cross_entropy(td_forward(j->net, j->x), j->y);
    td_zero_grad(j->optim);
    td_backward(loss);
    td_optim_step(j->optim);
    j->loss = td_item(loss);
    td_step_end();
}

int main(int argc, char **argv)
{
    int64_t batch = argc > 1 ? strtol(argv[1], NULL, 10) : 256;
    int threads = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 2;
    td_dtype dtype = argc > 3 && strcmp(argv[3], "f64") == 0 ? TD_F64 : TD_F32;
    if (batch < 1 || threads < 1 || td_set_threads(TD_CPU, threads) != TD_OK) {
        fprintf(stderr, "usage: bench_resnet18 [batch] [threads] [f32|f64]\n");
        return 2;
    }
    td_manual_seed(0);
    job j = { .net = td_resnet(18, 10, TD_STEM_IMAGENET) };
    if (j.net == NULL || td_module_to(j.net, TD_CPU, dtype) != TD_OK) {
        fprintf(stderr, "bench_resnet18: %s\n", td_last_error());
        return 1;
    }
    j.optim = td_sgd(
        td_parameters(j.net),
        &(td_sgd_options){ .lr = 0.01, .momentum = 0.9, .weight_decay = 1e-4, .nesterov = true });
    j.x = td_new_layout(TD_SHAPE(batch, 3, 32, 32), dtype, TD_IMAGE, TD_CPU);
    j.y = td_new(TD_SHAPE(batch), TD_I64, TD_CPU);
    td_normal_(j.x, 0, 1, td_default_generator());
    for (int64_t i = 0; i < batch; i++) {
        td_set(j.y, &i, (double)td_random_int(td_default_generator(), 0, 10));
    }
    char facts[160];
    snprintf(facts, sizeof facts, "tandem %s, %s, %d threads", TANDEM_VERSION,
             td_kernels_of(TD_CPU)->name, td_threads(TD_CPU));
    bench_serve(facts, train_step, &j);
    td_optim_free(j.optim);
    td_module_free(j.net);
    td_free(j.x);
    td_free(j.y);
    return 0;
}
