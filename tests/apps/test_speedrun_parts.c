/* The parts of the speed run's network: eigenvalues, whitening, identity filters, batch norm
 * without a weight, and the network itself. */
#include "examples/speedrun/whitening.h"
#include "nn/around.h"
#include "autograd/tape.h"
#include "tandem.h"
#include "tests/help/expect_fatal.h"
#include "examples/speedrun/airbench.h"
#include "tensor/extend.h"
#include "nn/module.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 40 };

/* ---- eigenvalues ---- */

static double draw(uint64_t seed, int i)
{
    uint32_t word[4];
    td_philox((td_philox_key){ seed, 1 }, 0, (uint64_t)i, word);
    return (double)word[0] / 0x80000000p0 - 1.0;
}

/* a v = value v, vectors orthonormal, values falling: for any symmetric matrix. */
static void check_eigen(const double *a, int n)
{
    static double work[MOST * MOST], vectors[MOST * MOST];
    double values[MOST], scale = 1e-300;
    for (int i = 0; i < n * n; i++) {
        work[i] = a[i];
        scale = fmax(scale, fabs(a[i]));
    }
    symmetric_eigen(work, n, values, vectors);
    for (int k = 0; k < n; k++) {
        assert_true(k == 0 || values[k - 1] >= values[k]);
        for (int i = 0; i < n; i++) {
            double av = 0.0, dot = 0.0;
            for (int j = 0; j < n; j++) {
                av += a[i * n + j] * vectors[k * n + j];
                dot += vectors[k * n + j] * vectors[i * n + j];
            }
            assert_true(fabs(av - values[k] * vectors[k * n + i]) <= 1e-13 * n * scale);
            assert_true(fabs(dot - (i == k)) <= 1e-13 * n);
        }
    }
}

static void test_eigen_of_any_matrix(void **state)
{
    (void)state;
    static double a[MOST * MOST];
    for (int n = 1; n <= MOST; n += n < 5 ? 1 : 7) {
        for (int i = 0; i < n; i++) {
            for (int j = 0; j <= i; j++) {
                a[i * n + j] = a[j * n + i] = draw((uint64_t)n, i * n + j);
            }
        }
        check_eigen(a, n);
    }
}

static void test_eigen_of_special_matrices(void **state)
{
    (void)state;
    double a[9] = { 0 };
    check_eigen(a, 3);                                       /* zero */
    check_eigen((double[]){ 2, 0, 0, 0, 2, 0, 0, 0, 2 }, 3); /* equal values */
    check_eigen((double[]){ 1, 1, 1, 1, 1, 1, 1, 1, 1 }, 3); /* rank one */
    check_eigen((double[]){ 1e-200, 1e-201, 1e-201, 1e-200 }, 2);
    double b[4] = { 2, 1, 1, 2 }, values[2], vectors[4];
    symmetric_eigen(b, 2, values, vectors);
    assert_true(fabs(values[0] - 3) < 1e-15 && fabs(values[1] - 1) < 1e-15);
    assert_true(vectors[0] > 0 && fabs(vectors[0] - vectors[1]) < 1e-15); /* the sign is fixed */
    assert_true(vectors[2] > 0 && fabs(vectors[2] + vectors[3]) < 1e-15);
}

/* ---- whitening ---- */

static td_tensor *make_images(int64_t n)
{
    td_dataset *dataset;
    assert_int_equal(td_synthetic_images(n, 1, &dataset), TD_OK);
    td_tensor *x = td_new_layout(TD_SHAPE(n, 3, 32, 32), TD_F32, TD_IMAGE, TD_CPU);
    td_tensor *y = td_new(TD_SHAPE(n), TD_I64, TD_CPU);
    int64_t *index = malloc((size_t)n * sizeof *index);
    for (int64_t i = 0; i < n; i++) {
        index[i] = i;
    }
    assert_int_equal(dataset->vtable->fetch(dataset, index, n, 0, x, y), TD_OK);
    free(index);
    td_free(y);
    td_dataset_free(dataset);
    return x;
}

/* The responses' second moments, [24,24], of the whitening convolution. */
static void response_moments(td_tensor *images, td_tensor *weight, double *moments)
{
    td_step_begin();
    td_no_grad_begin();
    td_tensor *y = td_conv2d(images, weight, NULL);
    int64_t n = y->shape[0] * y->shape[2] * y->shape[3];
    td_tensor *flat = td_reshape(td_permute(y, (int[]){ 1, 0, 2, 3 }), TD_SHAPE(24, n));
    td_tensor *m = td_mul_scalar(td_matmul(flat, td_transpose(flat, 0, 1)), 1.0 / (double)n);
    td_read(m, moments, TD_F64);
    td_no_grad_end();
    td_step_end();
}

static void test_whitening(void **state)
{
    (void)state;
    td_manual_seed(1);
    td_tensor *images = make_images(30);
    td_tensor *weight = td_new_layout(TD_SHAPE(24, 3, 2, 2), TD_F32, TD_FILTER, TD_CPU);
    td_normal_(weight, 0.0, 0.3, td_default_generator());
    static double moments[24 * 24];
    response_moments(images, weight, moments);
    assert_true(fabs(moments[1]) > 0.01); /* what it was before: correlated */
    assert_int_equal(whitening_init(weight, images, 1e-9), TD_OK);
    response_moments(images, weight, moments);
    for (int i = 0; i < 24; i++) {
        for (int j = 0; j < 24; j++) {
            double expected = i == j ? 1.0 : i % 12 == j % 12 ? -1.0 : 0.0;
            if (!(fabs(moments[i * 24 + j] - expected) <= 2e-3)) {
                fail_msg("moment %d,%d is %g", i, j, moments[i * 24 + j]);
            }
        }
    }
    /* eps tames what hardly varies: with a large one all responses are small. */
    assert_int_equal(whitening_init(weight, images, 100.0), TD_OK);
    response_moments(images, weight, moments);
    assert_true(moments[0] < 0.1);
    td_tensor *wrong = td_zeros(TD_SHAPE(23, 3, 2, 2), TD_F32, TD_CPU);
    expect_fatal("two filters for each", whitening_init(wrong, images, 1e-9));
    expect_fatal("eps", whitening_init(weight, images, 0.0));
    td_free(wrong);
    td_free(weight);
    td_free(images);
}

/* ---- identity filters ---- */

static void test_dirac(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        int64_t out = wide ? 5 : 2, in = 3;
        td_manual_seed(1);
        td_tensor *w = td_new_layout(TD_SHAPE(out, in, 3, 3), TD_F32, TD_FILTER, TD_CPU);
        td_normal_(w, 0.0, 1.0, td_default_generator());
        td_tensor *before = td_clone(w);
        airbench_dirac(w, in);
        td_tensor *x = td_new_layout(TD_SHAPE(2, in, 4, 5), TD_F32, TD_IMAGE, TD_CPU);
        td_normal_(x, 0.0, 1.0, td_default_generator());
        td_step_begin();
        td_tensor *y = td_conv2d(x, w, NULL, .padding = 1);
        for (int64_t i = 0; i < 2 * in * 20; i++) {
            int64_t at[] = { i / (in * 20), i / 20 % in, i / 5 % 4, i % 5 };
            assert_true(at[1] >= out || td_get(y, at) == td_get(x, at));
        }
        td_step_end();
        for (int64_t o = in; o < out; o++) { /* the others are as they were */
            for (int64_t i = 0; i < 27; i++) {
                int64_t at[] = { o, i / 9, i / 3 % 3, i % 3 };
                assert_true(td_get(w, at) == td_get(before, at));
            }
        }
        td_free(x);
        td_free(w);
        td_free(before);
    }
}

/* ---- batch norm ---- */

static void test_batch_norm_without_weight(void **state)
{
    (void)state;
    td_module *bn = td_nn_batch_norm2d(4, .eps = 1e-3, .momentum = 0.4, .no_weight = true);
    td_state_list list = td_module_state(bn);
    assert_int_equal(list.count, 3);
    assert_string_equal(list.items[0].name, "bias");
    td_tensor *mean = list.items[1].tensor, *var = list.items[2].tensor;
    td_manual_seed(2);
    td_tensor *x = td_new_layout(TD_SHAPE(3, 4, 5, 2), TD_F32, TD_IMAGE, TD_CPU);
    td_normal_(x, 2.0, 3.0, td_default_generator());
    td_fill_(list.items[0].tensor, 0.5);
    td_step_begin();
    td_tensor *y = td_forward(bn, x);
    for (int64_t c = 0; c < 4; c++) {
        double sum = 0.0, squares = 0.0;
        for (int64_t i = 0; i < 30; i++) {
            double v = td_get(x, (int64_t[]){ i / 10, c, i / 2 % 5, i % 2 });
            sum += v;
            squares += v * v;
        }
        double m = sum / 30, biased = squares / 30 - m * m;
        double y0 = (td_get(x, (int64_t[]){ 1, c, 2, 1 }) - m) / sqrt(biased + 1e-3) + 0.5;
        assert_true(fabs(td_get(y, (int64_t[]){ 1, c, 2, 1 }) - y0) < 1e-5);
        assert_true(fabs(td_get(mean, &c) - 0.4 * m) < 1e-5);
        assert_true(fabs(td_get(var, &c) - (0.6 + 0.4 * biased * 30 / 29)) < 1e-4);
    }
    td_backward(td_sum(td_mul(y, x)));
    assert_non_null(td_grad(list.items[0].tensor));
    td_step_end();
    td_state_list_free(&list);
    td_module_free(bn);
    td_free(x);
}

/* ---- the network ---- */

static td_tensor *state_named(td_module *net, const char *name)
{
    td_state_list list = td_module_state(net);
    td_tensor *found = NULL;
    for (int i = 0; i < list.count; i++) {
        found = strcmp(list.items[i].name, name) == 0 ? list.items[i].tensor : found;
    }
    td_state_list_free(&list);
    return found;
}

static void test_network(void **state)
{
    (void)state;
    td_manual_seed(3);
    td_module *net = airbench_new(10);
    /* By hand: whiten 24*12+24; blocks 24>64, 64>256, 256>256 of 3x3 without bias, two biases of
     * batch norm each; head 2560. */
    int64_t convs = 9 * (24 * 64 + 64 * 64 + 64 * 256 + 256 * 256 + 256 * 256 + 256 * 256);
    assert_int_equal(td_parameter_count(net), 24 * 12 + 24 + convs + 2 * (64 + 256 + 256) + 2560);
    /* The whitening weight is not trained: it comes last. */
    td_params *params = td_parameters(net);
    int trained = td_params_count(params) - 1;
    assert_string_equal(td_params_get(params, trained)->name, "whiten.weight");
    assert_ptr_equal(airbench_whiten(net, true), state_named(net, "whiten.bias"));
    assert_false(td_needs_grad(airbench_whiten(net, false)));
    td_tensor *x = td_new_layout(TD_SHAPE(5, 3, 32, 32), TD_F32, TD_IMAGE, TD_CPU);
    td_normal_(x, 0.0, 1.0, td_default_generator());
    td_step_begin();
    td_tensor *logits = td_forward(net, x);
    assert_true(td_shape_equal(td_shape_of(logits), TD_SHAPE(5, 10)));
    td_backward(td_sum(logits));
    for (int i = 0; i <= trained; i++) {
        assert_true((td_grad(td_params_get(params, i)->tensor) != NULL) == (i < trained));
    }
    td_step_end();
    /* A bias that is frozen later gets no gradient, and the optimizer leaves it alone. */
    td_tensor *bias = airbench_whiten(net, true);
    td_requires_grad(bias, false);
    td_optim *optim = td_sgd(params, .lr = 0.1, .weight_decay = 0.1);
    td_zero_grad(optim);
    td_tensor *bias_before = td_clone(bias);
    td_tensor *other = state_named(net, "layers.1.conv1.weight"), *other_before = td_clone(other);
    td_step_begin();
    td_backward(td_mean(td_forward(net, x)));
    td_optim_step(optim);
    td_step_end();
    double moved = 0.0;
    for (int64_t i = 0; i < 24; i++) {
        assert_true(td_get(bias, &i) == td_get(bias_before, &i));
        moved += fabs(td_get(other, (int64_t[]){ i, i, 0, 0 }) -
                      td_get(other_before, (int64_t[]){ i, i, 0, 0 }));
        moved += fabs(td_get(other, (int64_t[]){ i + 24, i, 0, 0 }) -
                      td_get(other_before, (int64_t[]){ i + 24, i, 0, 0 }));
    }
    assert_true(moved > 0.0);
    td_free(bias_before);
    td_free(other_before);
    td_optim_free(optim);
    td_module_free(net);
    td_free(x);
}

static td_tensor *count_run(const td_around_rest *rest, td_tensor *x, void *user)
{
    ++*(int *)user;
    return td_run_rest(rest, x);
}

/* A GELU that somebody watches is not fused: it runs after each of its group's normalisations, and
 * the logits are the same bits. */
static void test_watched_activation(void **state)
{
    (void)state;
    td_manual_seed(3);
    td_module *net = airbench_new(10), *group = net->children[1]->children[1];
    td_tensor *x = td_new_layout(TD_SHAPE(5, 3, 32, 32), TD_F32, TD_IMAGE, TD_CPU);
    td_normal_(x, 0.0, 1.0, td_default_generator());
    float logits[2][50];
    int runs = 0;
    for (int i = 0; i < 2; i++) {
        td_step_begin();
        td_read(td_forward(net, x), logits[i], TD_F32);
        td_step_end();
        td_around around = { .run = count_run, .user = &runs };
        assert_string_equal(group->children[5]->type->name, "GELU");
        assert_int_equal(td_module_surround(group->children[5], &around), TD_OK);
    }
    assert_int_equal(runs, 2);
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
    td_module_free(net);
    td_free(x);
}

/* The Muon recipe's last layer. */
static void test_unit_head(void **state)
{
    (void)state;
    td_module *net = airbench_new(10, .unit_head = true);
    td_tensor *head = state_named(net, "head.weight");
    static double w[2560];
    td_read(head, w, TD_F64);
    double sum = 0.0, squares = 0.0;
    for (int i = 0; i < 2560; i++) {
        sum += w[i];
        squares += w[i] * w[i];
    }
    assert_true(fabs((squares - sum * sum / 2560) / 2559 - 1.0) < 1e-5);
    td_module_free(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eigen_of_any_matrix),
        cmocka_unit_test(test_eigen_of_special_matrices),
        cmocka_unit_test(test_whitening),
        cmocka_unit_test(test_dirac),
        cmocka_unit_test(test_batch_norm_without_weight),
        cmocka_unit_test(test_network),
        cmocka_unit_test(test_watched_activation),
        cmocka_unit_test(test_unit_head),
    };
    return cmocka_run_group_tests_name("speed run: the network", tests, NULL, NULL);
}
