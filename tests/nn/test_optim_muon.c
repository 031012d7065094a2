/* Muon and Lookahead against their formulas in double. */
#include "tandem.h"
#include "tests/help/expect_fatal.h"
#include "autograd/hooks.h"
#include "examples/speedrun/lookahead.h"
#include "nn/extra/muon.h"
#include "tensor/extend.h"
#include "nn/module.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 700, MOST_ROWS = 40, STEPS = 3 };

static td_tensor *no_forward(td_module *self, td_tensor *x, td_site at)
{
    (void)self;
    (void)at;
    return x;
}

static const td_module_type bare_type = { .name = "Bare", .forward = no_forward };

/* Filters that are wide, tall and square, beside a bias. */
static const int64_t shapes[3][4] = { { 5, 4, 3, 2 }, { 17, 3, 1, 2 }, { 6, 6, 1, 1 } };

static td_module *bare(td_dtype dtype)
{
    static const char *const names[] = { "wide", "tall", "square" };
    td_manual_seed(3);
    td_module *m = td_module_new(&bare_type, 0);
    m->dtype = dtype;
    for (int i = 0; i < 3; i++) {
        const int64_t *s = shapes[i];
        td_tensor *w = td_new_layout(TD_SHAPE(s[0], s[1], s[2], s[3]), dtype, TD_FILTER, TD_CPU);
        td_normal_(w, 0.0, 1.0, td_default_generator());
        td_module_parameter(m, names[i], w);
    }
    td_tensor *bias = td_new(TD_SHAPE(7), dtype, TD_CPU);
    td_normal_(bias, 0.0, 1.0, td_default_generator());
    td_module_parameter(m, "bias", bias);
    td_module_buffer(m, "running", td_full(TD_SHAPE(3), 2.0, TD_F32, TD_CPU));
    return td_module_finish(m);
}

static double gradient(int param, int step, int64_t i)
{
    return (double)((step * 31 + i * 17 + i * i * 7 + param) % 64 - 31) / 64.0;
}

static void set_gradients(td_params *params, int step)
{
    for (int k = 0; k < td_params_count(params); k++) {
        td_tensor *leaf = td_params_get(params, k)->tensor;
        double values[MOST];
        for (int64_t i = 0; i < td_numel(leaf); i++) {
            values[i] = gradient(k, step, i);
        }
        td_write(td_grad_buffer(leaf), values, TD_F64);
        td_mark_grad(leaf);
    }
}

/* ---- the formula, row-major, rows <= columns ---- */

static void newton_schulz(double *x, int64_t rows, int64_t columns)
{
    static double a[MOST_ROWS * MOST_ROWS], b[MOST_ROWS * MOST_ROWS], y[MOST];
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < rows; j++) {
            a[i * rows + j] = 0.0;
            for (int64_t k = 0; k < columns; k++) {
                a[i * rows + j] += x[i * columns + k] * x[j * columns + k];
            }
        }
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < rows; j++) {
            double square = 0.0;
            for (int64_t k = 0; k < rows; k++) {
                square += a[i * rows + k] * a[k * rows + j];
            }
            b[i * rows + j] = -4.7750 * a[i * rows + j] + 2.0315 * square;
        }
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            y[i * columns + j] = 3.4445 * x[i * columns + j];
            for (int64_t k = 0; k < rows; k++) {
                y[i * columns + j] += b[i * rows + k] * x[k * columns + j];
            }
        }
    }
    memcpy(x, y, (size_t)(rows * columns) * sizeof *x);
}

static double norm_of(const double *x, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += x[i] * x[i];
    }
    return sqrt(sum);
}

/* update [outputs, inputs], from u. */
static void orthogonalise(const double *u, int64_t outputs, int64_t inputs, int rounds,
                          double *update)
{
    double x[MOST];
    bool turned = outputs > inputs;
    double norm = norm_of(u, outputs * inputs) + 1e-7;
    for (int64_t o = 0; o < outputs; o++) {
        for (int64_t i = 0; i < inputs; i++) {
            x[turned ? i * outputs + o : o * inputs + i] = u[o * inputs + i] / norm;
        }
    }
    for (int r = 0; r < rounds; r++) {
        newton_schulz(x, turned ? inputs : outputs, turned ? outputs : inputs);
    }
    for (int64_t o = 0; o < outputs; o++) {
        for (int64_t i = 0; i < inputs; i++) {
            update[o * inputs + i] = x[turned ? i * outputs + o : o * inputs + i];
        }
    }
}

typedef struct reference {
    double p[MOST], b[MOST];
} reference;

static void muon_reference(reference *r, int param, int step, int64_t outputs, int64_t n,
                           const td_muon_options *o, double lr)
{
    double u[MOST], update[MOST];
    for (int64_t i = 0; i < n; i++) {
        double g = gradient(param, step, i);
        r->b[i] = o->momentum * r->b[i] + g;
        u[i] = o->no_nesterov ? r->b[i] : g + o->momentum * r->b[i];
    }
    orthogonalise(u, outputs, n / outputs, o->rounds, update);
    double rows = (double)outputs, columns = (double)n / rows;
    double far = o->scale == TD_MUON_BY_SHAPE   ? sqrt(fmax(1.0, rows / columns))
                 : o->scale == TD_MUON_AS_ADAMW ? 0.2 * sqrt(fmax(rows, columns))
                                                : 1.0;
    double scale = o->no_renormalise ? 1.0 : sqrt((double)outputs) / norm_of(r->p, n);
    for (int64_t i = 0; i < n; i++) {
        r->p[i] = (1.0 - lr * o->filter_weight_decay) * r->p[i] * scale - lr * far * update[i];
    }
}

static void sgd_reference(reference *r, int param, int step, int64_t n, const td_muon_options *o,
                          double lr, double decay)
{
    for (int64_t i = 0; i < n; i++) {
        double g = gradient(param, step, i) + decay * r->p[i];
        r->b[i] = o->sgd_momentum * r->b[i] + g;
        r->p[i] -= lr * (g + o->sgd_momentum * r->b[i]);
    }
}

static void check(const td_param *p, const reference *r, double tolerance)
{
    double values[MOST];
    td_read(p->tensor, values, TD_F64);
    for (int64_t i = 0; i < p->count; i++) {
        if (!(fabs(values[i] - r->p[i]) <= tolerance * (1.0 + fabs(r->p[i])))) {
            fail_msg("%s[%d] is %.17g, should be %.17g", p->name, (int)i, values[i], r->p[i]);
        }
    }
}

static bool is_bias(const td_param *param, void *user)
{
    (void)user;
    return param->tensor->ndim == 1;
}

static void run_muon(td_dtype dtype, td_muon_options options)
{
    td_module *net = bare(dtype);
    td_params *params = options.params = td_parameters(net);
    td_optim *optim = td_muon_at(options, TD_HERE);
    td_optim_group(optim, is_bias, NULL, 0.5, 0.01);
    static reference expected[4];
    memset(expected, 0, sizeof expected);
    for (int k = 0; k < 4; k++) {
        td_read(td_params_get(params, k)->tensor, expected[k].p, TD_F64);
    }
    options.rounds = options.rounds != 0 ? options.rounds : 5;
    for (int step = 0; step < STEPS; step++) {
        set_gradients(params, step);
        td_optim_set_lr(optim, options.lr / (step + 1));
        td_optim_step(optim);
        for (int k = 0; k < 4; k++) {
            const td_param *p = td_params_get(params, k);
            double lr = options.lr / (step + 1);
            if (k < 3) {
                muon_reference(&expected[k], k, step, shapes[k][0], p->count, &options, lr);
            } else {
                sgd_reference(&expected[k], k, step, p->count, &options, 0.5 * lr, 0.01);
            }
            check(p, &expected[k], dtype == TD_F64 ? 1e-12 : 3e-5);
        }
        if (step == 0) { /* memory is laid out anew: the state moves along */
            assert_int_equal(td_params_reorder(params, (int[]){ 2, 3, 0, 1 }), TD_OK);
        }
    }
    td_optim_free(optim);
    td_module_free(net);
}

static void test_muon(void **state)
{
    (void)state;
    td_muon_options recipe = { .lr = 0.24, .momentum = 0.6, .rounds = 3, .sgd_momentum = 0.85 };
    run_muon(TD_F64, recipe);
    run_muon(TD_F32, recipe);
    recipe.no_nesterov = recipe.no_renormalise = true;
    recipe.rounds = 0;
    run_muon(TD_F64, recipe);
    recipe.filter_weight_decay = 0.1;
    recipe.scale = TD_MUON_BY_SHAPE;
    run_muon(TD_F64, recipe);
    recipe.scale = TD_MUON_AS_ADAMW;
    run_muon(TD_F64, recipe);
}

/* What the method is for: singular values of any size come near 1. The control: momentum itself. */
static void test_muon_evens_out(void **state)
{
    (void)state;
    double x[36] = { 0 };
    for (int i = 0; i < 6; i++) {
        x[i * 6 + i] = pow(0.5, i); /* from 1 to 1/32 */
    }
    double update[36];
    orthogonalise(x, 6, 6, 5, update);
    for (int i = 0; i < 6; i++) {
        assert_true(update[i * 6 + i] > 0.5 && update[i * 6 + i] < 1.5);
    }
    td_module *net = bare(TD_F64);
    td_params *params = td_parameters(net);
    td_optim *optim = td_muon(params, .lr = 1.0, .no_renormalise = true);
    td_tensor *square = td_params_get(params, 2)->tensor;
    double before[36], after[36];
    td_read(square, before, TD_F64);
    td_write(td_grad_buffer(square), x, TD_F64);
    td_mark_grad(square);
    td_optim_step(optim);
    td_read(square, after, TD_F64);
    for (int i = 0; i < 36; i++) {
        assert_true(fabs(before[i] - after[i] - update[i]) < 1e-12);
    }
    td_optim_free(optim);
    td_module_free(net);
}

static bool is_weight(const td_param *param, void *user)
{
    return param->tensor->ndim > 1 || *(bool *)user;
}

/* A chosen matrix [O,I] moves as the filter bank [O,I,1,1] does. */
static void test_muon_of_matrices(void **state)
{
    (void)state;
    td_module *conv = td_nn_sequential(td_nn_conv2d(5, 9, .kernel = 1)),
              *net = td_nn_sequential(td_nn_linear(5, 9));
    td_params *both[2] = { td_parameters(conv), td_parameters(net) };
    bool all = false;
    td_optim *optim[2] = {
        td_muon(both[0], .lr = 0.1, .momentum = 0.9),
        td_muon(both[1], .lr = 0.1, .momentum = 0.9, .belongs = is_weight, .user = &all),
    };
    double values[2][45];
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 45; k++) {
            values[0][k] = gradient(0, 1, k);
        }
        td_write(td_params_get(both[i], 0)->tensor, values[0], TD_F64);
        set_gradients(both[i], 0);
        td_optim_step(optim[i]);
    }
    for (int i = 0; i < 2; i++) {
        td_read(td_params_get(both[i], 0)->tensor, values[i], TD_F64);
        td_optim_free(optim[i]);
    }
    for (int k = 0; k < 45; k++) {
        assert_true(fabs(values[0][k] - values[1][k]) < 1e-6);
        assert_true(fabs(values[0][k] - gradient(0, 1, k)) > 1e-6);
    }
    all = true;
    expect_fatal("0.bias f32[9] cpu:0 was chosen",
                 td_muon(both[1], .lr = 0.1, .belongs = is_weight, .user = &all));
    td_module_free(conv);
    td_module_free(net);
}

/* A filter without a gradient stays as it is; a zero gradient moves nothing and makes no NaN. */
static void test_muon_without_gradient(void **state)
{
    (void)state;
    td_module *net = bare(TD_F32);
    td_params *params = td_parameters(net);
    td_optim *optim = td_muon(params, .lr = 1.0);
    double before[MOST], after[MOST];
    td_tensor *wide = td_params_get(params, 0)->tensor, *tall = td_params_get(params, 1)->tensor;
    td_fill_(td_grad_buffer(tall), 0.0);
    td_mark_grad(tall);
    td_fill_(tall, 0.0);
    td_read(wide, before, TD_F64);
    td_optim_step(optim);
    td_read(wide, after, TD_F64);
    assert_memory_equal(before, after, (size_t)td_numel(wide) * sizeof(double));
    td_read(tall, after, TD_F64);
    for (int64_t i = 0; i < td_numel(tall); i++) {
        assert_true(after[i] == 0.0);
    }
    expect_fatal("td_muon: the learning rate (lr) is -1;", td_muon(params, .lr = -1.0));
    expect_fatal("td_muon: the learning rate is missing", td_muon(params, .momentum = 0.6));
    expect_fatal("there is no group 1", td_optim_set(optim, 1, .lr_scale = 1.0));
    td_optim_free(optim);
    td_module_free(net);
}

/* ---- Lookahead ---- */

static void test_lookahead(void **state)
{
    (void)state;
    td_module *net = bare(TD_F64);
    td_params *params = td_parameters(net);
    td_state_list list = td_module_state(net);
    lookahead *ahead = lookahead_new(net);
    double slow[5][MOST], fast[MOST];
    for (int k = 0; k < list.count; k++) {
        td_read(list.items[k].tensor, slow[k], TD_F64);
    }
    static const double decays[] = { 0.5, 0.0, 0.77, 1.0 };
    for (int round = 0; round < 4; round++) {
        for (int k = 0; k < list.count; k++) { /* training moves everything */
            td_tensor *t = list.items[k].tensor;
            td_read(t, fast, TD_F64);
            for (int64_t i = 0; i < td_numel(t); i++) {
                fast[i] += gradient(k, round, i);
                slow[k][i] = decays[round] * slow[k][i] + (1 - decays[round]) * fast[i];
            }
            td_write(t, fast, TD_F64);
        }
        lookahead_set_decay(ahead, decays[round]);
        lookahead_update(ahead);
        for (int k = 0; k < list.count; k++) {
            td_tensor *t = list.items[k].tensor;
            td_read(t, fast, TD_F64);
            for (int64_t i = 0; i < td_numel(t); i++) {
                assert_true(fabs(fast[i] - slow[k][i]) <= (t->dtype == TD_F64 ? 1e-14 : 1e-6));
            }
        }
        if (round == 1) {
            assert_int_equal(td_params_reorder(params, (int[]){ 2, 3, 0, 1 }), TD_OK);
        }
    }
    expect_fatal("decay 1.5", lookahead_set_decay(ahead, 1.5));
    lookahead_free(ahead);
    td_state_list_free(&list);
    td_module_free(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_muon),
        cmocka_unit_test(test_muon_evens_out),
        cmocka_unit_test(test_muon_of_matrices),
        cmocka_unit_test(test_muon_without_gradient),
        cmocka_unit_test(test_lookahead),
    };
    return cmocka_run_group_tests_name("nn: Muon and Lookahead", tests, NULL, NULL);
}
