/* Flat parameters: where they lie, that the model goes on as before, reordering, clipping. */
#include "tandem.h"
#include "tests/help/expect_fatal.h"
#include "autograd/hooks.h"
#include "autograd/tape.h"
#include "nn/extra/compact.h"
#include "nn/extra/ema.h"
#include "nn/extra/muon.h"
#include "nn/extra/optimizers.h"
#include "tests/help/temp_folder.h"
#include "tensor/extend.h"
#include "nn/module.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <string.h>

static td_module *small_net(void)
{
    td_manual_seed(1);
    return td_nn_sequential(td_nn_conv2d(2, 3, .kernel = 3), td_nn_relu(), td_nn_flatten(),
                            td_nn_linear(12, 4));
}

static double run_step(td_module *net, const td_tensor *x)
{
    td_step_begin();
    td_tensor *y = td_forward(net, (td_tensor *)(uintptr_t)x);
    td_tensor *loss = td_sum(td_mul(y, y));
    td_backward(loss);
    double value = td_item(loss);
    td_step_end();
    return value;
}

static td_tensor *pictures(void)
{
    td_tensor *x = td_new_layout(TD_SHAPE(2, 2, 4, 4), TD_F32, TD_IMAGE, TD_CPU);
    td_normal_(x, 0.0, 1.0, td_default_generator());
    return x;
}

/* ---- the layout ---- */

static void check_flat(td_dtype dtype)
{
    td_module *net = small_net();
    assert_int_equal(td_module_to(net, TD_CPU, dtype), TD_OK);
    td_params *params = td_parameters(net);
    int64_t unit = 64 / (int64_t)td_dtype_size(dtype), end = 0;
    static const char *const names[] = { "0.weight", "0.bias", "3.weight", "3.bias" };
    static const int64_t counts[] = { 54, 3, 48, 4 };
    assert_int_equal(td_params_count(params), 4);
    const char *flat = td_data(td_params_flat(params));
    for (int i = 0; i < 4; i++) {
        const td_param *p = td_params_get(params, i);
        assert_string_equal(p->name, names[i]);
        assert_int_equal(p->count, counts[i]);
        assert_int_equal(p->begin, end);
        assert_ptr_equal(td_data(p->tensor), flat + p->begin * (int64_t)td_dtype_size(dtype));
        assert_int_equal((uintptr_t)td_data(p->tensor) % 64, 0);
        assert_true(td_is_leaf(p->tensor));
        end += (p->count + unit - 1) / unit * unit;
    }
    assert_int_equal(td_numel(td_params_flat(params)), end);
    assert_int_equal(td_numel(td_params_flat_grad(params)), end);
    assert_ptr_equal(td_parameters(net), params); /* the same list */
    td_module_free(net);
}

static void test_layout(void **state)
{
    (void)state;
    check_flat(TD_F32);
    check_flat(TD_F64);
}

/* Sum of the elements of a flat tensor that belong to no parameter, in absolute value. */
static double gap_content(const td_params *params, const td_tensor *flat)
{
    int64_t total = td_numel(flat);
    double *values = malloc((size_t)total * sizeof *values), sum = 0.0;
    assert_non_null(values);
    td_read(flat, values, TD_F64);
    for (int i = 0; i < td_params_count(params); i++) {
        const td_param *p = td_params_get(params, i);
        memset(values + p->begin, 0, (size_t)p->count * sizeof *values);
    }
    for (int64_t i = 0; i < total; i++) {
        sum += fabs(values[i]);
    }
    free(values);
    return sum;
}

/* Laying out changes neither values nor gradients, whether it comes before or after a backward. */
static void test_model_goes_on(void **state)
{
    (void)state;
    td_tensor *x = pictures();
    td_module *plain = small_net(), *flat = small_net(), *late = small_net();
    td_parameters(flat);
    double loss = run_step(plain, x);
    assert_true(run_step(flat, x) == loss && run_step(late, x) == loss);
    td_params *params = td_parameters(late); /* with gradients in hand */
    float a[54], b[54], c[54];
    for (int i = 0; i < 4; i++) {
        td_module *m = td_module_find(plain, i < 2 ? "0" : "3");
        size_t bytes = (size_t)td_params_get(params, i)->count * sizeof(float);
        td_read(td_grad(m->tensors[i % 2].tensor), a, TD_F32);
        td_read(td_grad(td_params_get(td_parameters(flat), i)->tensor), b, TD_F32);
        td_read(td_grad(td_params_get(params, i)->tensor), c, TD_F32);
        assert_memory_equal(a, b, bytes);
        assert_memory_equal(a, c, bytes);
        /* The gradient is a part of the flat one. */
        assert_ptr_equal(td_data(td_grad(td_params_get(params, i)->tensor)),
                         (const float *)td_data(td_params_flat_grad(params)) +
                             td_params_get(params, i)->begin);
    }
    assert_true(gap_content(params, td_params_flat(params)) == 0.0);
    assert_true(gap_content(params, td_params_flat_grad(params)) == 0.0);
    td_free(x);
    td_module_free(plain);
    td_module_free(flat);
    td_module_free(late);
}

/* ---- frozen parameters ---- */

static td_tensor *weight_of(td_module *net)
{
    return td_module_find(net, "0")->tensors[0].tensor;
}

static void test_frozen_come_last(void **state)
{
    (void)state;
    td_module *net = small_net();
    td_requires_grad(weight_of(net), false);
    td_params *params = td_parameters(net);
    assert_int_equal(td_params_count(params), 4);
    assert_string_equal(td_params_get(params, 0)->name, "0.bias");
    assert_string_equal(td_params_get(params, 3)->name, "0.weight");
    assert_null(td_grad(weight_of(net)));
    td_module_free(net);

    net = td_nn_sequential(td_nn_relu()); /* a model without parameters */
    params = td_parameters(net);
    assert_non_null(params);
    assert_int_equal(td_params_count(params), 0);
    td_module_free(net);
}

typedef td_optim *(*optim_maker)(td_params *params);

static td_optim *make_sgd(td_params *params)
{
    return td_sgd(params, .lr = 0.05, .momentum = 0.9, .weight_decay = 0.01);
}

static td_optim *make_adamw(td_params *params)
{
    return td_adamw(params, .lr = 0.05, .weight_decay = 0.01);
}

static td_optim *make_compact(td_params *params)
{
    return td_adam_compact(params, .lr = 0.05, .bits = 8);
}

static td_optim *make_muon(td_params *params)
{
    return td_muon(params, .lr = 0.05, .momentum = 0.9);
}

/* Eight steps with clipping and averages, in which 0.weight trains in steps that are not in the
 * mask `frozen`: because td_requires_grad says so, or because its gradient is dropped. */
static void run_frozen(optim_maker make, int frozen, bool drops, double *values, double *averages)
{
    td_module *net = small_net();
    td_tensor *x = pictures(), *weight = weight_of(net);
    td_requires_grad(weight, drops || (frozen & 1) == 0);
    td_params *params = td_parameters(net);
    td_optim *optim = make(params);
    td_ema *ema = td_ema_new(net, .decay = 0.5);
    for (int step = 0; step < 8; step++) {
        bool now = frozen >> step & 1;
        td_requires_grad(weight, drops || !now);
        td_step_begin();
        td_tensor *y = td_forward(net, x);
        if (step % 2 == 0) {
            td_zero_grad(optim);
        }
        td_backward(td_mean(td_mul(y, y)));
        if (now && drops) {
            td_zero_grad_of(weight);
        }
        td_clip_grad_norm(params, 0.5);
        td_optim_step(optim);
        td_ema_update(ema);
        td_zero_grad(optim);
        td_step_end();
    }
    td_read(weight, values, TD_F64);
    td_ema_swap(ema);
    td_read(weight, averages, TD_F64);
    td_ema_free(ema);
    td_optim_free(optim);
    td_free(x);
    td_module_free(net);
}

/* Frozen at first, or for a time: what trains, trains as if the gradient had not been there. */
static void test_frozen_train_again(void **state)
{
    (void)state;
    const optim_maker makers[] = { make_sgd, make_adamw, make_compact, make_muon };
    const int masks[] = { 0x07, 0x1c, 0x55, 0xf0 };
    for (int m = 0; m < 4; m++) {
        for (int k = 0; k < 4; k++) {
            if (makers[m] == make_compact && (masks[k] & 1) != 0) {
                continue; /* which draws by the parameter's number, and frozen ones come last */
            }
            double values[2][54], averages[2][54];
            for (int drops = 0; drops < 2; drops++) {
                run_frozen(makers[m], masks[k], drops, values[drops], averages[drops]);
            }
            assert_memory_equal(values[0], values[1], sizeof values[0]);
            assert_memory_equal(averages[0], averages[1], sizeof averages[0]);
        }
    }
}

/* A checkpoint of a frozen body, with averages, goes on into a model that is all trained, and the
 * other way round. */
static void test_frozen_in_checkpoints(void **state)
{
    (void)state;
    for (int before = 0; before < 2; before++) {
        for (int after = 0; after < 2; after++) {
            const char *path = temp_path("frozen");
            double values[2][54];
            for (int run = 0; run < 2; run++) {
                td_module *net = small_net();
                td_tensor *x = pictures();
                td_requires_grad(weight_of(net), run == 0 ? !before : !after);
                if (run == 0) {
                    td_fill_(weight_of(net), 0.25);
                }
                td_optim *optim = make_sgd(td_parameters(net));
                td_ema *ema = td_ema_new(net, .decay = 0.5);
                if (run == 0) {
                    run_step(net, x);
                    td_optim_step(optim);
                    td_ema_update(ema);
                    assert_int_equal(td_checkpoint_save(path, net, .optim = optim, .ema = ema),
                                     TD_OK);
                } else {
                    assert_int_equal(td_checkpoint_load(path, net, .optim = optim, .ema = ema),
                                     TD_OK);
                }
                td_ema_swap(ema);
                td_read(weight_of(net), values[run], TD_F64);
                td_ema_free(ema);
                td_optim_free(optim);
                td_free(x);
                td_module_free(net);
            }
            assert_memory_equal(values[0], values[1], sizeof values[0]);
        }
    }
}

static void test_whole_model_only(void **state)
{
    (void)state;
    td_module *net = small_net();
    td_parameters(net);
    expect_fatal("on the whole model", td_parameters(net->children[0]));
    td_module *more = td_nn_relu();
    expect_fatal("build the whole model first", td_module_add(net, "more", more));
    td_module_free(more);
    td_module_free(net);
    net = small_net();
    td_parameters(net->children[0]);
    expect_fatal("on the whole model", td_parameters(net));
    td_module_free(net);
    net = small_net();
    td_params *params = td_parameters(net);
    expect_fatal("there is no parameter 4", td_params_get(params, 4));
    td_module_free(net);
}

/* ---- reordering ---- */

static void test_reorder(void **state)
{
    (void)state;
    td_tensor *x = pictures();
    td_module *net = small_net();
    td_params *params = td_parameters(net);
    run_step(net, x);
    float values[4][54], grads[4][54], now[54];
    for (int i = 0; i < 4; i++) {
        td_read(td_params_get(params, i)->tensor, values[i], TD_F32);
        td_read(td_grad(td_params_get(params, i)->tensor), grads[i], TD_F32);
    }
    assert_int_equal(td_params_reorder(params, (int[]){ 3, 1, 2, 0 }), TD_OK);
    static const int64_t begins[] = { 16 + 16 + 48, 16, 32, 0 };
    for (int i = 0; i < 4; i++) {
        const td_param *p = td_params_get(params, i); /* the numbers stay */
        size_t bytes = (size_t)p->count * sizeof(float);
        assert_int_equal(p->begin, begins[i]);
        assert_ptr_equal(td_data(p->tensor),
                         (const float *)td_data(td_params_flat(params)) + p->begin);
        td_read(p->tensor, now, TD_F32);
        assert_memory_equal(values[i], now, bytes);
        assert_non_null(td_grad(p->tensor));
        td_read(td_grad(p->tensor), now, TD_F32);
        assert_memory_equal(grads[i], now, bytes);
    }
    assert_true(gap_content(params, td_params_flat(params)) == 0.0);
    assert_true(gap_content(params, td_params_flat_grad(params)) == 0.0);
    expect_fatal("must appear once", td_params_reorder(params, (int[]){ 3, 1, 1, 0 }));
    expect_fatal("must appear once", td_params_reorder(params, (int[]){ 3, 1, 4, 0 }));
    td_free(x);
    td_module_free(net);
}

/* Training goes on with the same bits after the layout has changed, momentum included. */
static void test_reorder_while_training(void **state)
{
    (void)state;
    double losses[2][3];
    td_tensor *x = pictures();
    for (int reordered = 0; reordered < 2; reordered++) {
        td_module *net = small_net();
        td_params *params = td_parameters(net);
        td_optim *optim = td_adam(params, .lr = 0.05);
        for (int step = 0; step < 3; step++) {
            td_zero_grad(optim);
            losses[reordered][step] = run_step(net, x);
            if (reordered && step == 1) { /* between backward and step, as DDP does */
                assert_int_equal(td_params_reorder(params, (int[]){ 3, 2, 0, 1 }), TD_OK);
            }
            td_optim_step(optim);
        }
        td_optim_free(optim);
        td_module_free(net);
    }
    assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
    assert_true(losses[0][2] != losses[0][1]);
    td_free(x);
}

/* ---- clipping ---- */

/* The sum of |g|^p over all gradients, and the largest |g|. */
static double power_sum(td_params *params, double p, double *largest)
{
    double sum = 0.0;
    *largest = 0.0;
    for (int i = 0; i < td_params_count(params); i++) {
        const td_tensor *grad = td_grad(td_params_get(params, i)->tensor);
        float values[54];
        if (grad != NULL) {
            td_read(grad, values, TD_F32);
        }
        for (int64_t k = 0; grad != NULL && k < td_numel(grad); k++) {
            sum += pow(fabs((double)values[k]), p);
            *largest = fmax(*largest, fabs((double)values[k]));
        }
    }
    return sum;
}

static void check_near(double got, double want)
{
    assert_true(fabs(got - want) <= 1e-5 * want);
}

/* By other norms, and element by element. */
static void check_other_clips(td_params *params)
{
    double largest, sum = power_sum(params, 3.0, &largest);
    check_near(td_clip_grad_norm(params, 1e9, .norm_type = 3.0), cbrt(sum));
    check_near(power_sum(params, 3.0, &largest), sum); /* below the limit nothing changes */
    check_near(td_clip_grad_norm(params, largest / 2.0, .norm_type = INFINITY), largest);
    sum = power_sum(params, 1.0, &largest);
    check_near(td_clip_grad_norm(params, sum / 4.0, .norm_type = 1.0), sum);
    check_near(power_sum(params, 1.0, &largest), sum / 4.0);
    double limit = largest / 3.0;
    td_clip_grad_value(params, limit);
    (void)power_sum(params, 1.0, &largest);
    check_near(largest, limit);
    expect_fatal("must be positive", td_clip_grad_norm(params, 1.0, .norm_type = -1.0));
    expect_fatal("must be positive", td_clip_grad_value(params, -1.0));
}

static void test_clip(void **state)
{
    (void)state;
    td_tensor *x = pictures();
    td_module *net = small_net();
    td_params *params = td_parameters(net);
    run_step(net, x);
    td_zero_grad_of(td_params_get(params, 1)->tensor); /* has none: does not count */
    double sum = 0.0;
    float before[54], after[54], values[54];
    for (int i = 0; i < 4; i++) {
        const td_tensor *grad = td_grad(td_params_get(params, i)->tensor);
        if (grad != NULL) {
            td_read(grad, values, TD_F32);
            for (int64_t k = 0; k < td_numel(grad); k++) {
                sum += (double)values[k] * values[k];
            }
        }
    }
    td_read(td_grad(td_params_get(params, 0)->tensor), before, TD_F32);
    double norm = td_clip_grad_norm(params, 2.0 * sqrt(sum)); /* nothing to clip */
    assert_true(fabs(norm - sqrt(sum)) <= 1e-6 * norm);
    td_read(td_grad(td_params_get(params, 0)->tensor), after, TD_F32);
    assert_memory_equal(before, after, sizeof before);

    double limit = norm / 3.0, scale = limit / (norm + 1e-6);
    assert_true(td_clip_grad_norm(params, limit) == norm);
    td_read(td_grad(td_params_get(params, 0)->tensor), after, TD_F32);
    for (int k = 0; k < 54; k++) {
        assert_true(fabs(after[k] - before[k] * scale) <= 1e-6 * fabs(before[k]));
    }
    assert_true(fabs(td_clip_grad_norm(params, 1e9) - limit) <= 1e-5 * limit);
    assert_null(td_grad(td_params_get(params, 1)->tensor));
    expect_fatal("must be positive", td_clip_grad_norm(params, -1.0));
    check_other_clips(params);
    td_free(x);
    td_module_free(net);
}

/* As in PyTorch a NaN makes all gradients NaN; of an infinite norm finite gradients become 0. */
static void test_clip_not_finite(void **state)
{
    (void)state;
    const float bad[] = { NAN, INFINITY };
    for (int k = 0; k < 2; k++) {
        td_tensor *x = pictures();
        td_module *net = small_net();
        td_params *params = td_parameters(net);
        run_step(net, x);
        float values[54];
        td_tensor *first = td_grad(td_params_get(params, 0)->tensor);
        td_read(first, values, TD_F32);
        values[5] = bad[k];
        td_write(first, values, TD_F32);
        double norm = td_clip_grad_norm(params, 1.0);
        assert_true(k == 0 ? isnan(norm) : isinf(norm));
        for (int i = 0; i < 4; i++) {
            const td_tensor *grad = td_grad(td_params_get(params, i)->tensor);
            td_read(grad, values, TD_F32);
            for (int64_t e = 0; e < td_numel(grad); e++) {
                bool spoiled = k == 0 || (i == 0 && e == 5);
                assert_true(spoiled ? isnan(values[e]) : values[e] == 0.0f);
            }
        }
        td_free(x);
        td_module_free(net);
    }
}

static void test_freed(void **state)
{
    (void)state;
    td_module *net = small_net();
    td_params *params = td_parameters(net);
    td_tensor *x = pictures();
    expect_fatal("test_nn_params.c:", td_parameters(net->children[0])); /* of another optimizer */
    expect_fatal("give it one optimizer", td_parameters(net->children[0]));
    td_module_free(net);
    expect_fatal("freed with its model", td_params_get(params, 0));
    expect_fatal("freed with its model", td_clip_grad_norm(params, 1.0));
    expect_fatal("freed with its model", td_sgd(params, .lr = 0.1));
    expect_fatal("td_parameters: the module was freed", td_parameters(net));
    expect_fatal("freed already", td_module_free(net));
    expect_fatal("test_nn_params.c:", td_module_free(net));
    td_step_begin();
    expect_fatal("td_forward: the module was freed", td_forward(net, x));
    td_step_abandon();
    td_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_model_goes_on),
        cmocka_unit_test(test_frozen_come_last),
        cmocka_unit_test(test_frozen_train_again),
        cmocka_unit_test_setup_teardown(test_frozen_in_checkpoints, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test(test_whole_model_only),
        cmocka_unit_test(test_reorder),
        cmocka_unit_test(test_reorder_while_training),
        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_clip_not_finite),
        cmocka_unit_test(test_freed),
    };
    return cmocka_run_group_tests_name("nn: flat parameters", tests, NULL, NULL);
}
