/* A small convolutional network with an operation and two modules of one's own: the operation mish,
 * a module that applies it, and squeeze-and-excitation.
 *
 *     cnn_own            trains on drawn images
 *     cnn_own --check    compares mish's gradient with central differences */
#include <tandem.h>
#include <autograd/gradcheck.h>
#include <autograd/tape.h> /* operations */
#include <nn/module.h>     /* modules */
#include <tensor/extend.h>

#include <math.h>
#include <string.h>

/* ---- an operation: mish(x) = x tanh(log(1 + exp(x))), Misra 2019 ---- */

/* tanh(log(1 + e)) = n / (n + 2) with e = exp(x) and n = e (e + 2); it is 1 where e is large. */
static double mish_tanh(double x)
{
    double e = exp(fmin(x, 20)), n = e * (e + 2);
    return n / (n + 2);
}

static double mish_value(double x)
{
    return x * mish_tanh(x);
}

static double mish_slope(double x)
{
    double t = mish_tanh(x);
    return t + x * (1 - t * t) / (1 + exp(-x));
}

/* y = f(x) for each element; both are dense and in the same order. */
static void each(td_tensor *y, const td_tensor *x, double (*f)(double))
{
    int64_t n = td_numel(x);
    if (x->dtype == TD_F32) {
        const float *from = td_data(x);
        float *to = td_data_rw(y);
        for (int64_t i = 0; i < n; i++) {
            to[i] = (float)f(from[i]);
        }
    } else {
        const double *from = td_data(x);
        double *to = td_data_rw(y);
        for (int64_t i = 0; i < n; i++) {
            to[i] = f(from[i]);
        }
    }
}

/* dx = dy * slope(x). dy can have any strides, which kernels take care of. */
static void mish_backward(td_node *node, const td_tensor *dy)
{
    if (!td_input_needs_grad(node, 0)) {
        return;
    }
    const td_tensor *x = td_saved(node, 0);
    td_tensor *slope = td_step_new_like(x, td_node_site(node));
    td_tensor *dx = td_step_new_like(x, td_node_site(node));
    each(slope, x, mish_slope);
    td_kernels_of(td_device_of(x))->binary(TD_BINARY_mul, dx, dy, slope);
    td_input_grad_is(node, 0, dx);
}

static td_tensor *mish_at(td_tensor *x, td_site at)
{
    td_check_tensor(x, "mish", "x", at);
    TD_REQUIRE(x->dtype == TD_F32 || x->dtype == TD_F64, at, "mish: x is %s; it must be f32 or f64",
               td_describe(x));
    if (!td_is_dense(x)) {
        x = td_contiguous_at(x, at);
    }
    td_tensor *y = td_step_new_like(x, at);
    each(y, x, mish_value);
    return TD_RECORD(at, .op = "mish", .backward = mish_backward, .out = y, .inputs = { x },
                     .saved = { x });
}
#define mish(...) mish_at(__VA_ARGS__, TD_HERE)

/* ---- a module without state ---- */

static td_tensor *mish_forward(td_module *self, td_tensor *x, td_site at)
{
    (void)self;
    return mish_at(x, at);
}

static const td_module_type mish_type = { .name = "Mish", .forward = mish_forward };

static td_module *nn_mish(void)
{
    return td_module_finish(td_module_new(&mish_type, 0));
}

/* ---- a module with children: squeeze-and-excitation (Hu et al. 2018) ----
 * y = x * sigmoid(up(mish(down(mean of x over its pixels)))), a factor for each channel. */

typedef struct squeeze {
    td_module *down, *up;
} squeeze;

static td_tensor *squeeze_forward(td_module *self, td_tensor *x, td_site at)
{
    const squeeze *s = self->state;
    td_tensor *mean = td_global_avg_pool2d_at(x, at); /* [N,C,1,1] */
    td_tensor *hidden = mish_at(td_forward_at(s->down, mean, at), at);
    return td_mul_at(x, td_sigmoid_at(td_forward_at(s->up, hidden, at), at), at);
}

static const td_module_type squeeze_type = { .name = "SqueezeExcite", .forward = squeeze_forward };

static td_module *nn_squeeze(int64_t channels)
{
    td_module *m = td_module_new(&squeeze_type, sizeof(squeeze));
    if (m == NULL) {
        return NULL;
    }
    squeeze *s = m->state;
    s->down = td_module_add(m, "down", td_nn_conv2d(channels, channels / 4, .kernel = 1));
    s->up = td_module_add(m, "up", td_nn_conv2d(channels / 4, channels, .kernel = 1));
    return td_module_finish(m);
}

/* ---- the program ---- */

static td_tensor *checked(td_tensor *const *in, void *user)
{
    (void)user;
    return mish(in[0]);
}

static int check(void)
{
    char report[1024];
    td_tensor *x = td_new(TD_SHAPE(5, 7), TD_F64, TD_CPU);
    td_uniform_(x, -4, 4, td_default_generator());
    td_requires_grad(x, true);
    td_status status =
        td_gradcheck(checked, NULL, &x, 1,
                     &(td_gradcheck_options){ .report = report, .report_size = sizeof report });
    puts(status == TD_OK ? "gradcheck: ok" : report);
    td_free(x);
    return status == TD_OK ? 0 : 1;
}

static td_module *make_net(void)
{
    return td_nn_sequential(td_nn_conv2d(3, 16, .kernel = 3, .padding = 1), td_nn_batch_norm2d(16),
                            td_nn_max_pool2d(2), nn_mish(),
                            td_nn_conv2d(16, 32, .kernel = 3, .padding = 1), td_nn_batch_norm2d(32),
                            td_nn_max_pool2d(2), nn_mish(), nn_squeeze(32),
                            td_nn_conv2d(32, 64, .kernel = 3, .padding = 1), td_nn_batch_norm2d(64),
                            td_nn_max_pool2d(2), nn_mish(), nn_squeeze(64), td_nn_flatten(),
                            td_nn_linear(64 * 4 * 4, 10));
}

int main(int argc, char **argv)
{
    td_manual_seed(0);
    if (argc > 1 && strcmp(argv[1], "--check") == 0) {
        return check();
    }
    td_dataset *train, *test;
    if (td_synthetic_images(2000, 1, &train) != TD_OK ||
        td_synthetic_images(500, 2, &test) != TD_OK) {
        td_die();
    }
    td_module *net = make_net();
    td_optim *optim = td_adam(td_parameters(net), .lr = 1e-3);
    td_loader *loader = td_loader_open(train, .batch_size = 32, .shuffle = true);
    td_loader *test_loader = td_loader_open(test, .batch_size = 100);
    if (optim == NULL || loader == NULL || test_loader == NULL) {
        td_die();
    }
    for (int epoch = 0; epoch < 3; epoch++) {
        double sum = 0;
        for (td_batch batch; td_loader_next(loader, &batch);) {
            TD_STEP {
                td_tensor *loss = td_cross_entropy(td_forward(net, batch.x), batch.y);
                td_zero_grad(optim);
                td_backward(loss);
                td_optim_step(optim);
                sum += td_item(loss) * (double)batch.size;
            }
        }
        if (td_loader_status(loader) != TD_OK) {
            td_die();
        }
        td_evaluation result = td_evaluate(net, test_loader);
        printf("epoch %d: loss %.4f, test accuracy %.3f\n", epoch + 1, sum / (double)train->length,
               result.accuracy);
    }
    td_loader_close(loader);
    td_loader_close(test_loader);
    td_optim_free(optim);
    td_module_free(net);
    td_dataset_free(train);
    td_dataset_free(test);
    return 0;
}
