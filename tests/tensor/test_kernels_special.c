/* NaN, infinities and zeros with a sign: values and gradients are PyTorch's (2.15), as literals. */
#include "tests/tensor/reference.h"

#include "autograd/autograd.h"
#include "autograd/fused.h"
#include "autograd/ops/elements.h"
#include "tensor/extend.h"

#include <math.h>

enum { MOST = 9 };

/* The result of x, and the gradient of x if the gradient of the result is 1 everywhere. */
typedef struct special_case {
    const char *name;
    td_tensor *(*fn)(td_tensor *x);
    td_shape shape;
    int results;
    double x[MOST], y[MOST], dx[MOST];
} special_case;

static td_tensor *relu(td_tensor *x)
{
    return td_relu(x);
}

static td_tensor *root(td_tensor *x)
{
    return td_pow(x, 0.5);
}

static td_tensor *inverse_root(td_tensor *x)
{
    return td_pow(x, -0.5);
}

static td_tensor *clamp(td_tensor *x)
{
    return td_clamp(x, -1.0, 2.0);
}

static td_tensor *max_pool(td_tensor *x)
{
    return td_max_pool2d(x, 3);
}

static td_tensor *filled(td_shape shape, td_dtype dtype, double value)
{
    td_tensor *t = td_step_new(shape, dtype, TD_ROW_MAJOR, ref_device(), TD_HERE);
    ref_kernels()->fill(t, value);
    return t;
}

static td_tensor *norm_relu(td_tensor *x, td_tensor *add, const td_pool2d_options *pool)
{
    td_dtype dtype = x->dtype == TD_F64 ? TD_F64 : TD_F32;
    td_tensor *mean = filled(TD_SHAPE(1), dtype, 0.0), *var = filled(TD_SHAPE(1), dtype, 1.0);
    td_batch_norm_options options = { .x = x, .running_mean = mean, .running_var = var };
    options.eps = TD_ZERO;
    td_batch_norm_fusion fusion = { .activation = TD_NORM_RELU, .add = add, .max_pool = pool };
    return td_batch_norm_fused_at(options, fusion, TD_HERE);
}

static td_tensor *norm_and_relu(td_tensor *x)
{
    return norm_relu(x, NULL, NULL);
}

static td_tensor *norm_add_relu(td_tensor *x)
{
    return norm_relu(x, filled(td_shape_of(x), x->dtype, 0.0), NULL);
}

static td_tensor *norm_relu_pool(td_tensor *x)
{
    return norm_relu(x, NULL, &(td_pool2d_options){ .kernel = 3 });
}

#define IMAGE                                                                                      \
    {                                                                                              \
        4,                                                                                         \
        {                                                                                          \
            1, 1, 3, 3                                                                             \
        }                                                                                          \
    }
static const double inf = INFINITY;

static void special_cases(td_dtype dtype)
{
    const special_case cases[] = {
        { "relu",
          relu,
          TD_SHAPE(5),
          5,
          { NAN, -1, 0, 2, -0.0 },
          { NAN, 0, 0, 2, 0 },
          { 1, 0, 0, 1, 0 } },
        { "pow 0.5",
          root,
          TD_SHAPE(7),
          7,
          { -inf, -0.0, 0, 4, inf, NAN, -2 },
          { NAN, -0.0, 0, 2, inf, NAN, NAN },
          { NAN, -inf, inf, 0.25, 0, NAN, NAN } },
        { "pow -0.5",
          inverse_root,
          TD_SHAPE(7),
          7,
          { -inf, -0.0, 0, 4, inf, NAN, -2 },
          { NAN, -inf, inf, 0.5, 0, NAN, NAN },
          { -0.0, -inf, -inf, -0.0625, -0.0, NAN, NAN } },
        { "clamp",
          clamp,
          TD_SHAPE(6),
          6,
          { NAN, -1, 2, 0, 5, -inf },
          { NAN, -1, 2, 0, 2, -1 },
          { 0, 0, 0, 1, 0, 0 } },
        { "max_pool2d, all NaN",
          max_pool,
          IMAGE,
          1,
          { NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN },
          { NAN },
          { 0, 0, 0, 0, 0, 0, 0, 0, 1 } },
        { "max_pool2d, three NaN",
          max_pool,
          IMAGE,
          1,
          { 1, NAN, 2, NAN, 3, NAN, 4, 5, 6 },
          { NAN },
          { 0, 0, 0, 0, 0, 1 } },
        { "max_pool2d, all -inf",
          max_pool,
          IMAGE,
          1,
          { -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf },
          { -inf },
          { 1 } },
        { "batch_norm, relu",
          norm_and_relu,
          IMAGE,
          9,
          { NAN, -1, 0, 2, -0.0, 3 },
          { NAN, 0, 0, 2, 0, 3 },
          { 1, 0, 0, 1, 0, 1 } },
        { "batch_norm, add, relu",
          norm_add_relu,
          IMAGE,
          9,
          { NAN, -1, 0, 2, -0.0, 3 },
          { NAN, 0, 0, 2, 0, 3 },
          { 1, 0, 0, 1, 0, 1 } },
        { "batch_norm, relu, max_pool2d",
          norm_relu_pool,
          IMAGE,
          1,
          { 1, NAN, 2, NAN, 3, NAN, 4, 5, 6 },
          { NAN },
          { 0, 0, 0, 0, 0, 1 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const special_case *c = &cases[i];
        td_tensor *x = td_new_layout(c->shape, dtype, c->shape.ndim == 4 ? TD_IMAGE : TD_ROW_MAJOR,
                                     ref_device());
        td_write(x, c->x, TD_F64);
        td_requires_grad(x, true);
        TD_STEP {
            td_tensor *y = c->fn(x);
            assert_int_equal(td_numel(y), c->results);
            ref_close(y, c->y, NULL, 0.0, c->name);
            td_backward(td_sum(y));
            ref_close(td_grad(x), c->dx, NULL, 0.0, c->name);
        }
        td_free(x);
    }
}

static void test_special_values(void **state)
{
    (void)state;
    ref_run(special_cases);
    ref_run_half(special_cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_special_values),
    };
    return cmocka_run_group_tests_name("kernels: special values", tests, NULL, NULL);
}
