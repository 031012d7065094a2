/* Optimizers against their formulas in double; what is skipped; groups. */
#include "nn/extra/ema.h"
#include "nn/extra/optimizers.h"
#include "tandem.h"
#include "tests/help/expect_fatal.h"
#include "autograd/hooks.h"
#include "nn/module.h"
#include "tensor/extend.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>

#include <cmocka.h>
#include <string.h>

enum { FIRST = 37, SECOND = 5, STEPS = 6 };

/* Two parameters and no layers: gradients are written by hand. */
static td_tensor *no_forward(td_module *self, td_tensor *x, td_site at)
{
    (void)self;
    (void)at;
    return x;
}

static const td_module_type bare_type = { .name = "Bare", .forward = no_forward };

static td_module *bare(td_dtype dtype)
{
    td_manual_seed(3);
    td_module *m = td_module_new(&bare_type, 0);
    td_tensor *a = td_module_parameter(m, "a", td_new(TD_SHAPE(FIRST), dtype, TD_CPU));
    td_tensor *b = td_module_parameter(m, "b", td_new(TD_SHAPE(SECOND), dtype, TD_CPU));
    td_normal_(a, 0.0, 1.0, td_default_generator());
    td_normal_(b, 0.0, 1.0, td_default_generator());
    m->dtype = dtype;
    return td_module_finish(m);
}

/* The gradient of element i in a step: anything, but always the same, and exact in f32. */
static double gradient(int step, int64_t i)
{
    return (double)((step * 31 + i * 17) % 64 - 31) / 64.0;
}

static void set_gradient(td_tensor *leaf, int step)
{
    double values[FIRST];
    for (int64_t i = 0; i < td_numel(leaf); i++) {
        values[i] = gradient(step, i);
    }
    td_write(td_grad_buffer(leaf), values, TD_F64);
    td_mark_grad(leaf);
}

/* ---- the formulas ---- */

typedef struct reference {
    double p[FIRST], m[FIRST], v[FIRST];
    int steps;
} reference;

static void sgd_reference(reference *r, int64_t n, int step, const td_sgd_options *o)
{
    for (int64_t i = 0; i < n; i++) {
        double g = gradient(step, i) + o->weight_decay * r->p[i];
        if (o->momentum != 0.0) {
            r->m[i] = r->steps == 0 ? g : o->momentum * r->m[i] + (1.0 - o->dampening) * g;
            g = o->nesterov ? g + o->momentum * r->m[i] : r->m[i];
        }
        r->p[i] -= o->lr * g;
    }
    r->steps++;
}

static void adam_reference(reference *r, int64_t n, int step, const td_adam_options *o,
                           bool decoupled)
{
    r->steps++;
    double bias1 = 1.0 - pow(o->beta1, r->steps), bias2 = 1.0 - pow(o->beta2, r->steps);
    for (int64_t i = 0; i < n; i++) {
        double g = gradient(step, i);
        if (decoupled) {
            r->p[i] *= 1.0 - o->lr * o->weight_decay;
        } else {
            g += o->weight_decay * r->p[i];
        }
        r->m[i] = o->beta1 * r->m[i] + (1.0 - o->beta1) * g;
        r->v[i] = o->beta2 * r->v[i] + (1.0 - o->beta2) * g * g;
        r->p[i] -= o->lr / bias1 * r->m[i] / (sqrt(r->v[i]) / sqrt(bias2) + o->eps);
    }
}

static void check_values(const td_tensor *t, const reference *r, double tolerance)
{
    double values[FIRST];
    td_read(t, values, TD_F64);
    for (int64_t i = 0; i < td_numel(t); i++) {
        if (!(fabs(values[i] - r->p[i]) <= tolerance * (1.0 + fabs(r->p[i])))) {
            fail_msg("element %d is %.17g, should be %.17g", (int)i, values[i], r->p[i]);
        }
    }
}

/* ---- SGD ---- */

/* The second parameter has no gradient in step 2: it is left out, and starts where it was. */
static bool has_gradient(int param, int step)
{
    return param == 0 || step != 2;
}

typedef struct job {
    td_module *net;
    td_params *params;
    reference expected[2];
    double tolerance;
} job;

static void open_job(job *j, td_dtype dtype)
{
    *j = (job){ .net = bare(dtype), .tolerance = dtype == TD_F64 ? 1e-14 : 2e-6 };
    j->params = td_parameters(j->net);
    for (int i = 0; i < 2; i++) {
        td_read(td_params_get(j->params, i)->tensor, j->expected[i].p, TD_F64);
    }
}

static void set_gradients(job *j, td_optim *optim, int step)
{
    td_zero_grad(optim);
    for (int i = 0; i < 2; i++) {
        if (has_gradient(i, step)) {
            set_gradient(td_params_get(j->params, i)->tensor, step);
        }
    }
}

static void check_job(const job *j)
{
    for (int i = 0; i < 2; i++) {
        check_values(td_params_get(j->params, i)->tensor, &j->expected[i], j->tolerance);
    }
}

static void check_sgd(td_dtype dtype, const td_sgd_options *options)
{
    job j;
    open_job(&j, dtype);
    td_sgd_options given = *options;
    given.params = j.params;
    td_optim *optim = td_sgd_at(given, TD_HERE);
    for (int step = 0; step < STEPS; step++) {
        set_gradients(&j, optim, step);
        td_optim_step(optim);
        for (int i = 0; i < 2; i++) {
            if (has_gradient(i, step)) {
                sgd_reference(&j.expected[i], td_params_get(j.params, i)->count, step, options);
            }
        }
        check_job(&j);
    }
    td_optim_free(optim);
    td_module_free(j.net);
}

static void test_sgd(void **state)
{
    (void)state;
    static const td_sgd_options cases[] = {
        { .lr = 0.1 },
        { .lr = 0.1, .weight_decay = 0.01 },
        { .lr = 0.1, .momentum = 0.9 },
        { .lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 1e-3 },
        { .lr = 0.1, .momentum = 0.9, .weight_decay = 1e-3, .nesterov = true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_sgd(TD_F32, &cases[i]);
        check_sgd(TD_F64, &cases[i]);
    }
}

/* ---- Adam ---- */

static void check_adam(td_dtype dtype, const td_adam_options *options, bool decoupled)
{
    job j;
    open_job(&j, dtype);
    td_adam_options full = *options;
    full.params = j.params;
    td_optim *optim = decoupled ? td_adamw_at(full, TD_HERE) : td_adam_at(full, TD_HERE);
    full.lr = options->lr != 0.0 ? options->lr : 1e-3;
    full.beta1 = options->beta1 != 0.0 ? options->beta1 : 0.9;
    full.beta2 = options->beta2 != 0.0 ? options->beta2 : 0.999;
    full.eps = options->eps != 0.0 ? options->eps : 1e-8;
    for (int step = 0; step < STEPS; step++) {
        set_gradients(&j, optim, step);
        td_optim_step(optim);
        for (int i = 0; i < 2; i++) {
            if (has_gradient(i, step)) { /* each parameter counts its own steps */
                adam_reference(&j.expected[i], td_params_get(j.params, i)->count, step, &full,
                               decoupled);
            }
        }
        check_job(&j);
    }
    td_optim_free(optim);
    td_module_free(j.net);
}

static void test_adam(void **state)
{
    (void)state;
    static const td_adam_options cases[] = {
        { .lr = 0.0 }, /* all defaults */
        { .lr = 0.1, .weight_decay = 0.02 },
        { .lr = 0.05, .beta1 = 0.5, .beta2 = 0.7, .eps = 1e-3, .weight_decay = 0.1 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_adam(TD_F32, &cases[i], false);
        check_adam(TD_F64, &cases[i], false);
        check_adam(TD_F32, &cases[i], true);
        check_adam(TD_F64, &cases[i], true);
    }
}

/* ---- against PyTorch's numbers (2.15), made by tests/nn/optim_torch.py ---- */

enum { GOLDEN = 4, GOLDEN_STEPS = 8 };

static td_optim *golden_optimizer(td_params *p, int which)
{
    switch (which) {
    case 0:
        return td_adam(p, .lr = 0.05, .weight_decay = 0.02, .amsgrad = true);
    case 1:
        return td_adamw(p, .lr = 0.05, .beta1 = 0.5, .beta2 = 0.7, .weight_decay = 0.1,
                        .amsgrad = true);
    case 2:
        return td_rmsprop(p, .lr = 0.05);
    case 3:
        return td_rmsprop(p, .lr = 0.05, .alpha = 0.9, .eps = 1e-3, .momentum = 0.8,
                          .weight_decay = 0.02);
    case 4:
        return td_rmsprop(p, .lr = 0.05, .alpha = 0.9, .centered = true, .eps = 1e-2);
    case 5:
        return td_rmsprop(p, .lr = 0.05, .alpha = 0.8, .centered = true, .eps = 1e-2,
                          .momentum = 0.5);
    case 6:
        return td_adagrad(p, .lr = 0.1);
    case 7:
        return td_adagrad(p, .lr = 0.1, .initial_value = 0.3, .weight_decay = 0.05, .eps = 1e-3);
    default:
        return NULL;
    }
}

static void test_pytorchs_numbers(void **state)
{
    (void)state;
    static const double start[GOLDEN] = { 1.0, -0.5, 0.25, -2.0 };
    static const double expected[][GOLDEN] = {
        { 0.9928508101025154, -0.4084967905522655, 0.18533323115881548, -2.055797183566915 },
        { 0.8941210659442402, -0.4178978629720582, 0.11568370711193854, -1.9748514296506336 },
        { 0.7475836643253605, -0.1446692118612782, -0.6152847298888067, -2.269944833994715 },
        { 0.7694382970422914, -0.014378128950094009, -0.47397643403557466, -2.2299564684932176 },
        { 0.9046291195631768, -0.39362023829269194, 0.01459664188577707, -2.080182735173174 },
        { 0.8603146206434961, -0.3202383598810233, -0.05927344871425617, -2.169048013896819 },
        { 0.9508109358943571, -0.4289296330937583, 0.07849278389213207, -2.054497204626386 },
        { 0.9062302251939308, -0.44905785269090315, 0.1560745648233899, -1.922313100984205 },
    };
    for (int which = 0; which < (int)(sizeof expected / sizeof *expected); which++) {
        td_module *m = td_module_new(&bare_type, 0);
        td_tensor *p =
            td_module_parameter(m, "p", td_from(start, TD_SHAPE(GOLDEN), TD_F64, TD_CPU));
        m->dtype = TD_F64;
        td_optim *optim = golden_optimizer(td_parameters(td_module_finish(m)), which);
        for (int step = 0; step < GOLDEN_STEPS; step++) {
            set_gradient(p, step);
            td_optim_step(optim);
        }
        double values[GOLDEN];
        td_read(p, values, TD_F64);
        for (int i = 0; i < GOLDEN; i++) {
            if (!(fabs(values[i] - expected[which][i]) <= 1e-13)) {
                fail_msg("optimizer %d, element %d is %.17g, should be %.17g", which, i, values[i],
                         expected[which][i]);
            }
        }
        td_optim_free(optim);
        td_module_free(m);
    }
}

/* Lion's formula (PyTorch has none). The decay comes first, then a step of lr along the sign. */
static void test_lion(void **state)
{
    (void)state;
    job j;
    open_job(&j, TD_F64);
    td_optim *optim = td_lion(j.params, .lr = 0.01, .weight_decay = 0.1);
    for (int step = 0; step < STEPS; step++) {
        set_gradients(&j, optim, step);
        td_optim_step(optim);
        for (int i = 0; i < 2; i++) {
            reference *r = &j.expected[i];
            for (int64_t e = 0; has_gradient(i, step) && e < td_params_get(j.params, i)->count;
                 e++) {
                double g = gradient(step, e), d = 0.9 * r->m[e] + 0.1 * g;
                r->p[e] = r->p[e] * (1.0 - 0.001) - 0.01 * ((d > 0.0) - (d < 0.0));
                r->m[e] = 0.99 * r->m[e] + 0.01 * g;
            }
        }
        check_job(&j);
    }
    td_optim_free(optim);
    td_module_free(j.net);
}

/* ---- what surrounds them ---- */

static bool is_b(const td_param *param, void *user)
{
    ++*(int *)user;
    return strcmp(param->name, "b") == 0;
}

static void test_groups(void **state)
{
    (void)state;
    job j;
    open_job(&j, TD_F64);
    td_sgd_options a = { .params = j.params, .lr = 0.1, .weight_decay = 0.3 },
                   b = { .lr = 0.1 * 0.25 };
    td_optim *optim = td_sgd_at(a, TD_HERE);
    int asked = 0;
    assert_int_equal(td_optim_group(optim, is_b, &asked, 0.25, 0.0), 1);
    assert_int_equal(asked, 2);
    for (int step = 0; step < 2; step++) {
        set_gradients(&j, optim, step);
        td_optim_step(optim);
        sgd_reference(&j.expected[0], FIRST, step, &a);
        sgd_reference(&j.expected[1], SECOND, step, &b);
        check_job(&j);
        td_optim_set_lr(optim, 0.02);
        assert_true(td_optim_lr(optim) == 0.02);
        a.lr = 0.02;
        b.lr = 0.02 * 0.25;
    }
    td_optim_free(optim);
    td_module_free(j.net);
}

/* Betas, momentum and the rest by group; what is not named stays. */
static void test_settings_of_groups(void **state)
{
    (void)state;
    job j;
    open_job(&j, TD_F64);
    td_adam_options a = { .lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8 }, b = a;
    td_optim *optim = td_adam(j.params, .lr = 0.1);
    int asked = 0, group = td_optim_group(optim, is_b, &asked, 1.0, 0.0);
    td_optim_set(optim, group, .beta1 = TD_ZERO, .eps = 0.01);
    td_optim_set(optim, group, .beta2 = 0.5, .lr_scale = 0.25);
    b = (td_adam_options){ .lr = 0.025, .beta1 = 0.0, .beta2 = 0.5, .eps = 0.01 };
    for (int step = 0; step < 2; step++) {
        set_gradients(&j, optim, step);
        td_optim_step(optim);
        adam_reference(&j.expected[0], FIRST, step, &a, false);
        adam_reference(&j.expected[1], SECOND, step, &b, false);
        check_job(&j);
    }
    expect_fatal("there is no group 2", td_optim_set(optim, 2, .beta1 = 0.5));
    expect_fatal("beta1 1 and beta2 0", td_optim_set(optim, 1, .beta1 = 1.0));
    td_optim_free(optim);
    optim = td_sgd(j.params, .lr = 0.1);
    expect_fatal("made without momentum", td_optim_set(optim, 0, .momentum = 0.5));
    td_optim_free(optim);
    optim = td_rmsprop(j.params, .lr = 0.1);
    expect_fatal("made without momentum", td_optim_set(optim, 0, .momentum = 0.5));
    td_optim_free(optim);
    /* Who is made with momentum keeps its memory while the momentum is 0; who knows no momentum
     * ignores it. */
    td_optim *others[] = { td_sgd(j.params, .lr = 0.1, .momentum = 0.9), td_adam(j.params),
                           td_adagrad(j.params) };
    for (int i = 0; i < 3; i++) {
        td_optim_set(others[i], 0, .momentum = TD_ZERO);
        td_optim_set(others[i], 0, .momentum = 0.5);
        td_optim_free(others[i]);
    }
    td_module_free(j.net);
}

/* A gradient that is zero is one: decay applies, steps count. No gradient at all: nothing moves. */
static void test_zero_is_a_gradient(void **state)
{
    (void)state;
    job j;
    open_job(&j, TD_F64);
    td_optim *optim = td_sgd(j.params, .lr = 0.5, .weight_decay = 0.5);
    td_optim_step(optim);
    check_job(&j);
    td_tensor *a = td_params_get(j.params, 0)->tensor;
    td_fill_(td_grad_buffer(a), 0.0);
    td_mark_grad(a);
    td_optim_step(optim);
    for (int i = 0; i < FIRST; i++) {
        j.expected[0].p[i] *= 0.75;
    }
    check_job(&j);
    td_zero_grad(optim);
    assert_null(td_grad(a));
    td_optim_free(optim);
    td_module_free(j.net);
}

/* A step is a write: a tape that saved the weights before it must not go on with those after. */
static void test_step_before_backward(void **state)
{
    (void)state;
    td_module *net = td_nn_sequential(td_nn_linear(3, 4), td_nn_linear(4, 1));
    td_optim *optim = td_sgd(td_parameters(net), .lr = 0.1);
    td_tensor *x = td_full(TD_SHAPE(2, 3), 1.0, TD_F32, TD_CPU);
    td_step_begin();
    td_tensor *first = td_sum(td_forward(net, x)), *second = td_sum(td_forward(net, x));
    td_backward(first);
    td_optim_step(optim);
    expect_fatal("'1.weight'", td_backward(second));
    assert_non_null(strstr(fatal_message(), "written in place"));
    td_step_abandon();
    td_free(x);
    td_optim_free(optim);
    td_module_free(net);
}

/* Two optimizers over the same parameters, the first gone before the second. */
static void test_two_optimizers(void **state)
{
    (void)state;
    job j;
    open_job(&j, TD_F32);
    td_optim *one = td_adam(j.params);
    td_optim *two = td_sgd(j.params, .lr = 0.1, .momentum = 0.9);
    td_optim_free(one);
    set_gradients(&j, two, 0);
    td_optim_step(two);
    assert_int_equal(td_params_reorder(j.params, (int[]){ 1, 0 }), TD_OK);
    td_optim_free(two);
    td_optim_free(NULL);
    td_module_free(j.net);
}

static void test_bad_options(void **state)
{
    (void)state;
    job j;
    open_job(&j, TD_F32);
    expect_fatal("td_sgd: the learning rate is missing: set .lr",
                 td_sgd(j.params, .momentum = 0.9));
    expect_fatal("the learning rate (lr) is -1;", td_sgd(j.params, .lr = -1.0));
    expect_fatal("the learning rate (lr) is nan;", td_sgd(j.params, .lr = NAN));
    expect_fatal("the learning rate (lr) is inf;", td_sgd(j.params, .lr = INFINITY));
    expect_fatal("must not be negative", td_sgd(j.params, .lr = 0.1, .momentum = -1.0));
    expect_fatal("nesterov needs a momentum", td_sgd(j.params, .lr = 0.1, .nesterov = true));
    expect_fatal("between 0 and 1", td_adam(j.params, .beta1 = 1.0));
    expect_fatal("must not be negative", td_adamw(j.params, .weight_decay = -1.0));
    expect_fatal("alpha is 1; it must be", td_rmsprop(j.params, .alpha = 1.0));
    expect_fatal("initial_value -1", td_adagrad(j.params, .initial_value = -1.0));
    expect_fatal("beta2 is 2; it must be", td_lion(j.params, .beta2 = 2.0));
    td_fail(TD_OK, "%s", "");
    expect_fatal("td_parameters failed (no message", td_adam(NULL));
    td_module_free(j.net);
    open_job(&j, TD_BF16);
    expect_fatal("sgd: the parameters are bf16:", td_sgd(j.params, .lr = 0.1));
    expect_fatal("td_ema_new: the model is bf16:", td_ema_new(j.net));
    td_module_free(j.net);
}

static job wrong_order; /* what the mistake leaves behind stays reachable */
static td_optim *volatile too_late;

static void test_a_model_outlives_its_optimizer(void **state)
{
    (void)state;
    open_job(&wrong_order, TD_F32);
    too_late = td_adam(wrong_order.params);
    expect_fatal("an optimizer (or td_ema) still uses the parameters",
                 td_module_free(wrong_order.net));
    assert_non_null(strstr(fatal_message(), "free that first (td_optim_free), and the model last"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_adam),
        cmocka_unit_test(test_pytorchs_numbers),
        cmocka_unit_test(test_lion),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_settings_of_groups),
        cmocka_unit_test(test_zero_is_a_gradient),
        cmocka_unit_test(test_step_before_backward),
        cmocka_unit_test(test_two_optimizers),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_a_model_outlives_its_optimizer),
    };
    return cmocka_run_group_tests_name("nn: optimizers", tests, NULL, NULL);
}
