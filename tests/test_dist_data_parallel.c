/* DataParallel against the same model on one device. */
#include "dist/dist.h"
#include "nn/module.h"
#include "tests/expect_fatal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const td_device devices[] = { { TD_DEVICE_CPU, 0 },
                                     { TD_DEVICE_CPU, 1 },
                                     { TD_DEVICE_CPU, 2 } };

static td_module *conv_net(bool batch_norm)
{
    td_nn_conv2d_options same = { .padding = { 1, 1 }, .kernel = { 3, 3 } };
    return batch_norm
               ? td_nn_sequential(td_nn_conv2d(3, 8, &same), td_nn_batch_norm2d(8), td_nn_relu(),
                                  td_nn_max_pool2d(2, 0, 0), td_nn_flatten(), td_nn_linear(128, 5))
               : td_nn_sequential(td_nn_conv2d(3, 8, &same), td_nn_relu(),
                                  td_nn_max_pool2d(2, 0, 0), td_nn_flatten(), td_nn_linear(128, 5));
}

typedef struct job {
    td_module *net;
    td_optim *optim;
    td_tensor *x, *y;
} job;

/* count 0: not wrapped. */
static void job_open(job *j, td_module *net, int count, td_dtype dtype, int64_t batch)
{
    assert_int_equal(td_module_to(net, TD_CPU, dtype), TD_OK);
    j->net = count > 0 ? td_data_parallel(net, devices, count) : net;
    assert_non_null(j->net);
    j->optim = td_sgd(td_parameters(j->net), &(td_sgd_options){ .lr = 0.05, .momentum = 0.9 });
    td_generator g;
    td_generator_seed(&g, 11);
    j->x = td_new_layout(TD_SHAPE(batch, 3, 8, 8), dtype, TD_IMAGE, TD_CPU);
    j->y = td_new(TD_SHAPE(batch), TD_I64, TD_CPU);
    td_normal_(j->x, 0.0, 1.0, &g);
    for (int64_t i = 0; i < batch; i++) {
        td_set(j->y, &i, (double)(i % 5));
    }
}

static void job_close(job *j)
{
    td_optim_free(j->optim);
    td_module_free(j->net);
    td_free(j->x);
    td_free(j->y);
}

static double job_step(job *j)
{
    td_step_begin();
    td_tensor *loss = td_cross_entropy(td_forward(j->net, j->x), j->y);
    td_zero_grad(j->optim);
    td_backward(loss);
    td_optim_step(j->optim);
    double value = td_item(loss);
    td_step_end();
    return value;
}

/* |a - b| / |b| over all parameters and buffers. */
static double distance(const td_module *a, const td_module *b)
{
    td_state_list la = td_module_state(a), lb = td_module_state(b);
    assert_int_equal(la.count, lb.count);
    double difference = 0.0, norm = 0.0;
    for (int i = 0; i < la.count; i++) {
        assert_string_equal(la.items[i].name, lb.items[i].name);
        int64_t n = td_numel(la.items[i].tensor);
        double *va = malloc((size_t)n * sizeof *va), *vb = malloc((size_t)n * sizeof *vb);
        td_read(la.items[i].tensor, va, TD_F64);
        td_read(lb.items[i].tensor, vb, TD_F64);
        for (int64_t k = 0; k < n; k++) {
            difference += (va[k] - vb[k]) * (va[k] - vb[k]);
            norm += vb[k] * vb[k];
        }
        free(va);
        free(vb);
    }
    td_state_list_free(&la);
    td_state_list_free(&lb);
    return sqrt(difference / norm);
}

static void check_five_steps(int count, td_dtype dtype, int64_t batch, double tolerance)
{
    job one, many;
    td_manual_seed(0);
    job_open(&one, conv_net(false), 0, dtype, batch);
    td_manual_seed(0);
    job_open(&many, conv_net(false), count, dtype, batch);
    for (int i = 0; i < 5; i++) {
        double a = job_step(&many), b = job_step(&one);
        assert_true(fabs(a - b) <= tolerance * fabs(b));
    }
    assert_true(distance(many.net, one.net) <= tolerance);
    job_close(&one);
    job_close(&many);
}

static void test_five_steps_equal_one_device(void **state)
{
    (void)state;
    check_five_steps(1, TD_F32, 12, 0.0);
    check_five_steps(2, TD_F32, 12, 1e-5);
    check_five_steps(3, TD_F32, 13, 1e-5); /* 5, 5 and 3 */
    check_five_steps(3, TD_F32, 4, 1e-5);  /* two pieces of 2: fewer than devices */
    check_five_steps(3, TD_F32, 1, 0.0);
    check_five_steps(2, TD_F64, 12, 1e-12);
    check_five_steps(3, TD_F64, 13, 1e-12);
}

static void test_two_runs_have_the_same_bits(void **state)
{
    (void)state;
    job a, b;
    td_manual_seed(0);
    job_open(&a, conv_net(true), 3, TD_F32, 13);
    td_manual_seed(0);
    job_open(&b, conv_net(true), 3, TD_F32, 13);
    for (int i = 0; i < 5; i++) {
        assert_true(job_step(&a) == job_step(&b));
    }
    assert_true(distance(a.net, b.net) == 0.0);
    job_close(&a);
    job_close(&b);
}

/* The running statistics are those that the first piece alone leaves. */
static void test_only_the_first_replicas_statistics_survive(void **state)
{
    (void)state;
    job whole, part;
    td_manual_seed(0);
    job_open(&whole, conv_net(true), 2, TD_F32, 12);
    td_manual_seed(0);
    job_open(&part, conv_net(true), 0, TD_F32, 12);
    td_step_begin();
    td_forward(whole.net, whole.x);
    td_forward(part.net, td_slice(part.x, 0, 0, 6, 1));
    td_step_end();
    assert_true(distance(whole.net, part.net) < 1e-7);
    job_close(&whole);
    job_close(&part);
}

static void test_evaluation_equals_one_device(void **state)
{
    (void)state;
    job one, many;
    td_manual_seed(0);
    job_open(&one, conv_net(true), 0, TD_F32, 9);
    td_manual_seed(0);
    job_open(&many, conv_net(true), 3, TD_F32, 9);
    td_eval(one.net);
    td_eval(many.net);
    float a[45], b[45];
    td_no_grad_begin();
    td_step_begin();
    td_read(td_forward(one.net, one.x), a, TD_F32);
    td_read(td_forward(many.net, many.x), b, TD_F32);
    td_step_end();
    td_no_grad_end();
    for (int i = 0; i < 45; i++) {
        assert_true(fabsf(a[i] - b[i]) <= 1e-6f);
    }
    job_close(&one);
    job_close(&many);
}

/* The replicas follow when the model's values and their averages change places. */
static void test_averages_reach_the_replicas(void **state)
{
    (void)state;
    job one, many;
    td_manual_seed(0);
    job_open(&one, conv_net(true), 0, TD_F32, 9);
    td_manual_seed(0);
    job_open(&many, conv_net(true), 3, TD_F32, 9);
    td_ema *ema = td_ema_new(many.net, &(td_ema_options){ .decay = 0.99 });
    for (int i = 0; i < 3; i++) {
        job_step(&many);
        td_ema_update(ema);
    }
    assert_true(distance(many.net, one.net) > 0.1);
    td_ema_swap(ema);
    td_state_list from = td_module_state(many.net), to = td_module_state(one.net);
    for (int i = 0; i < to.count; i++) {
        td_copy_(to.items[i].tensor, from.items[i].tensor);
    }
    td_state_list_free(&from);
    td_state_list_free(&to);
    td_eval(one.net);
    td_eval(many.net);
    float a[45], b[45];
    td_no_grad_begin();
    td_step_begin();
    td_read(td_forward(one.net, one.x), a, TD_F32);
    td_read(td_forward(many.net, many.x), b, TD_F32);
    td_step_end();
    td_no_grad_end();
    for (int i = 0; i < 45; i++) {
        assert_true(fabsf(a[i] - b[i]) <= 1e-6f);
    }
    td_ema_swap(ema);
    td_ema_free(ema);
    job_close(&one);
    job_close(&many);
}

/* Gradients flow through to what came before. */
static void test_the_batch_takes_gradients(void **state)
{
    (void)state;
    td_manual_seed(0);
    td_module *one = td_nn_sequential(td_nn_linear(4, 3), td_nn_gelu()),
              *copy = td_module_clone(one);
    td_module *many = td_data_parallel(copy, devices, 3);
    td_tensor *x = td_full(TD_SHAPE(7, 4), 0.3, TD_F32, TD_CPU);
    td_generator g;
    td_generator_seed(&g, 5);
    td_normal_(x, 0, 1, &g);
    td_requires_grad(x, true);
    float a[28], b[28];
    for (int i = 0; i < 2; i++) {
        td_step_begin();
        td_zero_grad_of(x);
        td_backward(td_sum(td_forward(i == 0 ? one : many, td_mul_scalar(x, 2.0))));
        td_read(td_grad(x), i == 0 ? a : b, TD_F32);
        td_step_end();
    }
    for (int i = 0; i < 28; i++) {
        assert_true(fabsf(a[i] - b[i]) <= 1e-6f);
    }
    td_free(x);
    td_module_free(one);
    td_module_free(many);
}

/* Two forwards in one step, then one backward through both; and a forward that gets none. */
static void test_several_forwards_in_a_step(void **state)
{
    (void)state;
    job one, many;
    td_manual_seed(0);
    job_open(&one, conv_net(false), 0, TD_F64, 6);
    td_manual_seed(0);
    job_open(&many, conv_net(false), 2, TD_F64, 6);
    job *jobs[] = { &one, &many };
    for (int i = 0; i < 2; i++) {
        job *j = jobs[i];
        for (int step = 0; step < 2; step++) {
            td_step_begin();
            td_tensor *first = td_forward(j->net, j->x);
            td_tensor *second = td_forward(j->net, td_mul_scalar(j->x, 0.5));
            td_forward(j->net, j->x);
            td_zero_grad(j->optim);
            td_backward(td_cross_entropy(td_add(first, td_mul(second, second)), j->y));
            td_optim_step(j->optim);
            td_step_end();
        }
    }
    assert_true(distance(many.net, one.net) <= 1e-12);
    job_close(&one);
    job_close(&many);
}

static void test_frozen_parameters_stay(void **state)
{
    (void)state;
    td_manual_seed(0);
    job j;
    td_module *net = conv_net(false);
    td_requires_grad(td_module_find(net, "0")->tensors[0].tensor, false);
    job_open(&j, net, 2, TD_F32, 6);
    float before[8 * 27], after[8 * 27];
    td_tensor *frozen = td_module_find(j.net, "0")->tensors[0].tensor;
    td_read(frozen, before, TD_F32);
    job_step(&j);
    td_read(frozen, after, TD_F32);
    assert_memory_equal(before, after, sizeof before);
    job_close(&j);
}

/* ---- a model that makes mistakes when it sees a mark ---- */

static td_tensor *picky_forward(td_module *self, td_tensor *x, td_site at)
{
    (void)self;
    TD_REQUIRE(td_get(x, (int64_t[]){ 0, 0 }) < 100.0, at, "a picky model saw a mark");
    return td_mul_scalar(x, 1.0);
}

static const td_module_type picky_type = { .name = "Picky", .forward = picky_forward };

static void test_a_replicas_mistake_is_the_callers(void **state)
{
    (void)state;
    td_module *net = td_data_parallel(
        td_nn_sequential(td_module_new(&picky_type, 0), td_nn_linear(2, 2)), devices, 3);
    td_tensor *x = td_zeros(TD_SHAPE(6, 2), TD_F32, TD_CPU);
    td_set(x, (int64_t[]){ 2, 0 }, 200.0); /* the first of the second replica's */
    for (int i = 0; i < 2; i++) {
        td_step_begin();
        expect_fatal("replica 1 on cpu:1", td_forward(net, x));
        assert_non_null(strstr(fatal_message(), "a picky model saw a mark"));
        td_step_abandon();
    }
    td_set(x, (int64_t[]){ 2, 0 }, 0.0); /* it works on afterwards */
    td_step_begin();
    td_backward(td_sum(td_forward(net, x)));
    td_step_end();
    td_free(x);
    td_module_free(net);
}

static td_tensor *total_forward(td_module *self, td_tensor *x, td_site at)
{
    (void)self, (void)at;
    return td_sum(x);
}

static const td_module_type total_type = { .name = "Total", .forward = total_forward };

static void test_outputs_must_have_the_batch_in_front(void **state)
{
    (void)state;
    td_module *net = td_data_parallel(td_module_new(&total_type, 0), devices, 2);
    td_tensor *x = td_zeros(TD_SHAPE(4, 3), TD_F32, TD_CPU);
    td_step_begin();
    expect_fatal("first dimension is the batch", td_forward(net, x));
    td_step_abandon();
    td_free(x);
    td_module_free(net);
}

static void test_bad_devices(void **state)
{
    (void)state;
    const td_device twice[] = { { TD_DEVICE_CPU, 0 }, { TD_DEVICE_CPU, 0 } };
    assert_null(td_data_parallel(td_nn_linear(2, 2), twice, 2));
    assert_non_null(strstr(td_last_error(), "given twice"));
    assert_null(td_data_parallel(td_nn_linear(2, 2), devices, 0));
    assert_non_null(strstr(td_last_error(), "give 1 to"));
    assert_null(td_data_parallel(td_nn_linear(2, 2), devices + 1, 2));
    assert_non_null(strstr(td_last_error(), "td_module_to"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_five_steps_equal_one_device),
        cmocka_unit_test(test_two_runs_have_the_same_bits),
        cmocka_unit_test(test_only_the_first_replicas_statistics_survive),
        cmocka_unit_test(test_evaluation_equals_one_device),
        cmocka_unit_test(test_averages_reach_the_replicas),
        cmocka_unit_test(test_the_batch_takes_gradients),
        cmocka_unit_test(test_several_forwards_in_a_step),
        cmocka_unit_test(test_frozen_parameters_stay),
        cmocka_unit_test(test_a_replicas_mistake_is_the_callers),
        cmocka_unit_test(test_outputs_must_have_the_batch_in_front),
        cmocka_unit_test(test_bad_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
