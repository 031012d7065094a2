/* exp, log, tanh, erf (by way of gelu) and what is made of them, in f32: against long double, in
 * units in the last place, at every instruction set; and the special values. */
#include "tests/tensor/reference.h"

#include "tensor/cpu/isa.h"
#include "tensor/kernels/kernels.h"

#include <math.h>
#include <stdlib.h>

enum { COUNT = 60001 };

typedef long double (*exact_fn)(long double x);

static long double sigmoid(long double x)
{
    return 1 / (1 + expl(-x));
}

static long double silu(long double x)
{
    return x * sigmoid(x);
}

static long double gelu(long double x)
{
    return x / 2 * erfcl(-x / sqrtl(2));
}

static long double softplus(long double x)
{
    return log1pl(expl(x));
}

static long double mish(long double x)
{
    return x * tanhl(softplus(x));
}

static long double erf_of(long double x)
{
    return erfl(x);
}

typedef struct math_case {
    const char *name;
    td_unary_op op;
    exact_fn exact;
    double low, high; /* where x comes from; of log: exponents of 2 */
    double ulp;       /* most units in the last place of the result */
    double absolute;  /* besides: units in the last place of x (cancellation in 1 + erf) */
} math_case;

static const math_case cases[] = {
    { "exp", TD_UNARY_exp, expl, -87.3, 88.7, 2, 0 },
    { "exp near 0", TD_UNARY_exp, expl, -0.5, 0.5, 2, 0 },
    { "log", TD_UNARY_log, logl, -125.9, 127.9, 2, 0 },
    { "log near 1", TD_UNARY_log, logl, -0.5, 0.5, 2, 0 },
    { "tanh", TD_UNARY_tanh, tanhl, -10, 10, 3, 0 },
    { "tanh near 0", TD_UNARY_tanh, tanhl, -0.01, 0.01, 2, 0 },
    { "sigmoid", TD_UNARY_sigmoid, sigmoid, -80, 80, 4, 0 },
    { "silu", TD_UNARY_silu, silu, -80, 80, 4, 0 },
    { "gelu", TD_UNARY_gelu, gelu, -12, 12, 4, 2 },
    { "erf", TD_UNARY_erf, erf_of, -5, 5, 3, 0 },
    { "expm1 (elu)", TD_UNARY_elu, expm1l, -87, 0, 3, 0 },
    { "expm1 near 0 (elu)", TD_UNARY_elu, expm1l, -0.01, 0, 2, 0 },
    { "softplus", TD_UNARY_softplus, softplus, -80, 80, 4, 0 },
    { "mish", TD_UNARY_mish, mish, -80, 80, 10, 0 },
    { "sin", TD_UNARY_sin, sinl, -100, 100, 3, 0 },
    { "cos", TD_UNARY_cos, cosl, -100, 100, 3, 0 },
    { "sin near 0", TD_UNARY_sin, sinl, -0.001, 0.001, 2, 0 },
    { "sin of large numbers", TD_UNARY_sin, sinl, -1e7, 1e7, 3, 0 },
    { "cos of huge numbers", TD_UNARY_cos, cosl, -3e38, 3e38, 3, 0 },
};

static double ulp_of(long double x)
{
    int exponent;
    frexpl(x, &exponent);
    return ldexp(1.0, exponent - 24 > -149 ? exponent - 24 : -149);
}

static float *run(td_unary_op op, const float *from, int64_t count)
{
    td_tensor *x = td_new(TD_SHAPE(count), TD_F32, TD_CPU);
    td_tensor *y = td_new(TD_SHAPE(count), TD_F32, TD_CPU);
    td_write(x, from, TD_F32);
    td_cpu_kernels()->unary(op, y, x, 1.0, 0.0);
    float *to = malloc((size_t)count * sizeof *to);
    td_read(y, to, TD_F32);
    td_free(x);
    td_free(y);
    return to;
}

/* The largest error of a case, in units of what is allowed. */
static double worst_error(const math_case *c)
{
    static float x[COUNT];
    bool log_scale = c->op == TD_UNARY_log;
    for (int i = 0; i < COUNT; i++) {
        double at = c->low + (c->high - c->low) * i / (COUNT - 1);
        x[i] = (float)(log_scale ? exp2(at) : at);
    }
    float *y = run(c->op, x, COUNT);
    double worst = 0.0;
    for (int i = 0; i < COUNT; i++) {
        long double want = c->exact(x[i]);
        double allowed = c->ulp * ulp_of(want) + c->absolute * ulp_of(x[i]);
        double error = (double)fabsl(y[i] - want) / allowed;
        if (!(error <= worst)) {
            worst = error;
        }
    }
    free(y);
    return worst;
}

static void test_errors(void **state)
{
    (void)state;
    td_isa best = td_isa_detect();
    for (int isa = 0; isa <= (int)best; isa++) {
        td_isa_force((td_isa)isa);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            double worst = worst_error(&cases[i]);
            if (!(worst <= 1.0)) {
                fail_msg("%s at %s: %.2f times the error allowed", cases[i].name,
                         td_isa_name((td_isa)isa), worst);
            }
        }
    }
    td_isa_force(best);
}

static bool same(float a, float b)
{
    return isnan(a) ? isnan(b) : a == b && !signbit(a) == !signbit(b);
}

static void test_special_values(void **state)
{
    (void)state;
    const struct {
        td_unary_op op;
        float x, y;
    } known[] = {
        { TD_UNARY_exp, 0.0f, 1.0f },          { TD_UNARY_exp, -INFINITY, 0.0f },
        { TD_UNARY_exp, INFINITY, INFINITY },  { TD_UNARY_exp, NAN, NAN },
        { TD_UNARY_exp, 89.0f, INFINITY },     { TD_UNARY_exp, 1e30f, INFINITY },
        { TD_UNARY_exp, -110.0f, 0.0f },       { TD_UNARY_exp, -1e30f, 0.0f },
        { TD_UNARY_log, 1.0f, 0.0f },          { TD_UNARY_log, 0.0f, -INFINITY },
        { TD_UNARY_log, INFINITY, INFINITY },  { TD_UNARY_log, -1.0f, NAN },
        { TD_UNARY_log, -INFINITY, NAN },      { TD_UNARY_log, NAN, NAN },
        { TD_UNARY_tanh, 0.0f, 0.0f },         { TD_UNARY_tanh, -0.0f, -0.0f },
        { TD_UNARY_tanh, INFINITY, 1.0f },     { TD_UNARY_tanh, -INFINITY, -1.0f },
        { TD_UNARY_tanh, 50.0f, 1.0f },        { TD_UNARY_tanh, NAN, NAN },
        { TD_UNARY_sigmoid, 0.0f, 0.5f },      { TD_UNARY_sigmoid, INFINITY, 1.0f },
        { TD_UNARY_sigmoid, -INFINITY, 0.0f }, { TD_UNARY_sigmoid, NAN, NAN },
        { TD_UNARY_silu, 0.0f, 0.0f },         { TD_UNARY_silu, 200.0f, 200.0f },
        { TD_UNARY_gelu, 0.0f, 0.0f },         { TD_UNARY_gelu, 30.0f, 30.0f },
        { TD_UNARY_gelu, -30.0f, -0.0f },      { TD_UNARY_gelu, NAN, NAN },
        { TD_UNARY_gelu, INFINITY, INFINITY }, { TD_UNARY_sin, -0.0f, -0.0f },
        { TD_UNARY_sin, INFINITY, NAN },       { TD_UNARY_cos, -INFINITY, NAN },
        { TD_UNARY_cos, 0.0f, 1.0f },          { TD_UNARY_sin, NAN, NAN },
        { TD_UNARY_abs, -0.0f, 0.0f },         { TD_UNARY_round, 2.5f, 2.0f },
        { TD_UNARY_sign, NAN, 0.0f },          { TD_UNARY_clamp, NAN, NAN },
        { TD_UNARY_softplus, 200.0f, 200.0f }, { TD_UNARY_softplus, -200.0f, 0.0f },
        { TD_UNARY_mish, 200.0f, 200.0f },     { TD_UNARY_mish, -200.0f, -0.0f },
        { TD_UNARY_elu, -200.0f, -1.0f },      { TD_UNARY_elu, -0.0f, -0.0f },
    };
    td_isa best = td_isa_detect();
    for (int isa = 0; isa <= (int)best; isa++) {
        td_isa_force((td_isa)isa);
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
            float x[40]; /* in the vectorised part and in the tail */
            for (int k = 0; k < 40; k++) {
                x[k] = known[i].x;
            }
            float *y = run(known[i].op, x, 37);
            if (!same(y[0], known[i].y) || !same(y[36], known[i].y)) {
                fail_msg("operation %d at %s: %g gives %g and %g, not %g", (int)known[i].op,
                         td_isa_name((td_isa)isa), (double)known[i].x, (double)y[0], (double)y[36],
                         (double)known[i].y);
            }
            free(y);
        }
    }
    td_isa_force(best);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_special_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
