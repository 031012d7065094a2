/* Training on GPUs, real or emulated, beside the CPU: from the same start nearly the same losses;
 * with itself to the bit; checkpoints go from one to the other; two GPUs share a batch. */
#include "tests/dist/ddp_job.h"
#include "tests/cuda/needs_gpu.h"
#include "nn/extra/inspect.h"
#include "tensor/extend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { SIDE = 8, FEATURES = 13, CLASSES = 3, BATCH = 10, STEPS = 8 };

typedef struct plan {
    td_device device;
    bool pictures, adam;
    int devices; /* DataParallel over so many; 0: one, without it */
} plan;

static td_module *new_net(bool pictures)
{
    return pictures ? job_small_net(true, CLASSES)
                    : td_nn_sequential(td_nn_linear(FEATURES, 16), td_nn_gelu(),
                                       td_nn_dropout(0.25), td_nn_linear(16, CLASSES));
}

static ddp_job open_job(plan p)
{
    ddp_job j;
    td_manual_seed(0);
    td_module *net = new_net(p.pictures);
    assert_non_null(net);
    td_tensor *x = p.pictures
                       ? td_new_layout(TD_SHAPE(BATCH, 3, SIDE, SIDE), TD_F32, TD_IMAGE, TD_CPU)
                       : td_new(TD_SHAPE(BATCH, FEATURES), TD_F32, TD_CPU);
    td_normal_(x, 0, 1, td_default_generator());
    int64_t labels[BATCH];
    for (int i = 0; i < BATCH; i++) {
        labels[i] = i % CLASSES;
    }
    assert_int_equal(td_module_to(net, p.device, TD_F32), TD_OK);
    td_device devices[] = { p.device, { p.device.type, (unsigned char)(p.device.index + 1) } };
    j.net = p.devices > 0 ? td_data_parallel(net, devices, p.devices) : net;
    assert_non_null(j.net);
    td_params *params = td_parameters(j.net);
    for (int i = 0; i < td_params_count(params); i++) { /* otherwise each use would transpose it */
        const td_tensor *t = td_params_get(params, i)->tensor;
        assert_true(t->ndim < 2 || td_is_layout(t, TD_FILTER));
    }
    j.optim = p.adam ? td_adam(params, .lr = 0.01)
                     : td_sgd(params, .lr = 0.05, .momentum = 0.9, .nesterov = true);
    j.x = td_new_layout(td_shape_of(x), TD_F32, p.pictures ? TD_IMAGE : TD_ROW_MAJOR, p.device);
    td_copy_(j.x, x);
    j.y = td_from(labels, TD_SHAPE(BATCH), TD_I64, p.device);
    td_free(x);
    return j;
}

/* scaler: of the loss, or NULL. */
static double scaled_step(ddp_job *j, td_scaler *scaler)
{
    td_step_begin();
    td_tensor *loss = td_cross_entropy(td_forward(j->net, j->x), j->y);
    td_zero_grad(j->optim);
    td_backward(td_scaler_loss(scaler, loss));
    if (td_scaler_unscale(scaler, td_parameters(j->net))) {
        td_optim_step(j->optim);
    }
    double value = td_item(loss);
    td_step_end();
    return value;
}

static double step(ddp_job *j)
{
    return scaled_step(j, NULL);
}

static void train(plan p, double losses[STEPS])
{
    ddp_job j = open_job(p);
    for (int i = 0; i < STEPS; i++) {
        losses[i] = step(&j);
    }
    job_close(&j);
}

static void expect_close(const double *a, const double *b, double bound)
{
    for (int i = 0; i < STEPS; i++) {
        double difference = a[i] > b[i] ? a[i] - b[i] : b[i] - a[i];
        if (!(difference <= bound * b[i])) {
            fail_msg("loss %d: %.9g beside %.9g", i, a[i], b[i]);
        }
    }
    assert_true(b[STEPS - 1] < b[0]);
}

static void test_losses_are_the_cpus(void **state)
{
    NEEDS_GPU(0);
    for (int kind = 0; kind < 4; kind++) {
        double here[STEPS], there[STEPS], again[STEPS];
        plan p = { .device = TD_CPU, .pictures = kind / 2, .adam = kind % 2 };
        train(p, here);
        p.device = TD_CUDA;
        train(p, there);
        train(p, again);
        expect_close(there, here, 1e-4);
        assert_memory_equal(there, again, sizeof there);
    }
}

/* Trains in f16, from a scale that is far too large at first: so many steps are left out, which
 * leaves the weights alone, and what follows is f32's training up to f16's rounding. */
static int train_in_f16(plan p, double losses[STEPS])
{
    enum { MOST_SKIPS = 60 };
    td_math before = td_math_now();
    td_set_math((td_math){ .precision = TD_PRECISION_FP16 });
    ddp_job j = open_job(p);
    td_scaler *scaler = td_scaler_new(.scale = 0x1p40);
    int steps = 0, skips = 0;
    while (steps < STEPS && skips < MOST_SKIPS) {
        double loss = scaled_step(&j, scaler);
        if (td_scaler_now(scaler).skipped > skips) {
            skips++;
            assert_true(steps == 0); /* the scale never grows here */
            losses[0] = skips == 1 ? loss : losses[0];
            assert_true(loss == losses[0]); /* nothing has moved */
        } else {
            assert_true(steps > 0 || loss == losses[0]);
            losses[steps++] = loss;
        }
    }
    assert_true(td_scaler_now(scaler).scale == 0x1p40 / (double)(INT64_C(1) << skips));
    td_scaler_free(scaler);
    job_close(&j);
    td_set_math(before);
    return skips;
}

static void test_f16_trains_as_f32(void **state)
{
    (void)state;
    if (!have_gpu(0) || td_precision_check(TD_CUDA, TD_PRECISION_FP16) != TD_OK) {
        skip();
    }
    double here[STEPS], there[STEPS], again[STEPS];
    plan p = { .device = TD_CPU, .pictures = true };
    train(p, here);
    p.device = TD_CUDA;
    assert_in_range(train_in_f16(p, there), 5, 50);
    train_in_f16(p, again);
    expect_close(there, here, 1e-2);
    assert_memory_equal(there, again, sizeof there);
    assert_memory_not_equal(there, here, sizeof there); /* it was f16 */
}

static void test_two_gpus_share_a_batch(void **state)
{
    NEEDS_GPU(1);
    double one[STEPS], two[STEPS], again[STEPS];
    plan p = { .device = TD_CPU, .pictures = true, .devices = 2 };
    train(p, one);
    p.device = TD_CUDA;
    train(p, two);
    train(p, again);
    expect_close(two, one, 1e-4);
    assert_memory_equal(two, again, sizeof two);
}

/* The second half on the CPU, after the first on a GPU, and the other way round. */
static void test_checkpoints_change_devices(void **state)
{
    NEEDS_GPU(0);
    char path[64];
    snprintf(path, sizeof path, "/tmp/tandem-cuda-%d.safetensors", (int)getpid());
    double whole[STEPS], parts[STEPS];
    train((plan){ .device = TD_CPU, .pictures = true }, whole);
    for (int first = 0; first < 3; first++) { /* CPU to GPU, GPU to CPU, GPU to GPU */
        td_device from = first == 0 ? TD_CPU : TD_CUDA, to = first == 1 ? TD_CPU : TD_CUDA;
        ddp_job a = open_job((plan){ .device = from, .pictures = true });
        for (int i = 0; i < STEPS / 2; i++) {
            parts[i] = step(&a);
        }
        assert_int_equal(td_checkpoint_save(path, a.net, .optim = a.optim), TD_OK);
        job_close(&a);
        ddp_job b = open_job((plan){ .device = to, .pictures = true });
        assert_int_equal(td_checkpoint_load(path, b.net, .optim = b.optim), TD_OK);
        for (int i = STEPS / 2; i < STEPS; i++) {
            parts[i] = step(&b);
        }
        job_close(&b);
        expect_close(parts, whole, 1e-4);
    }
    remove(path);
}

/* Four steps, and the loss of the weights' averages. */
static double averaged_loss(td_device device)
{
    ddp_job j = open_job((plan){ .device = device, .pictures = true });
    td_ema *ema = td_ema_new(j.net, .decay = 0.75);
    assert_non_null(ema);
    for (int i = 0; i < 4; i++) {
        step(&j);
        td_ema_update(ema);
    }
    td_ema_swap(ema);
    double averaged = step(&j);
    td_ema_swap(ema);
    assert_true(averaged > 1.001 * step(&j)); /* the averages lag behind */
    td_ema_free(ema);
    job_close(&j);
    return averaged;
}

static void test_averages_of_weights(void **state)
{
    NEEDS_GPU(0);
    double here = averaged_loss(TD_CPU), there = averaged_loss(TD_CUDA);
    assert_true(there > 0.9999 * here && there < 1.0001 * here);
}

static void test_steps_repeat_their_addresses(void **state)
{
    NEEDS_GPU(0);
    ddp_job j = open_job((plan){ .device = TD_CUDA, .pictures = true });
    td_memory_stats first = { 0 }, now;
    for (int i = 0; i < 6; i++) {
        step(&j);
        now = td_step_memory(TD_CUDA);
        if (i == 1) {
            first = now;
        }
    }
    assert_int_equal(now.address_hash, first.address_hash);
    assert_int_equal(now.growths, first.growths);
    assert_true(now.allocations > 0);
    job_close(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses_are_the_cpus),
        cmocka_unit_test(test_f16_trains_as_f32),
        cmocka_unit_test(test_two_gpus_share_a_batch),
        cmocka_unit_test(test_checkpoints_change_devices),
        cmocka_unit_test(test_averages_of_weights),
        cmocka_unit_test(test_steps_repeat_their_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
