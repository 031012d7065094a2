/* Operations on elements without gradients, and some layers forward and backward: microseconds of a
 * call, the least of several. bench/torch_elements.py runs it in turns with PyTorch.
 *
 * usage: bench_elements ELEMENTS | layers */
#include "autograd/hooks.h"
#include "bench/peer.h"
#include "nn/extra/layers.h"
#include "tandem.h"
#include "tensor/extend.h"

#include <stdlib.h>
#include <string.h>

#define OPERATIONS(X)                                                                              \
    X(neg, td_neg(x))                                                                              \
    X(abs, td_abs(x))                                                                              \
    X(floor, td_floor(x))                                                                          \
    X(exp, td_exp(x))                                                                              \
    X(erf, td_erf(x))                                                                              \
    X(sin, td_sin(x))                                                                              \
    X(cos, td_cos(x))                                                                              \
    X(tanh, td_tanh(x))                                                                            \
    X(sigmoid, td_sigmoid(x))                                                                      \
    X(reciprocal, td_reciprocal(x))                                                                \
    X(relu, td_relu(x))                                                                            \
    X(leaky_relu, td_leaky_relu(x, 0.1))                                                           \
    X(elu, td_elu(x, 1.0))                                                                         \
    X(selu, td_selu(x))                                                                            \
    X(gelu, td_gelu(x))                                                                            \
    X(gelu_tanh, td_gelu_tanh(x))                                                                  \
    X(silu, td_silu(x))                                                                            \
    X(softplus, td_softplus(x))                                                                    \
    X(hardswish, td_hardswish(x))                                                                  \
    X(mish, td_mish(x))                                                                            \
    X(clamp, td_clamp(x, -1.0, 1.0))                                                               \
    X(mul_scalar, td_mul_scalar(x, 2.0))                                                           \
    X(add, td_add(x, y))                                                                           \
    X(mul, td_mul(x, y))                                                                           \
    X(div, td_div(x, y))                                                                           \
    X(maximum, td_maximum(x, y))

static double best, begun;
static int rounds;

static void print_best(const char *name)
{
    printf("%s %.3f\n", name, best * 1e3);
}

/* Twelve times `inner` calls of what follows. */
#define TIMED(inner)                                                                               \
    for (best = 1e300, rounds = 0; rounds < 12; rounds++)                                          \
        for (int i_ = (begun = bench_now_ms(), 0);                                                 \
             i_ < (inner) ||                                                                       \
             (best = td_min_double(best, (bench_now_ms() - begun) / (inner)), false);              \
             i_++)

static double td_min_double(double a, double b)
{
    return a < b ? a : b;
}

static void elements(int64_t n)
{
    td_tensor *x = td_new(TD_SHAPE(n), TD_F32, TD_CPU), *y = td_new(TD_SHAPE(n), TD_F32, TD_CPU);
    if (x == NULL || y == NULL) {
        td_die();
    }
    td_uniform_(x, -3.0, 3.0, td_default_generator());
    td_uniform_(y, 0.5, 2.0, td_default_generator());
    int inner = n >= 1000000 ? 5 : n >= 100000 ? 100 : 1000;
    td_no_grad_begin();
#define TIME(name, call)                                                                           \
    TIMED(inner)                                                                                   \
    {                                                                                              \
        TD_STEP {                                                                                  \
            (void)(call);                                                                          \
        }                                                                                          \
    }                                                                                              \
    print_best(#name);
    OPERATIONS(TIME)
    td_no_grad_end();
    td_free(x);
    td_free(y);
}

/* x is no leaf, as in a network: its gradient is made anew in each step. */
static void layer(const char *name, td_module *m, td_shape shape, td_layout layout)
{
    td_tensor *x = td_new_layout(shape, TD_F32, layout, TD_CPU);
    if (m == NULL || x == NULL || td_parameters(m) == NULL) {
        td_die();
    }
    td_normal_(x, 0.0, 1.0, td_default_generator());
    td_requires_grad(x, true);
    TIMED(2)
    {
        TD_STEP {
            td_backward(td_sum(td_forward(m, td_neg(x))));
            td_zero_grad_of(x);
        }
    }
    print_best(name);
    td_free(x);
    td_module_free(m);
}

static void cross_entropy(int64_t rows, int64_t classes)
{
    td_tensor *x = td_new(TD_SHAPE(rows, classes), TD_F32, TD_CPU);
    td_tensor *labels = td_arange(rows, TD_I64, TD_CPU);
    if (x == NULL || labels == NULL) {
        td_die();
    }
    for (int64_t i = 0; i < rows; i++) {
        td_set(labels, &i, (double)(i * 37 % classes));
    }
    td_normal_(x, 0.0, 1.0, td_default_generator());
    td_requires_grad(x, true);
    TIMED(2)
    {
        TD_STEP {
            td_backward(td_cross_entropy(x, labels));
            td_zero_grad_of(x);
        }
    }
    print_best("cross_entropy");
    td_free(x);
    td_free(labels);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fputs("usage: bench_elements ELEMENTS | layers\n", stderr);
        return 64;
    }
    if (strcmp(argv[1], "layers") != 0) {
        elements(strtoll(argv[1], NULL, 10));
        return td_finish();
    }
    layer("conv1d", td_nn_conv1d(128, 128, .kernel = 3, .padding = 1), TD_SHAPE(16, 128, 512),
          TD_ROW_MAJOR);
    layer("conv_transpose2d",
          td_nn_conv_transpose2d(64, 64, .kernel = 4, .stride = 2, .padding = 1),
          TD_SHAPE(8, 64, 28, 28), TD_IMAGE);
    layer("group_norm", td_nn_group_norm(8, 64), TD_SHAPE(16, 64, 32, 32), TD_IMAGE);
    cross_entropy(4096, 1000);
    return td_finish();
}
