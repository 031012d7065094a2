/* The profiler: exact counts of work on a small net, times that add up, the table. */
#include "tensor/clock.h"
#include "tandem.h"
#include "tensor/observe/profile.h"
#include "tensor/hooks.h"
#include "tensor/observe/watch.h"
#include "tensor/extend.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static const td_profile_options limits = { .flops_f32 = 1e9, .flops_f64 = 5e8, .bytes = 1e9 };

/* 2 pictures of 3x5x4, a 3x3 convolution to 6 channels with padding, relu'd batch norm, 6 -> 5. */
enum { N = 2, C = 3, H = 5, W = 4, O = 6, K = 3, CLASSES = 5, STEPS = 3 };

typedef struct job {
    td_module *net;
    td_optim *optim;
    td_tensor *x, *y;
} job;

static void open_job(job *j)
{
    td_manual_seed(1);
    td_module *conv = td_nn_conv2d(C, O, .kernel = K, .padding = 1);
    j->net = td_nn_sequential(conv, td_nn_batch_norm2d(O), td_nn_relu(), td_nn_global_avg_pool2d(),
                              td_nn_flatten(), td_nn_linear(O, CLASSES));
    j->optim = td_sgd(td_parameters(j->net), .lr = 0.1, .momentum = 0.9);
    j->x = td_new_layout(TD_SHAPE(N, C, H, W), TD_F32, TD_IMAGE, TD_CPU);
    td_normal_(j->x, 0, 1, td_default_generator());
    j->y = td_zeros(TD_SHAPE(N), TD_I64, TD_CPU);
}

static void step(job *j)
{
    td_step_begin();
    td_tensor *loss = td_cross_entropy(td_forward(j->net, j->x), j->y);
    td_zero_grad(j->optim);
    td_backward(loss);
    td_optim_step(j->optim);
    td_step_end();
}

static void close_job(job *j)
{
    td_optim_free(j->optim);
    td_module_free(j->net);
    td_free(j->x);
    td_free(j->y);
}

/* The only row of a kernel in a pass. */
static td_profile_row row_of(const char *kernel, bool backward)
{
    td_profile_row found = { .kernel = NULL };
    for (int i = 0; i < td_profile_result().rows; i++) {
        td_profile_row row = td_profile_get(i);
        if (strcmp(row.kernel, kernel) == 0 && row.backward == backward) {
            assert_null(found.kernel);
            found = row;
        }
    }
    assert_non_null(found.kernel);
    return found;
}

static void check_row(const char *kernel, bool backward, const char *module, double flops,
                      double bytes)
{
    td_profile_row row = row_of(kernel, backward);
    assert_string_equal(row.module, module);
    assert_int_equal(row.calls, STEPS);
    assert_float_equal(row.flops, STEPS * flops, 0);
    assert_float_equal(row.bytes, STEPS * bytes, 0);
    assert_true(row.seconds > 0.0);
    double least = flops > bytes ? flops / 1e9 : bytes / 1e9;
    assert_float_equal(row.least, STEPS * least, 1e-15);
}

/* Multiply-adds of the convolution, tap by tap. */
static double convolution_macs(void)
{
    double macs = 0;
    for (int h = 0; h < H; h++) {
        for (int w = 0; w < W; w++) {
            for (int kh = h - 1; kh <= h + 1; kh++) {
                for (int kw = w - 1; kw <= w + 1; kw++) {
                    macs += kh >= 0 && kh < H && kw >= 0 && kw < W ? N * C * O : 0;
                }
            }
        }
    }
    return macs;
}

static void test_counts_are_exact(void **state)
{
    (void)state;
    job j;
    open_job(&j);
    assert_int_equal(td_profile_start(&limits), TD_OK);
    for (int i = 0; i < STEPS; i++) {
        step(&j);
    }
    td_profile_stop();
    step(&j); /* counts for nothing */

    const double in = 4.0 * N * C * H * W, out = 4.0 * N * O * H * W, filter = 4.0 * O * C * K * K;
    const double elements = N * O * H * W;
    double conv = 2 * convolution_macs();
    check_row("conv2d", false, "0 (Conv2d)", conv, in + out + filter);
    check_row("conv2d_grad_weight", true, "0 (Conv2d)", conv, in + out + filter);
    check_row("batch_norm", false, "1 (BatchNorm2d)", 7 * elements, 2 * out);
    /* x and dy in, dx out: relu does not read the result again */
    check_row("batch_norm_grad", true, "1 (BatchNorm2d)", 10 * elements, 3 * out);
    check_row("matmul", false, "5 (Linear)", N * CLASSES * (2 * O + 1),
              4.0 * (N * O + O * CLASSES + N * CLASSES + CLASSES));
    double parameters = O * C * K * K + O + 2 * O + CLASSES * O + CLASSES;
    td_profile_row sgd = row_of("sgd", false);
    assert_string_equal(sgd.module, "optimizer");
    /* A slice reaches over the gaps between parameters. */
    assert_true(sgd.flops >= STEPS * 8 * parameters && sgd.flops < STEPS * 8 * (parameters + 80));
    assert_float_equal(sgd.bytes, sgd.flops / 8 * 5 * 4, 0);
    assert_int_equal(td_profile_result().steps, STEPS);
    close_job(&j);
}

static void test_times_add_up(void **state)
{
    (void)state;
    job j;
    open_job(&j);
    assert_int_equal(td_profile_start(&limits), TD_OK);
    double begin = td_clock();
    for (int i = 0; i < 50; i++) {
        step(&j);
    }
    td_tell_span("a pause", 1.0, 1.25);
    double seconds = td_clock() - begin;
    td_profile_stop();
    td_profile_totals t = td_profile_result();
    assert_int_equal(t.steps, 50);
    double kernels = 0, spans = 0, last = 1e9;
    for (int i = 0; i < t.rows; i++) {
        td_profile_row row = td_profile_get(i);
        assert_true(row.seconds <= last);
        last = row.seconds;
        *(row.span ? &spans : &kernels) += row.seconds;
    }
    assert_float_equal(kernels, t.kernels, 1e-9);
    assert_float_equal(spans, t.spans, 1e-9);
    assert_float_equal(t.other, 0, 0);
    assert_true(t.step_seconds <= seconds && t.seconds >= seconds);
    assert_true(t.kernels < t.step_seconds);
    assert_true(t.spans >= 0.25); /* and zero_grad */
    close_job(&j);
}

/* The part of five steps of a large convolution that the profiler finds in kernels. */
static double part_in_kernels(td_module *net, td_tensor *x)
{
    assert_int_equal(td_profile_start(&limits), TD_OK);
    for (int i = 0; i < 5; i++) {
        td_step_begin();
        td_backward(td_mean(td_forward(net, x)));
        td_step_end();
    }
    td_profile_stop();
    td_profile_totals t = td_profile_result();
    assert_true(t.kernels <= t.step_seconds);
    return t.kernels / t.step_seconds;
}

/* The kernels are nearly all of the step. Whoever else uses the machine may come in between two of
 * them; not every time. */
static void test_kernels_are_the_step(void **state)
{
    (void)state;
    td_manual_seed(1);
    td_module *net = td_nn_conv2d(32, 32, .kernel = 3, .padding = 1);
    td_tensor *x = td_zeros(TD_SHAPE(32, 32, 16, 16), TD_F32, TD_CPU);
    double best = 0;
    for (int attempt = 0; attempt < 50 && best <= 0.7; attempt++) {
        double part = part_in_kernels(net, x);
        best = part > best ? part : best;
    }
    assert_true(best > 0.7);
    td_module_free(net);
    td_free(x);
}

/* Different kernels among the rows. */
static int kernels_in_table(void)
{
    int count = 0;
    for (int i = 0; i < td_profile_result().rows; i++) {
        bool seen = td_profile_get(i).span;
        for (int k = 0; k < i; k++) {
            seen = seen || strcmp(td_profile_get(k).kernel, td_profile_get(i).kernel) == 0;
        }
        count += !seen;
    }
    return count;
}

static void test_table(void **state)
{
    (void)state;
    job j;
    open_job(&j);
    assert_int_equal(td_profile_start(&limits), TD_OK);
    step(&j);
    td_tell_span("loader wait", 1.0, 1.5);
    td_profile_stop();
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    td_profile_print(out, 0);
    fclose(out);
    int lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++) {
        lines++;
    }
    /* A blank line, title, head, rules, the rows, sums by pass and by kernel, and of all. */
    assert_int_equal(lines, 7 + td_profile_result().rows + 3 + kernels_in_table() + 4);
    assert_in_range(strstr(text, "\nbackward  ") - text, 1, size);
    assert_in_range(strstr(text, "\nforward  ") - text, 1, size);
    assert_non_null(strstr(text, "\noptimizer  "));
    const char *sums = strstr(text, "\nconv2d_grad_weight          ");
    assert_true(sums != NULL && sums > strstr(text, "\nbackward  "));
    assert_non_null(strstr(text, "limits: 1 GFLOP/s f32, 0 f64, 1.0 GB/s"));
    assert_non_null(strstr(text, "\nconv2d_grad_weight  0 (Conv2d)"));
    assert_non_null(strstr(text, "\nloader wait "));
    assert_non_null(strstr(text, "500.000"));
    assert_non_null(strstr(text, "\nrest "));
    free(text);
    close_job(&j);
}

static void test_limits_are_measured(void **state)
{
    (void)state;
    assert_int_equal(td_profile_start(NULL), TD_OK);
    td_profile_stop();
    td_profile_totals t = td_profile_result();
    assert_int_equal(t.steps, 0);
    assert_true(t.flops_f32 > 1e8 && t.flops_f64 > 1e8 && t.bytes_per_second > 1e7);
}

/* A kernel that the device has must be in the watched table, too: both are read as lists. */
static void test_no_kernel_is_unseen(void **state)
{
    (void)state;
    enum { POINTERS = sizeof(td_kernels) / sizeof(void *) };
    void *device[POINTERS], *watched[POINTERS];
    memcpy(device, td_cpu_kernels(), sizeof device);
    memcpy(watched, td_watched_kernels(), sizeof watched);
    int same = 0;
    for (int i = 0; i < POINTERS; i++) {
        assert_true((device[i] == NULL) == (watched[i] == NULL));
        same += device[i] == watched[i] && device[i] != NULL;
    }
    assert_int_equal(same, 3); /* the name, check_precision, measure_limits */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts_are_exact),     cmocka_unit_test(test_times_add_up),
        cmocka_unit_test(test_kernels_are_the_step), cmocka_unit_test(test_table),
        cmocka_unit_test(test_limits_are_measured),  cmocka_unit_test(test_no_kernel_is_unseen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
