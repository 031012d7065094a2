/* The profiler on a GPU, real or emulated: the same kernels as on the CPU, in the same order, with
 * the same counts of work; times of the GPU's own clock. */
#include "tensor/clock.h"
#include "tandem.h"
#include "tensor/observe/profile.h"
#include "tensor/hooks.h"
#include "tensor/observe/watch.h"
#include "tensor/extend.h"
#include "tests/cuda/needs_gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 3, MOST = 512, NAME = 96 };

static const td_profile_options limits = { .flops_f32 = 1e9, .flops_f64 = 5e8, .bytes = 1e9 };

/* What a watcher was told, in order. */
typedef struct story {
    int count, returned;
    char name[MOST][NAME]; /* "conv2d 0 (Conv2d)" */
    double begin[MOST], end[MOST];
    bool right_device;
    td_device device;
} story;

/* A GPU checks labels beside the table of kernels, and tells when the host reads a value. */
static bool is_hosts_check(const char *kernel)
{
    return strcmp(kernel, "indices_in_range") == 0;
}

static void note(const td_watched_call *call, void *user)
{
    story *s = user;
    if (call->span || is_hosts_check(call->kernel)) {
        return;
    }
    assert_true(s->count < MOST);
    snprintf(s->name[s->count], NAME, "%s %s %s", call->kernel,
             call->module != NULL ? call->module : "-", call->backward ? "back" : "fwd");
    s->begin[s->count] = call->begin;
    s->end[s->count] = call->end;
    s->right_device &= td_same_device(call->device, s->device);
    s->count++;
}

static void count_returned(const td_watched_call *call, void *user)
{
    (void)call;
    ((story *)user)->returned++;
}

/* A small net, and what it learns from. */
typedef struct job {
    td_module *net;
    td_optim *optim;
    td_tensor *x, *y;
} job;

static job new_job(td_device device)
{
    td_manual_seed(1);
    td_module *net = td_nn_sequential(
        td_nn_conv2d(3, 6, .kernel = 3, .padding = 1), td_nn_batch_norm2d(6), td_nn_relu(),
        td_nn_global_avg_pool2d(), td_nn_flatten(), td_nn_linear(6, 5));
    assert_int_equal(td_module_to(net, device, TD_F32), TD_OK);
    td_tensor *x = td_new_layout(TD_SHAPE(2, 3, 5, 4), TD_F32, TD_IMAGE, TD_CPU);
    td_normal_(x, 0, 1, td_default_generator());
    job j = { .net = net, .x = td_clone_as(x, TD_F32, device) };
    j.y = td_zeros(TD_SHAPE(2), TD_I64, device);
    j.optim = td_sgd(td_parameters(net), .lr = 0.1, .momentum = 0.9);
    td_free(x);
    return j;
}

static void take_steps(const job *j)
{
    for (int i = 0; i < STEPS; i++) {
        td_step_begin();
        td_tensor *loss = td_cross_entropy(td_forward(j->net, j->x), j->y);
        td_zero_grad(j->optim);
        td_backward(loss);
        td_optim_step(j->optim);
        td_step_end();
    }
}

static void free_job(job *j)
{
    td_optim_free(j->optim);
    td_module_free(j->net);
    td_free(j->x);
    td_free(j->y);
}

static story *watch(td_device device)
{
    story *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->right_device = true;
    s->device = device;
    td_watcher watcher = { .called = note, .returned = count_returned, .user = s };
    job j = new_job(device);
    td_watch(&watcher);
    take_steps(&j);
    td_unwatch(&watcher); /* tells the rest first */
    free_job(&j);
    return s;
}

static void test_the_cpus_story(void **state)
{
    NEEDS_GPU(0);
    const td_device device = TD_CUDA;
    double before = td_clock();
    story *cpu = watch(TD_CPU), *gpu = watch(device);
    double after = td_clock();
    assert_true(cpu->count > 10 * STEPS);
    assert_int_equal(gpu->count, cpu->count);
    assert_int_equal(gpu->returned, gpu->count);
    assert_true(cpu->right_device && gpu->right_device);
    for (int i = 0; i < cpu->count; i++) {
        assert_string_equal(gpu->name[i], cpu->name[i]);
        assert_true(gpu->end[i] > gpu->begin[i]);
        /* One behind the other, on the host's clock; float milliseconds round. */
        assert_true(gpu->begin[i] >= (i > 0 ? gpu->end[i - 1] - 1e-4 : before));
    }
    assert_true(gpu->end[gpu->count - 1] <= after + 1); /* a machine at its limit may be late */
    free(cpu);
    free(gpu);
}

typedef struct table {
    td_profile_totals totals;
    int count;
    td_profile_row row[MOST];
    char module[MOST][NAME];
} table;

static table *profile(td_device device)
{
    table *t = calloc(1, sizeof *t);
    assert_non_null(t);
    td_profile_options options = limits;
    options.device = device;
    job j = new_job(device);
    assert_int_equal(td_profile_start(&options), TD_OK);
    take_steps(&j);
    td_profile_stop();
    take_steps(&j); /* counts for nothing */
    free_job(&j);
    t->totals = td_profile_result();
    for (int i = 0; i < t->totals.rows; i++) {
        t->row[i] = td_profile_get(i);
        snprintf(t->module[i], NAME, "%s", t->row[i].module);
    }
    return t;
}

static void test_the_cpus_table(void **state)
{
    NEEDS_GPU(0);
    const td_device device = TD_CUDA;
    table *cpu = profile(TD_CPU), *gpu = profile(device);
    assert_int_equal(gpu->totals.rows + 1, cpu->totals.rows);
    assert_int_equal(gpu->totals.steps, STEPS);
    double kernels = 0;
    for (int i = 0; i < cpu->totals.rows; i++) {
        const td_profile_row *want = &cpu->row[i];
        if (is_hosts_check(want->kernel)) {
            continue;
        }
        int found = -1;
        for (int k = 0; k < gpu->totals.rows; k++) {
            const td_profile_row *row = &gpu->row[k];
            if (strcmp(row->kernel, want->kernel) == 0 && row->backward == want->backward &&
                strcmp(gpu->module[k], cpu->module[i]) == 0) {
                found = k;
            }
        }
        assert_true(found >= 0);
        const td_profile_row *got = &gpu->row[found];
        assert_int_equal(got->calls, want->calls);
        assert_float_equal(got->flops, want->flops, 0);
        assert_float_equal(got->bytes, want->bytes, 0);
        assert_true(got->seconds > 0);
        kernels += got->span ? 0 : got->seconds;
    }
    assert_float_equal(kernels, gpu->totals.kernels, 1e-9);
    assert_float_equal(gpu->totals.other, 0, 0);
    free(cpu);
    free(gpu);
}

static void test_limits_are_measured(void **state)
{
    NEEDS_GPU(0);
    const td_device device = TD_CUDA;
    assert_int_equal(td_profile_start(&(td_profile_options){ .device = device }), TD_OK);
    td_profile_stop();
    td_profile_totals t = td_profile_result();
    assert_true(t.flops_f32 > 1e5 && t.flops_f64 > 1e5 && t.bytes_per_second > 1e5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_cpus_story),
        cmocka_unit_test(test_the_cpus_table),
        cmocka_unit_test(test_limits_are_measured),
    };
    return cmocka_run_group_tests_name("the profiler on GPUs", tests, NULL, NULL);
}
