/* The layers of nn/extra/layers.h against PyTorch's numbers (2.15), which tests/nn/layers_torch.py
 * prints; and what their options refuse. */
#include "nn/extra/layers.h"
#include "autograd/hooks.h"
#include "autograd/tape.h"
#include "nn/module.h"
#include "tandem.h"
#include "tensor/extend.h"
#include "tensor/storage.h"
#include "tests/help/expect_fatal.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- fixed numbers, as the script makes them ---- */

static double number(int64_t i, int step, int modulus, double divisor)
{
    return (double)(i * step % modulus - modulus / 2) / divisor;
}

static void fill(td_tensor *t, int64_t first, int step, int modulus, double divisor)
{
    int64_t n = td_numel(t);
    double *values = malloc((size_t)n * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < n; i++) {
        values[i] = number(first + i, step, modulus, divisor);
    }
    td_write(t, values, TD_F64);
    free(values);
}

static double weighted_sum(const td_tensor *t, int step, int modulus, double divisor)
{
    int64_t n = td_numel(t);
    double *values = malloc((size_t)n * sizeof *values), sum = 0.0;
    assert_non_null(values);
    td_read(t, values, TD_F64);
    for (int64_t i = 0; i < n; i++) {
        sum += values[i] * number(i, step, modulus, divisor);
    }
    free(values);
    return sum;
}

static void fill_parameters(td_module *m)
{
    td_state_list list = td_module_state(m);
    int64_t first = 0;
    for (int i = 0; i < list.count; i++) {
        fill(list.items[i].tensor, first, 37, 41, 40.0);
        first += td_numel(list.items[i].tensor);
    }
    td_state_list_free(&list);
}

/* ---- the layers ---- */

typedef struct layer_case {
    td_shape x, y;
    double output, input, parameters; /* sums of the output and of gradients */
} layer_case;

static void check(double got, double want, const td_module *m, const char *what)
{
    if (!(fabs(got - want) <= 1e-11 * (1.0 + fabs(want)))) {
        fail_msg("%s: %s: %.15g, should be %.15g", m->type->name, what, got, want);
    }
}

static void check_layer(td_module *m, const layer_case *c)
{
    assert_non_null(m);
    assert_int_equal(td_module_to(m, TD_CPU, TD_F64), TD_OK);
    fill_parameters(m);
    td_tensor *x = td_new(c->x, TD_F64, TD_CPU);
    fill(x, 0, 23, 29, 14.0);
    td_requires_grad(x, true);
    td_params *params = td_parameters(m);
    TD_STEP {
        td_tensor *y = td_forward(m, x);
        assert_true(td_shape_equal(td_shape_of(y), c->y));
        td_tensor *dy = td_step_new_like(y, TD_HERE);
        fill(dy, 0, 29, 31, 16.0);
        check(weighted_sum(y, 29, 31, 16.0), c->output, m, "output");
        td_backward(y, .gradient = dy);
        check(weighted_sum(td_grad(x), 13, 17, 8.0), c->input, m, "input's gradient");
        double sum = 0.0;
        for (int i = 0; i < td_params_count(params); i++) {
            sum += weighted_sum(td_grad(td_params_get(params, i)->tensor), 13, 17, 8.0);
        }
        check(sum, c->parameters, m, "parameters' gradients");
    }
    td_free(x);
    td_module_free(m);
}

#define S TD_SHAPE
#define CHECK(layer, ...) check_layer(layer, &(layer_case){ __VA_ARGS__ })

static void test_convolutions(void **state)
{
    (void)state;
    CHECK(td_nn_conv1d(4, 6, .kernel = 3, .stride = 2, .padding = 1, .groups = 2), S(2, 4, 9),
          S(2, 6, 5), -0.391071428571428, -2.85859375, -13.2371651785714);
    CHECK(td_nn_conv3d(3, 4, .kernel_dhw = { 2, 3, 1 }, .stride_dhw = { 2, 1, 1 }, .padding = 1),
          S(2, 3, 4, 5, 3), S(2, 4, 3, 5, 5), -1.79185267857143, -1.0986328125, 13.8856026785714);
    CHECK(td_nn_conv3d(2, 3, .kernel_dhw = { 4, 3, 2 }, .dilation_dhw = { 1, 2, 1 }, .same = true),
          S(2, 2, 5, 4, 3), S(2, 3, 5, 4, 3), -2.36573660714286, 1.80546875, 51.3549107142857);
    CHECK(td_nn_conv3d(2, 3, .kernel_dhw = { 2, 3, 2 }, .pads = { 1, 2, 0, 0, 0, 1 }),
          S(2, 2, 3, 4, 3), S(2, 3, 3, 4, 3), -3.62935267857143, -4.1720703125, 10.1227678571429);
    CHECK(td_nn_conv2d(2, 3, .kernel_hw = { 3, 2 }, .pads = { 2, 1, 1, 0 }), S(2, 2, 4, 5),
          S(2, 3, 5, 5), -4.84899553571428, 1.7267578125, -2.63392857142857);
    CHECK(td_nn_conv_transpose1d(3, 4, .kernel = 3, .stride = 2, .output_padding = 1), S(2, 3, 5),
          S(2, 4, 12), 6.92734375, -3.7564453125, 0.759486607142857);
    CHECK(td_nn_conv_transpose2d(4, 6, .kernel = 3, .stride = 2, .padding = 1, .output_padding = 1,
                                 .groups = 2),
          S(2, 4, 3, 4), S(2, 6, 6, 8), 7.29241071428571, 1.086328125, -0.459263392857148);
}

static void test_norms(void **state)
{
    (void)state;
    CHECK(td_nn_group_norm(2, 4), S(2, 4, 3, 3), S(2, 4, 3, 3), -0.626940031935622,
          -1.45897594785055, -6.16602700905199);
    CHECK(td_nn_instance_norm(4), S(2, 4, 3, 3), S(2, 4, 3, 3), -1.06517260908696,
          -0.978875000569374, -6.01471887631833);
    CHECK(td_nn_rms_norm(5), S(3, 5), S(3, 5), -0.332775223792322, -0.219474249316047,
          -1.76009086827647);
    CHECK(td_nn_layer_norm(.shape = S(3, 4)), S(2, 3, 4), S(2, 3, 4), -1.77803160824012,
          -0.850273298555851, 1.35178995197376);
    CHECK(td_nn_batch_norm2d(3), S(4, 3, 5), S(4, 3, 5), 4.07486511671913, -0.713861213703856,
          0.291858811171282);
    CHECK(td_nn_batch_norm2d(3), S(2, 3, 2, 3, 2), S(2, 3, 2, 3, 2), 1.39913041589101,
          -3.86818854902137, 1.62163837366032);
}

/* In a sequence a normalisation is computed together with the activation after it: of vectors and
 * volumes, too, and with the same bits as one after the other. */
static void test_norms_of_other_shapes_in_a_sequence(void **state)
{
    (void)state;
    td_shape shapes[] = { S(4, 3, 5), S(2, 3, 2, 3, 2), S(4, 3, 2, 5), S(6, 3),
                          S(2, 3, 2, 1, 3, 2) };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        td_tensor *x = td_zeros(shapes[i], TD_F32, TD_CPU);
        fill(x, 0, 7, 23, 5.0);
        td_module *bn = td_nn_batch_norm2d(3), *net = td_nn_sequential(bn, td_nn_relu());
        td_step_begin();
        const td_tensor *together = td_forward(net, x), *apart = td_relu(td_forward(bn, x));
        assert_true(td_shape_equal(td_shape_of(together), shapes[i]));
        assert_memory_equal(td_ptr(together), td_ptr(apart), (size_t)td_numel(x) * sizeof(float));
        td_step_end();
        td_module_free(net);
        td_free(x);
    }
}

/* Averages over all batches, and how many there were. */
static void test_cumulative_statistics(void **state)
{
    (void)state;
    td_module *m = td_nn_batch_norm2d(3, .cumulative = true);
    assert_int_equal(td_module_to(m, TD_CPU, TD_F64), TD_OK);
    td_tensor *x = td_new(S(2, 3, 4), TD_F64, TD_CPU);
    fill(x, 0, 23, 29, 14.0);
    td_state_list list = td_module_state(m);
    assert_int_equal(list.count, 5);
    assert_string_equal(list.items[4].name, "num_batches_tracked");
    TD_STEP {
        td_forward(m, x);
        td_forward(m, td_mul(x, x));
        check(weighted_sum(list.items[2].tensor, 29, 31, 16.0), 0.200175382653061, m, "mean");
        check(weighted_sum(list.items[3].tensor, 29, 31, 16.0), 0.13956804991038, m, "variance");
        td_eval(m);
        check(weighted_sum(td_forward(m, x), 29, 31, 16.0), 1.48572773123507, m, "in evaluation");
    }
    assert_true(td_item(list.items[4].tensor) == 2.0);
    expect_fatal("give .momentum (0.5) or .cumulative",
                 td_nn_batch_norm2d(3, .momentum = 0.5, .cumulative = true));
    td_state_list_free(&list);
    td_free(x);
    td_module_free(m);
}

static void test_running_statistics(void **state)
{
    (void)state;
    td_module *m = td_nn_instance_norm(3, .momentum = 0.3, .track_running_stats = true);
    assert_non_null(m);
    assert_int_equal(td_module_to(m, TD_CPU, TD_F64), TD_OK);
    td_tensor *x = td_new(S(2, 3, 4, 2), TD_F64, TD_CPU);
    fill(x, 0, 23, 29, 14.0);
    td_state_list list = td_module_state(m);
    assert_int_equal(list.count, 4);
    assert_string_equal(list.items[2].name, "running_mean");
    assert_string_equal(list.items[3].name, "running_var");
    TD_STEP {
        check(weighted_sum(td_forward(m, x), 29, 31, 16.0), 0.331890748241331, m, "in training");
        check(weighted_sum(list.items[2].tensor, 29, 31, 16.0), 0.0176618303571429, m, "mean");
        check(weighted_sum(list.items[3].tensor, 29, 31, 16.0), 0.539590071519679, m, "variance");
        td_eval(m);
        check(weighted_sum(td_forward(m, x), 29, 31, 16.0), 1.04162004237282, m, "in evaluation");
    }
    td_train(m);
    td_step_begin();
    td_tensor *pixel = td_slice(td_slice(x, 2, 0, 1, 1), 3, 0, 1, 1);
    expect_fatal("a variance needs more than one place", td_forward(m, pixel));
    td_step_abandon();
    td_state_list_free(&list);
    td_free(x);
    td_module_free(m);
}

/* The result has the input's dtype, with and without running statistics, as in PyTorch. */
static void test_instance_norm_in_bf16(void **state)
{
    (void)state;
    td_module *m[] = { td_nn_instance_norm(3),
                       td_nn_instance_norm(3, .track_running_stats = true) };
    td_tensor *x = td_new(S(2, 3, 4, 2), TD_BF16, TD_CPU);
    fill(x, 0, 23, 29, 16.0);
    for (int i = 0; i < 2; i++) {
        TD_STEP {
            assert_int_equal(td_forward(m[i], x)->dtype, TD_BF16);
            td_eval(m[i]);
            assert_int_equal(td_forward(m[i], x)->dtype, TD_BF16);
        }
        td_module_free(m[i]);
    }
    td_free(x);
}

/* Running statistics count a batch once, also where forward runs again for backward. */
static void test_running_statistics_of_a_recomputed_layer(void **state)
{
    (void)state;
    td_module *nets[2];
    td_tensor *x = td_new(S(2, 3, 4, 2), TD_F32, TD_CPU);
    double values[2][3];
    fill(x, 0, 23, 29, 14.0);
    td_requires_grad(x, true);
    for (int i = 0; i < 2; i++) {
        nets[i] = td_nn_sequential(td_nn_instance_norm(3, .track_running_stats = true));
        td_recompute(nets[i], i == 1);
        TD_STEP {
            td_backward(td_sum(td_forward(nets[i], x)));
        }
        td_state_list list = td_module_state(nets[i]);
        td_read(list.items[2].tensor, values[i], TD_F64);
        td_state_list_free(&list);
        td_module_free(nets[i]);
    }
    assert_true(values[0][0] != 0.0);
    assert_memory_equal(values[0], values[1], sizeof values[0]);
    td_free(x);
}

static void test_pooling_and_resizing(void **state)
{
    (void)state;
    CHECK(td_nn_upsample(.scale = 1.7, .mode = TD_BILINEAR), S(2, 2, 5, 4), S(2, 2, 8, 6),
          -1.24158119130005, 5.15153952205882, 0);
    CHECK(td_nn_upsample(.size_hw = { 3, 7 }), S(2, 2, 5, 4), S(2, 2, 3, 7), 1.17857142857143,
          11.0234375, 0);
    CHECK(td_nn_adaptive_avg_pool1d(3), S(2, 2, 7), S(2, 2, 3), 0.0595238095238095,
          -0.0677083333333333, 0);
    CHECK(td_nn_adaptive_max_pool1d(3), S(2, 2, 7), S(2, 2, 3), 0.852678571428571, 0.5859375, 0);
    CHECK(td_nn_adaptive_avg_pool2d(3, 2), S(2, 2, 5, 7), S(2, 2, 3, 2), 0.26078869047619,
          0.146484375, 0);
    CHECK(td_nn_adaptive_max_pool2d(3, 2), S(2, 2, 5, 7), S(2, 2, 3, 2), 2.62053571428571,
          1.1484375, 0);
    CHECK(
        td_nn_max_pool1d(.kernel = 3, .stride = 2, .padding = 1, .dilation = 2, .ceil_mode = true),
        S(2, 2, 10), S(2, 2, 5), 3.14732142857143, 3.7109375, 0);
    CHECK(td_nn_avg_pool1d(.kernel = 3, .stride = 2, .padding = 1, .ceil_mode = true), S(2, 2, 10),
          S(2, 2, 6), -0.121279761904762, 0.592447916666667, 0);
}

static void test_activation(void **state)
{
    (void)state;
    CHECK(td_nn_prelu(3), S(2, 3, 4), S(2, 3, 4), -0.349553571428572, 0.157421875, -2.296875);
    td_module *m = td_nn_prelu(1);
    assert_true(td_item(m->tensors[0].tensor) == 0.25);
    td_module_free(m);
}

static void test_padding_idx(void **state)
{
    (void)state;
    td_module *m = td_nn_embedding(4, 3, .has_padding = true, .padding_idx = -1);
    td_tensor *weight = td_params_get(td_parameters(m), 0)->tensor;
    td_tensor *index = td_from((int64_t[]){ 3, 1 }, S(2), TD_I64, TD_CPU);
    double values[12], grads[12];
    td_read(weight, values, TD_F64);
    TD_STEP {
        td_backward(td_sum(td_forward(m, index)));
    }
    TD_STEP { /* adds to it; here row 1 is the padding, and keeps what it has */
        td_backward(td_sum(td_embedding(index, weight, .has_padding = true, .padding_idx = 1)));
    }
    td_read(td_grad(weight), grads, TD_F64);
    for (int i = 0; i < 12; i++) {
        assert_true((values[i] == 0.0) == (i >= 9));
        assert_true(grads[i] == (i / 3 == 1 || i / 3 == 3 ? 1.0 : 0.0));
    }
    expect_fatal("padding_idx 4 lies outside",
                 td_nn_embedding(4, 3, .has_padding = true, .padding_idx = 4));
    td_free(index);
    td_module_free(m);
}

/* Whole channels are zero or twice as large, about half of them; in evaluation nothing happens. */
static void test_dropout2d(void **state)
{
    (void)state;
    td_module *m = td_nn_dropout2d(0.5);
    td_tensor *x = td_full(S(16, 32, 2, 3), 1.0, TD_F32, TD_CPU);
    float values[16 * 32 * 6];
    int kept = 0;
    TD_STEP {
        td_read(td_forward(m, x), values, TD_F32);
    }
    for (int i = 0; i < 16 * 32; i++) {
        kept += values[6 * i] != 0.0f;
        for (int k = 0; k < 6; k++) {
            assert_true(values[6 * i + k] == values[6 * i] &&
                        (values[6 * i] == 0.0f || values[6 * i] == 2.0f));
        }
    }
    assert_in_range(kept, 200, 312);
    td_eval(m);
    TD_STEP {
        assert_true(td_item(td_sum(td_forward(m, x))) == 16 * 32 * 6);
    }
    td_free(x);
    td_module_free(m);
}

static void test_refusals(void **state)
{
    (void)state;
    expect_fatal("2 groups divide them", td_nn_conv1d(3, 4, .groups = 2));
    expect_fatal("must be positive", td_nn_adaptive_avg_pool2d(0, 2));
    expect_fatal("groups must divide channels", td_nn_group_norm(3, 4));
    expect_fatal("momentum 2 must be in [0, 1]",
                 td_nn_instance_norm(3, .track_running_stats = true, .momentum = 2.0));
    expect_fatal("name the options", td_nn_upsample((td_tensor *)1));
    td_tensor *x = td_full(S(1, 2, 4, 4), 1.0, TD_F32, TD_CPU);
    td_tensor *w = td_full(S(2, 2, 3, 3), 1.0, TD_F32, TD_CPU);
    TD_STEP {
        expect_fatal("must be less than the stride",
                     td_conv_transpose2d(x, w, NULL, .output_padding = 1));
        expect_fatal("give one of .padding, .pads and .same",
                     td_conv2d(x, w, NULL, .padding = 1, .same = true));
        td_tensor *deep = td_reshape(x, S(1, 2, 1, 4, 4)),
                  *filter = td_reshape(w, S(2, 2, 1, 3, 3));
        expect_fatal("give one of .padding, .pads and .same",
                     td_conv3d(deep, filter, NULL, .padding_dhw = { 0, 1, 0 }, .same = true));
        expect_fatal("pads -1,0 must not be negative",
                     td_conv3d(deep, filter, NULL, .pads = { -1, 1, 1, 0, 1, 1 }));
        expect_fatal("give .size or .scale", td_interpolate(x));
        expect_fatal("are for TD_BILINEAR", td_interpolate(x, .size = 2, .antialias = true));
        expect_fatal("dilation is for the maximum", td_avg_pool2d(x, 2, .dilation = 2));
        expect_fatal("rms_norm: weight[2,2,3,3] does not fit", td_rms_norm(x, w, 0.0));
    }
    td_free(x);
    td_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convolutions),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_norms_of_other_shapes_in_a_sequence),
        cmocka_unit_test(test_cumulative_statistics),
        cmocka_unit_test(test_running_statistics),
        cmocka_unit_test(test_instance_norm_in_bf16),
        cmocka_unit_test(test_running_statistics_of_a_recomputed_layer),
        cmocka_unit_test(test_pooling_and_resizing),
        cmocka_unit_test(test_activation),
        cmocka_unit_test(test_padding_idx),
        cmocka_unit_test(test_dropout2d),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("nn: more layers", tests, NULL, NULL);
}
