/* TD_ZERO: zero as the value of an option whose default is not zero. */
#include "nn/extra/ema.h"
#include "tandem.h"
#include "nn/module.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>

#include <cmocka.h>

enum { N = 2 };
static const double first[N] = { 1.0, -2.0 }, slope[N] = { 0.25, -4.0 };

static td_module *net;

/* A matrix [1,2] whose gradient in each step is `slope`. */
static void begin_net(void)
{
    net = td_nn_linear(N, 1, .no_bias = true);
    td_write(net->tensors[0].tensor, first, TD_F64);
}

static void step(td_optim *optim, double weights[N])
{
    td_tensor *x = td_from((float[]){ 0.25f, -4.0f }, TD_SHAPE(1, N), TD_F32, TD_CPU);
    TD_STEP {
        td_zero_grad(optim);
        td_backward(td_sum(td_forward(net, x)));
        td_optim_step(optim);
    }
    td_free(x);
    td_read(net->tensors[0].tensor, weights, TD_F64);
}

static void test_optimizers(void **state)
{
    (void)state;
    begin_net();
    td_params *params = td_parameters(net);
    double weights[N];
    td_optim *idle[] = { td_sgd(params, .lr = TD_ZERO), td_adam(params, .lr = TD_ZERO),
                         td_adamw(params, .lr = TD_ZERO) };
    for (int i = 0; i < 3; i++) {
        assert_true(td_optim_lr(idle[i]) == 0.0);
        step(idle[i], weights);
        assert_memory_equal(weights, first, sizeof weights);
        td_optim_free(idle[i]);
    }
    /* Nothing is remembered and nothing is added: each step is lr times the gradient's sign. */
    td_optim *optim =
        td_adam(params, .lr = 0.5, .beta1 = TD_ZERO, .beta2 = TD_ZERO, .eps = TD_ZERO);
    for (int i = 1; i <= 2; i++) {
        step(optim, weights);
        assert_true(weights[0] == first[0] - 0.5 * i && weights[1] == first[1] + 0.5 * i);
    }
    td_optim_free(optim);
    optim = td_sgd(params, .lr = 0.5, .momentum = TD_ZERO);
    for (int i = 1; i <= 2; i++) {
        step(optim, weights);
        assert_true(weights[0] == first[0] - 1.0 - 0.5 * i * slope[0]);
    }
    td_optim_free(optim);
    td_module_free(net);
}

/* Two samples of one channel, -h and h: mean 0 and variance h^2, which eps would spoil. */
static const float h = 0x1p-10f;

static void test_batch_norm(void **state)
{
    (void)state;
    float y[2], running[2];
    td_tensor *x = td_from((float[]){ -h, h }, TD_SHAPE(2, 1), TD_F32, TD_CPU);
    td_tensor *mean = td_full(TD_SHAPE(1), 3.0, TD_F32, TD_CPU);
    td_tensor *var = td_full(TD_SHAPE(1), 5.0, TD_F32, TD_CPU);
    TD_STEP {
        td_read(td_batch_norm(x, NULL, NULL, mean, var, .training = true, .momentum = TD_ZERO,
                              .eps = TD_ZERO),
                y, TD_F32);
    }
    assert_true(y[0] == -1.0f && y[1] == 1.0f);
    assert_true(td_item(mean) == 3.0 && td_item(var) == 5.0);
    td_module *bn = td_nn_batch_norm2d(1, .momentum = TD_ZERO, .eps = TD_ZERO);
    TD_STEP {
        td_read(td_forward(bn, x), y, TD_F32);
    }
    assert_true(y[0] == -1.0f && y[1] == 1.0f);
    td_state_list list = td_module_state(bn);
    for (int i = 0; i < 2; i++) { /* weight, bias, running_mean, running_var */
        td_read(list.items[2 + i].tensor, &running[i], TD_F32);
    }
    assert_true(running[0] == 0.0f && running[1] == 1.0f);
    td_state_list_free(&list);
    td_module_free(bn);
    td_free(x);
    td_free(mean);
    td_free(var);
}

static void test_layer_norm(void **state)
{
    (void)state;
    float y[2];
    td_tensor *x = td_from((float[]){ -h, h }, TD_SHAPE(1, 2), TD_F32, TD_CPU);
    TD_STEP {
        td_read(td_layer_norm(x, NULL, NULL, TD_ZERO), y, TD_F32);
    }
    assert_true(y[0] == -1.0f && y[1] == 1.0f);
    td_free(x);
}

static void test_averages(void **state)
{
    (void)state;
    begin_net();
    td_ema *ema = td_ema_new(net, .decay = TD_ZERO);
    td_write(net->tensors[0].tensor, slope, TD_F64);
    td_ema_update(ema); /* the average is the latest value */
    td_write(net->tensors[0].tensor, first, TD_F64);
    td_ema_swap(ema);
    double weights[N];
    td_read(net->tensors[0].tensor, weights, TD_F64);
    assert_memory_equal(weights, slope, sizeof weights);
    td_ema_swap(ema);
    td_ema_free(ema);
    td_module_free(net);
}

static void test_schedule(void **state)
{
    (void)state;
    td_schedule s = { .kind = TD_SCHEDULE_STEP, .base_lr = 0.5, .step_size = 2, .gamma = TD_ZERO };
    assert_true(td_schedule_lr(&s, 1) == 0.5);
    assert_true(td_schedule_lr(&s, 2) == 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizers), cmocka_unit_test(test_batch_norm),
        cmocka_unit_test(test_layer_norm), cmocka_unit_test(test_averages),
        cmocka_unit_test(test_schedule),
    };
    return cmocka_run_group_tests_name("zero as an option's value", tests, NULL, NULL);
}
