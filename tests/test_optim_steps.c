/* Optimizers against their formulas in double; what is skipped; groups. */
#include "tandem.h"
#include "tests/expect_fatal.h"
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
    td_fail(TD_OK, "%s", "");
    expect_fatal("td_parameters failed (no message", td_adam(NULL));
    td_module_free(j.net);
}

static job wrong_order; /* what the mistake leaves behind stays reachable */
static td_optim *volatile too_late;

static void test_a_model_outlives_its_optimizer(void **state)
{
    (void)state;
    open_job(&wrong_order, TD_F32);
    too_late = td_adam(wrong_order.params);
    expect_fatal("an optimizer (or td_ema, td_lookahead) still uses the parameters",
                 td_module_free(wrong_order.net));
    assert_non_null(strstr(fatal_message(), "free that first (td_optim_free), and the model last"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_adam),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_zero_is_a_gradient),
        cmocka_unit_test(test_step_before_backward),
        cmocka_unit_test(test_two_optimizers),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_a_model_outlives_its_optimizer),
    };
    return cmocka_run_group_tests_name("nn: optimizers", tests, NULL, NULL);
}
