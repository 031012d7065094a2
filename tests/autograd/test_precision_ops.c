/* bf16: walks the cases of operations (tests/autograd/ops_cases.def) with bf16 activations against
 * f64 on the same values, and holds every operation to its rule in autograd/ops.def. */
#include "tests/help/expect_fatal.h"
#include "tests/autograd/ops_cases.h"

#include "autograd/tape.h"
#include "tensor/extend.h"
#include "autograd/ops/op.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A bf16 has 8 bits: one rounding is off by 2^-9 of the value at most, 2^-10 in the mean. Results
 * are rounded once, those of composed cases and gradients that pass through several operations a
 * few times. */
static const double VALUE_BOUND = 0x1p-7, GRADIENT_BOUND = 0x1p-7;

static td_rule rule_of(const char *op)
{
    static const struct {
        const char *op;
        td_rule rule;
    } rules[] = {
#define TD_OP(op, rule) { #op, TD_RULE_IS_##rule },
#include "autograd/ops.def"
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (strcmp(rules[i].op, op) == 0) {
            return rules[i].rule;
        }
    }
    fail_msg("%s has cases, and no line in autograd/ops.def", op);
    return TD_RULE_IS_ANY;
}

/* ---- bf16 against f64 ---- */

/* Weights, biases and statistics stay f32. */
static bool is_parameter(const char *op, int i, const td_tensor *t)
{
    if (strncmp(op, "batch_norm", 10) == 0) {
        return i > 0 && t->ndim == 1;
    }
    return i > 0 && (strncmp(op, "conv2d", 6) == 0 || strcmp(op, "linear") == 0 ||
                     strcmp(op, "linear_cross_entropy") == 0 || strcmp(op, "layer_norm") == 0 ||
                     strcmp(op, "embedding") == 0);
}

/* The case's inputs in f64 with values that bf16 has (parameters: f32), and the same as a mixed run
 * wants them: activations of dtype `activations`. */
static int make_inputs(const ops_case *c, td_dtype activations, td_tensor **wide,
                       td_tensor **narrow)
{
    int count = ops_case_inputs(c, TD_F64, wide);
    for (int i = 0; i < count; i++) {
        if (!td_is_float(wide[i]->dtype)) {
            narrow[i] = td_clone(wide[i]);
            continue;
        }
        bool parameter = is_parameter(c->op, i, wide[i]);
        td_tensor *rounded = td_clone_as(wide[i], parameter ? TD_F32 : TD_BF16, TD_CPU);
        bool leaf = td_is_leaf(wide[i]);
        td_requires_grad(wide[i], false);
        td_copy_(wide[i], rounded);
        narrow[i] = td_clone_as(rounded, parameter ? TD_F32 : activations, TD_CPU);
        td_free(rounded);
        td_requires_grad(wide[i], leaf);
        td_requires_grad(narrow[i], leaf);
    }
    return count;
}

static void compare(const ops_case *c, const ops_outcome *narrow, const ops_outcome *wide)
{
    for (int k = 0; k <= OPS_MAX_INPUTS; k++) {
        double bound = k == 0 ? VALUE_BOUND : GRADIENT_BOUND;
        assert_int_equal(wide->count[k], narrow->count[k]);
        double error = relative_l2(narrow->values[k], wide->values[k], wide->count[k]);
        if (!(error <= bound)) {
            fail_msg("%s: %s %d in bf16 is off by %.2e (relative L2), more than %.1e", c->name,
                     k == 0 ? "value" : "gradient of input", k == 0 ? 0 : k - 1, error, bound);
        }
    }
}

static ops_outcome run(const ops_case *c, td_tensor **inputs, int count)
{
    ops_outcome o = ops_case_outcome(c, inputs, count, true);
    for (int i = 0; i < count; i++) {
        assert_true(o.values[1 + i] == NULL || o.dtype[1 + i] == inputs[i]->dtype);
    }
    return o;
}

/* The result's dtype as the operation's rule has it; cases that compose several are left out. */
static void check_dtype(const ops_case *c, td_dtype got, td_dtype activations)
{
    td_rule rule = rule_of(c->op);
    if (strcmp(c->name, c->op) != 0 || strcmp(c->op, "cast") == 0) {
        return;
    }
    bool bf16 = activations == TD_BF16 && rule != TD_RULE_IS_WIDENS;
    bf16 = bf16 || (rule == TD_RULE_IS_FACTOR && td_math_now().precision == TD_PRECISION_BF16);
    if (got != (bf16 ? TD_BF16 : TD_F32)) {
        fail_msg("%s: the result is %s", c->name, td_dtype_name(got));
    }
}

static void check_case(const ops_case *c, td_dtype activations)
{
    td_tensor *wide[OPS_MAX_INPUTS], *narrow[OPS_MAX_INPUTS];
    int count = make_inputs(c, activations, wide, narrow);
    td_math math = td_math_now();
    td_set_math((td_math){ .precision = TD_PRECISION_FP32 });
    ops_outcome reference = run(c, wide, count);
    td_set_math(math);
    ops_outcome o = run(c, narrow, count);
    check_dtype(c, o.dtype[0], activations);
    compare(c, &o, &reference);
    ops_outcome_free(&o);
    ops_outcome_free(&reference);
    ops_case_free(wide, count);
    ops_case_free(narrow, count);
}

/* A test of the group for each line of the table: bf16 as it comes, and f32 under --precision. */
static void test_case(void **state)
{
    const ops_case *c = *state;
    check_case(c, TD_BF16);
    td_set_math((td_math){ .precision = TD_PRECISION_BF16 });
    check_case(c, TD_F32);
    td_set_math((td_math){ .precision = TD_PRECISION_FP32 });
}

/* ---- what meets what ---- */

static td_tensor *ramp(td_dtype dtype, int64_t rows, int64_t columns)
{
    td_tensor *t = td_new(TD_SHAPE(rows, columns), dtype, TD_CPU);
    for (int64_t i = 0; i < rows * columns; i++) {
        td_set(t, (int64_t[]){ i / columns, i % columns }, (double)(i % 7) - 3.0);
    }
    return t;
}

static void test_mixed_operands(void **state)
{
    (void)state;
    td_tensor *a = ramp(TD_BF16, 3, 4), *b = ramp(TD_F32, 3, 4), *d = ramp(TD_F64, 3, 4);
    td_requires_grad(a, true);
    td_requires_grad(b, true);
    td_step_begin();
    td_tensor *sum = td_add(a, b);
    assert_int_equal(sum->dtype, TD_F32);
    assert_int_equal(td_add(b, a)->dtype, TD_F32);
    assert_int_equal(td_mul(a, a)->dtype, TD_BF16);
    td_tensor *parts[] = { a, b, a };
    td_tensor *joined = td_cat(parts, 3, 0);
    assert_int_equal(joined->dtype, TD_F32);
    assert_true(td_get(joined, (int64_t[]){ 7, 3 }) == td_get(a, (int64_t[]){ 1, 3 }));
    td_backward(td_sum(sum));
    assert_int_equal(td_grad(a)->dtype, TD_BF16);
    assert_int_equal(td_grad(b)->dtype, TD_F32);
    assert_true(td_get(td_grad(a), (int64_t[]){ 2, 2 }) == 1.0);
    expect_fatal("differ in dtype", td_add(a, d));
    td_step_abandon();
    td_free(a);
    td_free(b);
    td_free(d);
}

static void test_refusals(void **state)
{
    (void)state;
    td_tensor *half = ramp(TD_F16, 3, 4);
    td_tensor *image = td_zeros(TD_SHAPE(2, 3, 2, 2), TD_BF16, TD_CPU);
    td_tensor *weight = td_zeros(TD_SHAPE(3), TD_BF16, TD_CPU);
    td_step_begin();
    expect_fatal("convert it with td_cast", td_relu(half));
    expect_fatal("it must be f32",
                 td_batch_norm(image, weight, NULL, NULL, NULL, .training = true));
    td_step_abandon();
    td_free(half);
    td_free(image);
    td_free(weight);
}

/* What is for GPUs is refused by name; names go both ways. */
static void test_precisions_of_the_cpu(void **state)
{
    (void)state;
    td_precision precision;
    for (int i = 0; i < TD_PRECISION_COUNT; i++) {
        const char *name = td_precision_name((td_precision)i);
        assert_true(td_precision_parse(name, &precision));
        assert_int_equal(precision, i);
        bool on_cpu = i != TD_PRECISION_TF32 && i != TD_PRECISION_FP16;
        assert_int_equal(td_precision_check(TD_CPU, precision), on_cpu ? TD_OK : TD_E_UNSUPPORTED);
        assert_true(on_cpu || strstr(td_last_error(), name) != NULL);
    }
    assert_false(td_precision_parse("fp8", &precision));
    assert_int_equal(td_precision_dtype(TD_PRECISION_BF16X3), TD_F32);
    assert_int_equal(td_precision_dtype(TD_PRECISION_FP16), TD_F16);
}

/* f32 weights get f32 gradients, that are not rounded to bf16. */
static void test_master_weights(void **state)
{
    (void)state;
    td_tensor *x = ramp(TD_F32, 9, 4), *w = ramp(TD_F32, 5, 4);
    td_requires_grad(w, true);
    td_set_math((td_math){ .precision = TD_PRECISION_BF16 });
    td_step_begin();
    td_tensor *y = td_linear(x, w, NULL);
    assert_int_equal(y->dtype, TD_BF16);
    td_tensor *dy = ramp(TD_BF16, 9, 5);
    td_backward(y, .gradient = dy);
    assert_int_equal(td_grad(w)->dtype, TD_F32);
    for (int64_t o = 0; o < 5; o++) {
        for (int64_t i = 0; i < 4; i++) {
            double want = 0.0;
            for (int64_t n = 0; n < 9; n++) {
                want += td_get(dy, (int64_t[]){ n, o }) * td_get(x, (int64_t[]){ n, i });
            }
            assert_true(td_get(td_grad(w), (int64_t[]){ o, i }) == want); /* small integers */
        }
    }
    td_step_end();
    td_set_math((td_math){ .precision = TD_PRECISION_FP32 });
    td_free(dy);
    td_free(x);
    td_free(w);
}

int main(void)
{
    const struct CMUnitTest others[] = {
        cmocka_unit_test(test_mixed_operands),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_precisions_of_the_cpu),
        cmocka_unit_test(test_master_weights),
    };
    return ops_cases_run("operations in bf16", others, sizeof others / sizeof others[0], test_case);
}
