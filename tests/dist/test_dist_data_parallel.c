/* DataParallel against the same model on one device. */
#include "dist/dist.h"
#include "nn/internal.h"
#include "tests/dist/ddp_job.h"
#include "tests/help/expect_fatal.h"
#include "autograd/hooks.h"
#include "nn/extra/ema.h"
#include "tensor/extend.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { CLASSES = 5 };

static const td_device devices[] = { { TD_DEVICE_CPU, 0 },
                                     { TD_DEVICE_CPU, 1 },
                                     { TD_DEVICE_CPU, 2 } };

/* count 0: not wrapped. */
static void open_job(ddp_job *j, td_module *net, int count, td_dtype dtype, int64_t batch)
{
    assert_int_equal(td_module_to(net, TD_CPU, dtype), TD_OK);
    j->net = count > 0 ? td_data_parallel(net, devices, count) : net;
    assert_non_null(j->net);
    j->optim = td_sgd(td_parameters(j->net), .lr = 0.05, .momentum = 0.9);
    td_generator g;
    td_generator_seed(&g, 11);
    j->x = td_new_layout(TD_SHAPE(batch, 3, 8, 8), dtype, TD_IMAGE, TD_CPU);
    j->y = td_new(TD_SHAPE(batch), TD_I64, TD_CPU);
    td_normal_(j->x, 0.0, 1.0, &g);
    for (int64_t i = 0; i < batch; i++) {
        td_set(j->y, &i, (double)(i % CLASSES));
    }
}

/* The same model twice, from the same weights: alone, and over so many devices. */
static void open_both(ddp_job *one, ddp_job *many, bool batch_norm, int count, td_dtype dtype,
                      int64_t batch)
{
    td_manual_seed(0);
    open_job(one, job_small_net(batch_norm, CLASSES), 0, dtype, batch);
    td_manual_seed(0);
    open_job(many, job_small_net(batch_norm, CLASSES), count, dtype, batch);
}

static void close_both(ddp_job *one, ddp_job *many)
{
    job_close(one);
    job_close(many);
}

/* In evaluation mode, on batches of 9. */
static void expect_equal_logits(ddp_job *one, ddp_job *many)
{
    float a[9 * CLASSES], b[9 * CLASSES];
    td_eval(one->net);
    td_eval(many->net);
    td_no_grad_begin();
    td_step_begin();
    td_read(td_forward(one->net, one->x), a, TD_F32);
    td_read(td_forward(many->net, many->x), b, TD_F32);
    td_step_end();
    td_no_grad_end();
    for (int i = 0; i < 9 * CLASSES; i++) {
        assert_true(fabsf(a[i] - b[i]) <= 1e-6f);
    }
}

static void check_five_steps(int count, td_dtype dtype, int64_t batch, double tolerance)
{
    ddp_job one, many;
    open_both(&one, &many, false, count, dtype, batch);
    for (int i = 0; i < 5; i++) {
        double a = job_step(&many), b = job_step(&one);
        assert_true(fabs(a - b) <= tolerance * fabs(b));
    }
    assert_true(job_distance(many.net, one.net, true) <= tolerance);
    close_both(&one, &many);
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
    ddp_job a, b;
    td_manual_seed(0);
    open_job(&a, job_small_net(true, CLASSES), 3, TD_F32, 13);
    td_manual_seed(0);
    open_job(&b, job_small_net(true, CLASSES), 3, TD_F32, 13);
    for (int i = 0; i < 5; i++) {
        assert_true(job_step(&a) == job_step(&b));
    }
    assert_true(job_distance(a.net, b.net, true) == 0.0);
    job_close(&a);
    job_close(&b);
}

/* The running statistics are those that the first piece alone leaves. */
static void test_only_the_first_replicas_statistics_survive(void **state)
{
    (void)state;
    ddp_job whole, part;
    td_manual_seed(0);
    open_job(&whole, job_small_net(true, CLASSES), 2, TD_F32, 12);
    td_manual_seed(0);
    open_job(&part, job_small_net(true, CLASSES), 0, TD_F32, 12);
    td_step_begin();
    td_forward(whole.net, whole.x);
    td_forward(part.net, td_slice(part.x, 0, 0, 6, 1));
    td_step_end();
    assert_true(job_distance(whole.net, part.net, true) < 1e-7);
    job_close(&whole);
    job_close(&part);
}

static void test_evaluation_equals_one_device(void **state)
{
    (void)state;
    ddp_job one, many;
    open_both(&one, &many, true, 3, TD_F32, 9);
    expect_equal_logits(&one, &many);
    close_both(&one, &many);
}

/* The replicas follow when the model's values and their averages change places. */
static void test_averages_reach_the_replicas(void **state)
{
    (void)state;
    ddp_job one, many;
    open_both(&one, &many, true, 3, TD_F32, 9);
    td_ema *ema = td_ema_new(many.net, .decay = 0.99);
    for (int i = 0; i < 3; i++) {
        job_step(&many);
        td_ema_update(ema);
    }
    assert_true(job_distance(many.net, one.net, true) > 0.1);
    td_ema_swap(ema);
    td_state_list from = td_module_state(many.net), to = td_module_state(one.net);
    for (int i = 0; i < to.count; i++) {
        td_copy_(to.items[i].tensor, from.items[i].tensor);
    }
    td_state_list_free(&from);
    td_state_list_free(&to);
    expect_equal_logits(&one, &many);
    td_ema_swap(ema);
    td_ema_free(ema);
    close_both(&one, &many);
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
    ddp_job one, many;
    open_both(&one, &many, false, 2, TD_F64, 6);
    ddp_job *jobs[] = { &one, &many };
    for (int i = 0; i < 2; i++) {
        ddp_job *j = jobs[i];
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
    assert_true(job_distance(many.net, one.net, true) <= 1e-12);
    close_both(&one, &many);
}

/* An evaluation between a forward and its backward: the replicas have the model's mode, and its
 * statistics as the first forward left them. */
static void test_evaluation_before_the_backward(void **state)
{
    (void)state;
    ddp_job one, many;
    float a[9 * CLASSES], b[9 * CLASSES];
    open_both(&one, &many, true, 3, TD_F32, 9);
    td_step_begin();
    td_tensor *y = td_forward(many.net, many.x);
    td_forward(one.net, td_slice(one.x, 0, 0, 3, 1)); /* the first replica's samples */
    td_eval(one.net);
    td_eval(many.net);
    td_no_grad_begin();
    td_read(td_forward(one.net, one.x), a, TD_F32);
    td_read(td_forward(many.net, many.x), b, TD_F32);
    td_no_grad_end();
    td_train(many.net);
    td_backward(td_cross_entropy(y, many.y));
    td_step_end();
    for (int i = 0; i < 9 * CLASSES; i++) {
        assert_true(fabsf(a[i] - b[i]) <= 1e-6f);
    }
    close_both(&one, &many);
}

static void test_frozen_parameters_stay(void **state)
{
    (void)state;
    td_manual_seed(0);
    ddp_job j;
    td_module *net = job_small_net(false, CLASSES);
    td_requires_grad(td_module_find(net, "0")->tensors[0].tensor, false);
    open_job(&j, net, 2, TD_F32, 6);
    float before[8 * 27], after[8 * 27];
    td_tensor *frozen = td_module_find(j.net, "0")->tensors[0].tensor;
    td_read(frozen, before, TD_F32);
    job_step(&j);
    td_read(frozen, after, TD_F32);
    assert_memory_equal(before, after, sizeof before);
    job_close(&j);
}

/* ---- memory ---- */

/* Where each device's replica has its weight and the weight's gradient. */
static const void *weight_of[3], *grad_of[3];

static td_tensor *noting_forward(td_module *self, td_tensor *x, td_site at)
{
    td_tensor *weight = self->children[0]->tensors[0].tensor;
    weight_of[td_device_of(x).index] = td_data(weight);
    grad_of[td_device_of(x).index] = td_data(td_grad_buffer(weight));
    return td_forward_at(self->children[0], x, at);
}

static const td_module_type noting_type = { .name = "Noting", .forward = noting_forward };

static void require_shared(td_module *net, td_tensor *x)
{
    td_step_begin();
    td_backward(td_sum(td_forward(net, x)));
    td_step_end();
    const td_tensor *weight = net->children[0]->tensors[0].tensor;
    for (int i = 0; i < 3; i++) {
        assert_ptr_equal(weight_of[i], td_data(weight));
        assert_true(i == 0 || grad_of[i] != grad_of[i - 1]);
    }
}

/* CPU replicas read the model's parameters where they lie, also when these have moved. */
static void test_replicas_share_parameters(void **state)
{
    (void)state;
    td_module *net = td_module_new(&noting_type, 0);
    td_module_add(net, "inner", td_nn_linear(4, 3));
    net = td_data_parallel(td_module_finish(net), devices, 3);
    td_tensor *x = td_full(TD_SHAPE(6, 4), 0.3, TD_F32, TD_CPU);
    require_shared(net, x);
    td_params *params = td_parameters(net);
    require_shared(net, x);
    assert_int_equal(td_params_reorder(params, (int[]){ 1, 0 }), TD_OK);
    require_shared(net, x);
    td_free(x);
    td_module_free(net);
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
        cmocka_unit_test(test_replicas_share_parameters),
        cmocka_unit_test(test_five_steps_equal_one_device),
        cmocka_unit_test(test_two_runs_have_the_same_bits),
        cmocka_unit_test(test_only_the_first_replicas_statistics_survive),
        cmocka_unit_test(test_evaluation_equals_one_device),
        cmocka_unit_test(test_averages_reach_the_replicas),
        cmocka_unit_test(test_the_batch_takes_gradients),
        cmocka_unit_test(test_several_forwards_in_a_step),
        cmocka_unit_test(test_evaluation_before_the_backward),
        cmocka_unit_test(test_frozen_parameters_stay),
        cmocka_unit_test(test_a_replicas_mistake_is_the_callers),
        cmocka_unit_test(test_outputs_must_have_the_batch_in_front),
        cmocka_unit_test(test_bad_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
