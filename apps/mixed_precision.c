/* Lesson 20: mixed precision: why weights stay f32, and why f16 needs a scaler and bf16 does not.
 *
 * CPUs do not compute in f16 here. So the last part computes in f32 and rounds the gradients to
 * f16, which is what a GPU would keep. docs/tutorial/20-mixed-precision.md explains the ideas. */
#include <nn/extra/inspect.h>
#include <nn/module.h>
#include <tandem.h>

#include <math.h>

static void must(bool fine)
{
    if (!fine) {
        td_die();
    }
}

/* Rounds a tensor's values to a dtype; the tensor itself stays as it is. */
static void round_to(td_tensor *t, td_dtype dtype)
{
    td_tensor *copy = td_clone_as(t, dtype, TD_CPU);
    must(copy != NULL);
    td_copy_(t, copy);
    td_free(copy);
}

static double rounded(double value, td_dtype dtype)
{
    td_tensor *t = td_full(TD_SHAPE(1), value, TD_F32, TD_CPU);
    must(t != NULL);
    round_to(t, dtype);
    double result = td_item(t);
    td_free(t);
    return result;
}

static void show_numbers(void)
{
    static const td_dtype dtypes[] = { TD_F32, TD_BF16, TD_F16 };
    const double values[] = { 3.14159265, 1.001, 1000.5, 100000, 1e-3, 1e-6, 1e-8 };
    printf("%-14s %14s %14s %14s\n", "number", "f32", "bf16", "f16");
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        printf("%-14.9g", values[i]);
        for (int d = 0; d < 3; d++) {
            printf(" %14.8g", rounded(values[i], dtypes[d]));
        }
        printf("\n");
    }
    printf("\na weight of 1 that grows by 0.001\n");
    double weight[] = { 1, 1, 1 };
    for (int step = 1; step <= 1000; step++) {
        for (int d = 0; d < 3; d++) {
            weight[d] = rounded(weight[d] + 0.001, dtypes[d]);
        }
        if (step == 1 || step == 10 || step == 1000) {
            printf("%4d steps     %14.6f %14.6f %14.6f\n", step, weight[0], weight[1], weight[2]);
        }
    }
}

/* A network, and how it is trained. */
typedef struct run {
    td_dtype weights;  /* they are rounded to it after each step; F32: they are not rounded */
    td_scaler *scaler; /* with one, gradients are rounded to f16 */
    td_dataset *data;
    td_loader *loader;
    td_module *net;
    td_optim *optim;
} run;

static run open_run(td_dtype weights, double lr)
{
    run r = { .weights = weights };
    td_dataset *test_set;
    must(td_wine_split("data/wine.csv", 0.2, 42, &r.data, &test_set, NULL) == TD_OK);
    td_dataset_free(test_set);
    td_manual_seed(0);
    r.net = td_nn_sequential(td_nn_linear(13, 64), td_nn_relu(), td_nn_linear(64, 3));
    must(r.net != NULL);
    r.optim = td_adam(td_parameters(r.net), .lr = lr);
    r.loader = td_loader_open(r.data, .batch_size = 32, .shuffle = true);
    must(r.optim != NULL && r.loader != NULL);
    return r;
}

static void close_run(run *r)
{
    td_loader_close(r->loader);
    td_optim_free(r->optim);
    td_module_free(r->net);
    td_dataset_free(r->data);
}

/* An epoch; returns the mean loss. */
static double train(run *r)
{
    double sum = 0;
    for (td_batch batch; td_loader_next(r->loader, &batch);) {
        TD_STEP {
            td_tensor *loss = td_cross_entropy(td_forward(r->net, batch.x), batch.y);
            td_zero_grad(r->optim);
            td_backward(td_scaler_loss(r->scaler, loss)); /* without a scaler: of the loss itself */
            if (r->scaler != NULL) {
                round_to(td_params_flat_grad(td_parameters(r->net)), TD_F16);
            }
            if (td_scaler_unscale(r->scaler, td_parameters(r->net))) { /* without a scaler: true */
                td_optim_step(r->optim);
            }
            if (r->weights != TD_F32) {
                round_to(td_params_flat(td_parameters(r->net)), r->weights);
            }
            sum += td_item(loss);
        }
    }
    must(td_loader_status(r->loader) == TD_OK);
    return sum / (double)td_loader_batches(r->loader);
}

/* One row: the loss in the course of training, in a precision, with weights of a dtype. */
static void row(const char *name, td_precision precision, td_dtype weights)
{
    td_set_math((td_math){ .precision = precision });
    run r = open_run(weights, 1e-4);
    printf("%-30s", name);
    for (int epoch = 1; epoch <= 100; epoch++) {
        double loss = train(&r);
        if (epoch == 1 || epoch == 20 || epoch == 100) {
            printf(" %8.2f", loss);
        }
    }
    printf("\n");
    close_run(&r);
    td_set_math((td_math){ .precision = TD_PRECISION_FP32 });
}

/* What f16 keeps of a step's gradients, if the loss is multiplied by a scale. */
static void show_gradients(const td_tensor *gradients)
{
    double values[2048];
    int count = (int)td_numel(gradients);
    must(count <= 2048);
    td_read(gradients, values, TD_F64);
    printf("\ngradients     become 0   lose digits   become infinite\n");
    for (int power = 0; power <= 32; power += 8) {
        int zeros = 0, small = 0, infinite = 0;
        for (int i = 0; i < count; i++) {
            double g = fabs(rounded(values[i] * ldexp(1, power), TD_F16));
            zeros += g == 0 && values[i] != 0;
            small += g > 0 && g < 0x1p-14; /* denormal */
            infinite += g == INFINITY;
        }
        printf("scale 2^%-2d   %7d %% %11d %% %15d %%\n", power, 100 * zeros / count,
               100 * small / count, 100 * infinite / count);
    }
}

static void show_scaler(void)
{
    run r = open_run(TD_F32, 1e-2);
    for (int epoch = 0; epoch < 100; epoch++) {
        train(&r);
    }
    show_gradients(td_params_flat_grad(td_parameters(r.net)));
    printf("\n");
    r.scaler = td_scaler_new(.scale = 0x1p32, .patience = 12);
    must(r.scaler != NULL);
    for (int epoch = 1; epoch <= 8; epoch++) {
        train(&r);
        td_scaler_state now = td_scaler_now(r.scaler);
        printf("epoch %d: scale 2^%.0f, steps skipped so far: %d\n", epoch, log2(now.scale),
               (int)now.skipped);
    }
    td_scaler_free(r.scaler);
    close_run(&r);
}

int main(int argc, char **argv)
{
    static const td_option none[] = { { 0 } };
    td_read_options(argc, argv, "", none); /* --help, and no other option */
    show_numbers();
    printf("\n%-30s %8s %8s %8s\n", "loss in epoch", "1", "20", "100");
    row("all in f32", TD_PRECISION_FP32, TD_F32);
    row("mixed: products in bf16", TD_PRECISION_BF16, TD_F32);
    row("weights in bf16, too", TD_PRECISION_BF16, TD_BF16);
    show_scaler();
    return td_finish();
}
