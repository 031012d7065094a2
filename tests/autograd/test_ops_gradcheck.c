/* Walks the cases of operations (tests/autograd/ops_cases.def): gradients in f64 against central
 * differences, value and gradients in f32 against f64; and sees to it that the tables are complete
 * and that a wrong backward would be noticed. */
#include "tests/autograd/ops_cases.h"

#include "autograd/tape.h"
#include "tensor/extend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- f64 against central differences ---- */

static void check_gradients(const ops_case *c)
{
    td_tensor *inputs[OPS_MAX_INPUTS];
    int count = ops_case_inputs(c, TD_F64, inputs);
    char report[2048];
    td_gradcheck_options options = { .report = report, .report_size = sizeof report };
    td_status status = td_gradcheck(c->fn, NULL, inputs, count, &options);
    if (status != TD_OK) {
        fail_msg("%s: %s\n%s", c->name, td_last_error(), report);
    }
    ops_case_free(inputs, count);
}

/* ---- f32 against f64 ---- */

typedef struct outcome {
    int64_t count[OPS_MAX_INPUTS + 1]; /* elements of the value and of each gradient */
    double *values[OPS_MAX_INPUTS + 1];
} outcome;

static void keep(outcome *o, int i, const td_tensor *t)
{
    o->count[i] = td_numel(t);
    o->values[i] = malloc(((size_t)o->count[i] + 1) * sizeof(double));
    assert_non_null(o->values[i]);
    td_read(t, o->values[i], TD_F64);
}

static outcome run_case(const ops_case *c, td_dtype dtype)
{
    outcome o = { .count = { 0 } };
    td_tensor *inputs[OPS_MAX_INPUTS];
    int count = ops_case_inputs(c, dtype, inputs);
    td_step_begin();
    td_tensor *y = c->fn(inputs, NULL);
    keep(&o, 0, y);
    td_tensor *dy = td_step_new_like(y, TD_HERE);
    uint64_t random = 7;
    double *weights = malloc(((size_t)o.count[0] + 1) * sizeof *weights);
    assert_non_null(weights);
    for (int64_t i = 0; i < o.count[0]; i++) {
        weights[i] = test_uniform(&random);
    }
    td_write(dy, weights, TD_F64);
    free(weights);
    td_backward(y, .gradient = dy);
    for (int i = 0; i < count; i++) {
        if (td_is_leaf(inputs[i])) {
            assert_non_null(td_grad(inputs[i]));
            assert_true(td_same_order(td_grad(inputs[i]), inputs[i]));
            keep(&o, 1 + i, td_grad(inputs[i]));
        }
    }
    td_step_end();
    ops_case_free(inputs, count);
    return o;
}

static void check_float(const ops_case *c)
{
    outcome wide = run_case(c, TD_F64), narrow = run_case(c, TD_F32);
    for (int k = 0; k <= OPS_MAX_INPUTS; k++) {
        double bound = k == 0 ? 1e-6 : 1e-5;
        assert_int_equal(wide.count[k], narrow.count[k]);
        double error = relative_l2(narrow.values[k], wide.values[k], wide.count[k]);
        if (!(error <= bound)) {
            fail_msg("%s: %s %d in f32 is off by %.2e (relative L2), more than %.0e", c->name,
                     k == 0 ? "value" : "gradient of input", k == 0 ? 0 : k - 1, error, bound);
        }
        free(wide.values[k]);
        free(narrow.values[k]);
    }
}

/* A test of the group for each line of the table, with its name. */
static void test_case(void **state)
{
    const ops_case *c = *state;
    check_gradients(c);
    check_float(c);
}

/* ---- the table is complete ---- */

static bool has_line(const char *op)
{
    static const char *const lines[] = {
#define TD_OP(op, rule) #op,
#include "autograd/ops.def"
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        if (strcmp(lines[i], op) == 0) {
            return true;
        }
    }
    return false;
}

static bool has_case(const char *op)
{
    for (int i = 0; i < ops_case_count; i++) {
        if (strcmp(ops_cases[i].op, op) == 0) {
            return true;
        }
    }
    return false;
}

static void test_every_operation_with_a_gradient_has_cases(void **state)
{
    static const char *const with_gradient[] = {
#define TD_OP(op, rule) #op,
#define TD_NO_GRADIENT(op, rule)
#include "autograd/ops.def"
    };
    (void)state;
    for (size_t i = 0; i < sizeof with_gradient / sizeof *with_gradient; i++) {
        if (!has_case(with_gradient[i])) {
            fail_msg("%s (autograd/ops.def) has no case in tests/autograd/ops_cases.def",
                     with_gradient[i]);
        }
    }
}

/* How many operations a header declares; each must have a line. Tests run in the project's root. */
static int operations_of(const char *path)
{
    FILE *header = fopen(path, "r");
    assert_non_null(header);
    char line[512], op[64];
    int found = 0;
    while (fgets(line, sizeof line, header) != NULL) {
        if (sscanf(line, "td_tensor *td_%63[a-z0-9_](", op) != 1) {
            continue;
        }
        op[strlen(op) - strlen("_at")] = '\0';
        found++;
        if (!has_line(op)) {
            fail_msg("td_%s (%s) has no line in autograd/ops.def", op, path);
        }
    }
    fclose(header);
    return found;
}

static void test_every_operation_is_in_the_table(void **state)
{
    (void)state;
    assert_true(operations_of("autograd/ops.h") >= 45);
    assert_true(operations_of("autograd/ops/elements.h") >= 30);
    assert_true(operations_of("autograd/ops/shapes.h") >= 20);
}

/* ---- wrong gradients are noticed ---- */

/* y = 2 x, with a backward that says dx = factor * dy. */
static void wrong_backward(td_node *node, const td_tensor *dy)
{
    const double *factor = td_params_of(node);
    td_grad_slot slot = td_input_grad(node, 0);
    td_kernels_of(td_device_of(dy))->unary(TD_UNARY_mul_scalar, slot.grad, dy, *factor, 0.0);
}

static td_tensor *wrong_op(td_tensor *const *in, void *user)
{
    td_tensor *y = td_step_new_like(in[0], TD_HERE);
    td_kernels_of(td_device_of(y))->unary(TD_UNARY_mul_scalar, y, in[0], 2.0, 0.0);
    return TD_RECORD(TD_HERE, .op = "wrong", .backward = wrong_backward, .out = y,
                     .inputs = { in[0] }, .params = user, .params_size = sizeof(double));
}

static td_tensor *unrecorded_op(td_tensor *const *in, void *user)
{
    (void)user;
    return td_mul(td_detach(in[0]), td_detach(in[0]));
}

static td_tensor *null_op(td_tensor *const *in, void *user)
{
    (void)in;
    td_fail(TD_E_IO, "the function's own failure: %s", (const char *)user);
    return NULL;
}

static void test_gradcheck_notices(void **state)
{
    (void)state;
    double values[] = { 0.5, -1.0, 2.0 };
    td_tensor *x = td_from(values, TD_SHAPE(3), TD_F64, TD_CPU);
    td_requires_grad(x, true);
    char report[512];
    td_gradcheck_options options = { .report = report, .report_size = sizeof report };
    double right = 2.0, wrong = 2.00001;
    assert_int_equal(td_gradcheck(wrong_op, &right, &x, 1, &options), TD_OK);
    assert_string_equal(report, "");
    assert_int_equal(td_gradcheck(wrong_op, &wrong, &x, 1, &options), TD_E_MISMATCH);
    assert_non_null(strstr(report, "input 0"));
    assert_non_null(strstr(report, "[2]"));
    assert_int_equal(td_gradcheck(unrecorded_op, NULL, &x, 1, NULL), TD_E_MISMATCH);

    assert_int_equal(td_gradcheck(null_op, (void *)"disk", &x, 1, NULL), TD_E_ARG);
    assert_non_null(strstr(td_last_error(), "disk"));
    td_requires_grad(x, false);
    assert_int_equal(td_gradcheck(wrong_op, &right, &x, 1, NULL), TD_E_ARG);
    td_free(x);
}

int main(void)
{
    const struct CMUnitTest about_the_table[] = {
        cmocka_unit_test(test_every_operation_is_in_the_table),
        cmocka_unit_test(test_every_operation_with_a_gradient_has_cases),
        cmocka_unit_test(test_gradcheck_notices),
    };
    return ops_cases_run("operations", about_the_table,
                         sizeof about_the_table / sizeof about_the_table[0], test_case);
}
