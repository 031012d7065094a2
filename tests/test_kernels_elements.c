/* Kernels that work element by element: fill, copy, axpy, unary operations and their gradients,
 * binary operations. */
#include "tests/reference.h"

#include "tensor/kernels.h"
#include "tensor/extend.h"
#include "tensor/f16.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const td_kernels *k(void)
{
    return ref_kernels();
}

/* ---- fill and copy ---- */

static void fill_any_strides(td_dtype dtype)
{
    td_tensor *tensors[] = {
        ref_tensor(TD_SCALAR, dtype, TD_ROW_MAJOR, 1),
        ref_tensor(TD_SHAPE(3, 0, 2), dtype, TD_ROW_MAJOR, 1),
        ref_tensor(TD_SHAPE(70001), dtype, TD_ROW_MAJOR, 1),
        ref_tensor(TD_SHAPE(3, 5, 7, 2), dtype, TD_IMAGE, 1),
        ref_scattered(ref_tensor(TD_SHAPE(5, 7, 3), dtype, TD_ROW_MAJOR, 1)),
        ref_filled(TD_SHAPE(5, 9), TD_U8, TD_ROW_MAJOR, 1),
        ref_filled(TD_SHAPE(5, 9), TD_BF16, TD_ROW_MAJOR, 1),
        ref_filled(TD_SHAPE(5, 9), TD_I64, TD_ROW_MAJOR, 1),
    };
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        double *want = ref_zeros(td_numel(tensors[i]));
        for (int64_t j = 0; j < td_numel(tensors[i]); j++) {
            want[j] = 6.0;
        }
        k()->fill(tensors[i], 6.0);
        ref_close(tensors[i], want, NULL, 0.0, "fill");
        free(want);
        td_free(tensors[i]);
    }
}

static void test_fill(void **state)
{
    (void)state;
    ref_run(fill_any_strides);
}

/* Copies x to a fresh y and frees both; values must come through. */
static void check_copy(td_tensor *x, td_tensor *y, double tolerance)
{
    double *want = ref_values(x);
    k()->copy(y, x);
    ref_close(y, want, NULL, tolerance, "copy");
    free(want);
    td_free(x);
    td_free(y);
}

static void copy_layouts(td_dtype dtype)
{
    static const int64_t shapes[][4] = {
        { 1, 1, 1, 1 },   { 2, 3, 5, 7 },   { 33, 3, 9, 10 },  { 5, 70, 1, 1 },
        { 3, 65, 33, 2 }, { 0, 3, 2, 2 },   { 16, 3, 40, 40 }, /* few channels or pixels: */
        { 2, 8, 11, 13 }, { 3, 200, 3, 3 }, { 2, 130, 2, 4 },  { 1, 8, 2, 4 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        td_shape s = { 4, { shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3] } };
        for (td_layout from = TD_ROW_MAJOR; from <= TD_FILTER; from++) {
            for (td_layout to = TD_ROW_MAJOR; to <= TD_FILTER; to++) {
                check_copy(ref_tensor(s, dtype, from, i), ref_filled(s, dtype, to, 0.0), 0.0);
            }
        }
        check_copy(ref_scattered(ref_tensor(s, dtype, TD_IMAGE, i)),
                   ref_scattered(ref_filled(s, dtype, TD_ROW_MAJOR, 0.0)), 0.0);
    }
    check_copy(ref_expanded(TD_SHAPE(7, 5), dtype, 0.5),
               ref_filled(TD_SHAPE(7, 5), dtype, TD_ROW_MAJOR, 0.0), 0.0);
}

static void test_copy_layouts(void **state)
{
    (void)state;
    ref_run(copy_layouts);
    ref_run_half(copy_layouts);
}

/* Small whole numbers exist in all dtypes. */
static void copy_dtypes(td_dtype unused)
{
    (void)unused;
    for (int from = 0; from < TD_DTYPE_COUNT; from++) {
        for (int to = 0; to < TD_DTYPE_COUNT; to++) {
            td_tensor *x = td_new(TD_SHAPE(3, 7, 31), (td_dtype)from, ref_device());
            double values[3 * 7 * 31];
            for (int i = 0; i < 3 * 7 * 31; i++) {
                values[i] = i % 128;
            }
            td_write(x, values, TD_F64);
            td_tensor *y = ref_filled(TD_SHAPE(3, 7, 31), (td_dtype)to, TD_ROW_MAJOR, 1.0);
            check_copy(ref_scattered(x), y, 0.0);
        }
    }
    check_copy(ref_tensor(TD_SHAPE(999), TD_F64, TD_ROW_MAJOR, 5),
               ref_filled(TD_SHAPE(999), TD_F32, TD_ROW_MAJOR, 0.0), 0x1p-24);
    check_copy(ref_tensor(TD_SHAPE(999), TD_F32, TD_ROW_MAJOR, 5),
               ref_filled(TD_SHAPE(999), TD_BF16, TD_ROW_MAJOR, 0.0), 0x1p-8);
}

static void test_copy_dtypes(void **state)
{
    (void)state;
    ref_run(copy_dtypes);
}

/* ---- axpy ---- */

static void check_axpy(td_tensor *y, double alpha, td_tensor *x)
{
    double *want = ref_values(y), *from = ref_values(x), *terms = ref_zeros(td_numel(y));
    for (int64_t i = 0; i < td_numel(y); i++) {
        terms[i] = fabs(want[i]) + fabs(alpha * from[i]);
        want[i] += alpha * from[i];
    }
    k()->axpy(y, alpha, x);
    ref_close(y, want, terms, ref_tolerance(y->dtype), "axpy");
    free(want);
    free(from);
    free(terms);
    td_free(x);
    td_free(y);
}

static void axpy_cases(td_dtype dtype)
{
    td_shape s = TD_SHAPE(3, 50, 17);
    check_axpy(ref_tensor(s, dtype, TD_ROW_MAJOR, 1), -0.75, ref_tensor(s, dtype, TD_ROW_MAJOR, 2));
    check_axpy(ref_scattered(ref_tensor(s, dtype, TD_ROW_MAJOR, 1)), 1.0,
               ref_tensor(s, dtype, TD_ROW_MAJOR, 2));
    check_axpy(ref_tensor(s, dtype, TD_ROW_MAJOR, 1), 2.5, ref_expanded(s, dtype, 0.25));
    check_axpy(ref_tensor(TD_SHAPE(80001), dtype, TD_ROW_MAJOR, 1), 0.1,
               ref_tensor(TD_SHAPE(80001), dtype, TD_ROW_MAJOR, 2));
    check_axpy(ref_tensor(TD_SHAPE(2, 300), TD_BF16, TD_ROW_MAJOR, 1), 0.5,
               ref_tensor(TD_SHAPE(2, 300), TD_BF16, TD_ROW_MAJOR, 2));
    check_axpy(ref_tensor(TD_SHAPE(2, 300), TD_F16, TD_ROW_MAJOR, 1), 0.5,
               ref_tensor(TD_SHAPE(2, 300), TD_F16, TD_ROW_MAJOR, 2));
    check_axpy(ref_indices(TD_SHAPE(40), 100, 1), -3.0, ref_indices(TD_SHAPE(40), 100, 2));
}

static void test_axpy(void **state)
{
    (void)state;
    ref_run(axpy_cases);
}

/* ---- unary ---- */

static double unary_value(td_unary_op op, double x, double p)
{
    switch (op) {
    case TD_UNARY_NEG:
        return -x;
    case TD_UNARY_EXP:
        return exp(x);
    case TD_UNARY_LOG:
        return log(x);
    case TD_UNARY_SQRT:
        return sqrt(x);
    case TD_UNARY_POW:
        return pow(x, p);
    case TD_UNARY_RELU:
        return isnan(x) ? x : fmax(x, 0.0);
    case TD_UNARY_SIGMOID:
        return 1.0 / (1.0 + exp(-x));
    case TD_UNARY_TANH:
        return tanh(x);
    case TD_UNARY_SILU:
        return x / (1.0 + exp(-x));
    case TD_UNARY_GELU:
        return 0.5 * x * erfc(-x / sqrt(2.0));
    case TD_UNARY_ADD_SCALAR:
        return x + p;
    case TD_UNARY_MUL_SCALAR:
        return x * p;
    case TD_UNARY_COUNT:
        break;
    }
    return 0.0;
}

/* A slope by central differences of the above: good to about 1e-9. */
static double unary_slope(td_unary_op op, double x, double p)
{
    double h = 1e-5;
    if (op == TD_UNARY_RELU) {
        return x > 0.0 ? 1.0 : 0.0;
    }
    return (unary_value(op, x - 2 * h, p) - 8 * unary_value(op, x - h, p) +
            8 * unary_value(op, x + h, p) - unary_value(op, x + 2 * h, p)) /
           (12 * h);
}

static bool wants_positive(td_unary_op op)
{
    return op == TD_UNARY_LOG || op == TD_UNARY_SQRT || op == TD_UNARY_POW;
}

/* Numbers between -3 and 3, or 0.25 and 1.25. */
static td_tensor *unary_input(td_unary_op op, td_shape shape, td_dtype dtype)
{
    td_tensor *t = ref_tensor(shape, dtype, TD_ROW_MAJOR, 7);
    double *values = ref_values(t);
    for (int64_t i = 0; i < td_numel(t); i++) {
        values[i] = wants_positive(op) ? values[i] * 0.5 + 0.75 : values[i] * 3.0;
    }
    td_write(t, values, TD_F64);
    free(values);
    return t;
}

static void check_unary(td_unary_op op, td_tensor *x, td_tensor *y, double p)
{
    double *from = ref_values(x), *want = ref_zeros(td_numel(x)), *terms = ref_zeros(td_numel(x));
    for (int64_t i = 0; i < td_numel(x); i++) {
        want[i] = unary_value(op, from[i], p);
        terms[i] = fabs(want[i]) + fabs(from[i]) + fabs(p);
    }
    k()->unary(op, y, x, p);
    ref_close(y, want, terms, ref_tolerance(x->dtype), "unary");
    free(from);
    free(want);
    free(terms);
}

static void check_unary_grad(td_unary_op op, const td_tensor *x, const td_tensor *y,
                             const td_tensor *dy, td_tensor *dx, double p, bool accumulate)
{
    int64_t n = td_numel(x);
    double *from = ref_values(x), *g = ref_values(dy), *want = ref_values(dx);
    double *terms = ref_zeros(n), tolerance = ref_tolerance(x->dtype);
    for (int64_t i = 0; i < n; i++) {
        double result = g[i] * unary_slope(op, from[i], p);
        terms[i] = fabs(want[i]) + fabs(result) + fabs(g[i]);
        want[i] = accumulate ? want[i] + result : result;
    }
    k()->unary_grad(op, dx, dy, x, y, p, accumulate);
    ref_close(dx, want, terms, tolerance > 1e-8 ? tolerance : 1e-8, "unary_grad");
    free(from);
    free(g);
    free(want);
    free(terms);
}

static void unary_case(td_unary_op op, td_shape shape, td_dtype dtype, bool scattered)
{
    double p = op == TD_UNARY_POW ? 2.5 : 0.75;
    td_tensor *x = unary_input(op, shape, dtype);
    td_tensor *y = ref_filled(shape, dtype, TD_ROW_MAJOR, 9.0);
    td_tensor *dy = ref_tensor(shape, dtype, TD_ROW_MAJOR, 8);
    td_tensor *dx = ref_tensor(shape, dtype, TD_ROW_MAJOR, 9);
    if (scattered) {
        x = ref_scattered(x);
        dy = ref_scattered(dy);
    }
    check_unary(op, x, y, p);
    check_unary_grad(op, x, y, dy, dx, p, true);
    check_unary_grad(op, x, y, dy, dx, p, false);
    td_free(x);
    td_free(y);
    td_free(dy);
    td_free(dx);
}

static void unary_cases(td_dtype dtype)
{
    for (td_unary_op op = 0; op < TD_UNARY_COUNT; op++) {
        unary_case(op, TD_SCALAR, dtype, false);
        unary_case(op, TD_SHAPE(0), dtype, false);
        unary_case(op, TD_SHAPE(3, 13, 5), dtype, false);
        unary_case(op, TD_SHAPE(3, 13, 5), dtype, true);
    }
    unary_case(TD_UNARY_RELU, TD_SHAPE(40001), dtype, false);
    unary_case(TD_UNARY_TANH, TD_SHAPE(33000), dtype, false);
}

static void test_unary(void **state)
{
    (void)state;
    ref_run(unary_cases);
}

static void squares(td_dtype dtype)
{
    td_tensor *x = ref_tensor(TD_SHAPE(7, 9), dtype, TD_ROW_MAJOR, 3);
    td_tensor *y = ref_filled(TD_SHAPE(7, 9), dtype, TD_ROW_MAJOR, 0.0);
    check_unary(TD_UNARY_POW, x, y, 2.0);
    td_free(x);
    td_free(y);
}

static void test_squares(void **state)
{
    (void)state;
    ref_run(squares);
}

/* bf16 in, computed in float, bf16 out; also when dx is added to. */
static void test_unary_half(void **state)
{
    (void)state;
    static const td_dtype halves[] = { TD_BF16, TD_F16 };
    for (int i = 0; i < 2; i++) {
        td_shape s = TD_SHAPE(5, 101);
        td_tensor *x = ref_tensor(s, halves[i], TD_ROW_MAJOR, 1);
        td_tensor *y = ref_filled(s, halves[i], TD_ROW_MAJOR, 0.0);
        td_tensor *dy = ref_scattered(ref_tensor(s, halves[i], TD_ROW_MAJOR, 2));
        td_tensor *dx = ref_tensor(s, halves[i], TD_ROW_MAJOR, 3);
        check_unary(TD_UNARY_RELU, x, y, 0.0);
        check_unary_grad(TD_UNARY_RELU, x, y, dy, dx, 0.0, true);
        check_unary(TD_UNARY_SILU, x, y, 0.0);
        check_unary_grad(TD_UNARY_SILU, x, y, dy, dx, 0.0, false);
        td_free(x);
        td_free(y);
        td_free(dy);
        td_free(dx);
    }
}

/* Runs of f16 from and to f32: around every half, as one by one. */
static void halves(td_dtype dtype)
{
    enum { ALL = 0x10000, FROM = 3, COUNT = ALL - FROM };
    static float values[ALL], back[COUNT];
    static td_f16 got[COUNT];
    for (unsigned i = 0; i < ALL; i++) {
        values[i] = td_f16_to_f32((td_f16)i) * (1.0f + (float)(i % 7) * 0x1p-12f);
    }
    td_tensor *all = td_zeros(TD_SHAPE(ALL), TD_F16, ref_device());
    td_tensor *half = td_slice_of_storage(all, FROM, TD_SHAPE(COUNT), (int64_t[]){ 1 });
    td_tensor *wide = td_from(values, TD_SHAPE(COUNT), dtype, ref_device());
    k()->copy(half, wide);
    td_read(half, got, TD_F16);
    k()->copy(wide, half);
    td_read(wide, back, dtype);
    for (unsigned i = 0; i < COUNT; i++) {
        assert_true(got[i] == td_f32_to_f16(values[i]) || isnan(values[i]));
        assert_true(back[i] == td_f16_to_f32(got[i]) || (isnan(values[i]) && isnan(back[i])));
    }
    td_free(half);
    td_free(wide);
    td_free(all);
}

static void test_halves(void **state)
{
    (void)state;
    ref_run_as(halves, TD_F32);
}

/* NaN stays NaN in a relu, and its slope is 1, as in PyTorch. */
static void test_relu_of_nan(void **state)
{
    (void)state;
    float from[3] = { NAN, -1.0f, 2.0f }, to[3], g[3] = { 5.0f, 5.0f, 5.0f }, dx[3];
    memset(to, 0xff, sizeof to);
    memset(dx, 0xff, sizeof dx);
    td_tensor *x = td_from(from, TD_SHAPE(3), TD_F32, ref_device());
    td_tensor *y = td_from(to, TD_SHAPE(3), TD_F32, ref_device());
    td_tensor *dy = td_from(g, TD_SHAPE(3), TD_F32, ref_device());
    td_tensor *d = td_from(dx, TD_SHAPE(3), TD_F32, ref_device());
    k()->unary(TD_UNARY_RELU, y, x, 0.0);
    td_read(y, to, TD_F32);
    assert_true(isnan(to[0]) && to[1] == 0.0f && to[2] == 2.0f);
    k()->unary_grad(TD_UNARY_RELU, d, dy, NULL, y, 0.0, false);
    td_read(d, dx, TD_F32);
    assert_true(dx[0] == 5.0f && dx[1] == 0.0f && dx[2] == 5.0f);
    td_free(x);
    td_free(y);
    td_free(dy);
    td_free(d);
}

/* ---- binary ---- */

static double binary_value(td_binary_op op, double a, double b)
{
    switch (op) {
    case TD_BINARY_ADD:
        return a + b;
    case TD_BINARY_SUB:
        return a - b;
    case TD_BINARY_MUL:
        return a * b;
    case TD_BINARY_DIV:
        return a / b;
    case TD_BINARY_COUNT:
        break;
    }
    return 0.0;
}

/* Frees a and b. */
static void check_binary(td_tensor *a, td_tensor *b)
{
    td_shape shape = td_shape_of(a);
    double *left = ref_values(a), *right = ref_values(b);
    double *want = ref_zeros(td_numel(a)), *terms = ref_zeros(td_numel(a));
    td_tensor *y = ref_filled(shape, a->dtype, TD_ROW_MAJOR, 9.0);
    for (td_binary_op op = 0; op < TD_BINARY_COUNT; op++) {
        for (int64_t i = 0; i < td_numel(a); i++) {
            want[i] = binary_value(op, left[i], right[i]);
            terms[i] = fabs(left[i]) + fabs(right[i]) + fabs(want[i]);
        }
        k()->binary(op, y, a, b);
        ref_close(y, want, terms, ref_tolerance(a->dtype), "binary");
    }
    free(left);
    free(right);
    free(want);
    free(terms);
    td_free(y);
    td_free(a);
    td_free(b);
}

/* [rows, columns] whose rows, or columns, are all the same memory. */
static td_tensor *broadcast(td_dtype dtype, int64_t rows, int64_t columns, bool same_rows)
{
    td_tensor *base = ref_tensor(TD_SHAPE(same_rows ? columns : rows), dtype, TD_ROW_MAJOR, 4);
    int64_t stride[2] = { same_rows ? 0 : 1, same_rows ? 1 : 0 };
    td_tensor *t = td_slice_of_storage(base, 0, TD_SHAPE(rows, columns), stride);
    td_free(base);
    return t;
}

static void binary_cases(td_dtype dtype)
{
    td_shape s = TD_SHAPE(37, 19);
    check_binary(ref_tensor(s, dtype, TD_ROW_MAJOR, 1), ref_tensor(s, dtype, TD_ROW_MAJOR, 2));
    check_binary(ref_tensor(s, dtype, TD_ROW_MAJOR, 1), broadcast(dtype, 37, 19, true));
    check_binary(ref_tensor(s, dtype, TD_ROW_MAJOR, 1), broadcast(dtype, 37, 19, false));
    check_binary(broadcast(dtype, 37, 19, false), ref_tensor(s, dtype, TD_ROW_MAJOR, 1));
    check_binary(broadcast(dtype, 37, 19, true), broadcast(dtype, 37, 19, false));
    check_binary(ref_scattered(ref_tensor(s, dtype, TD_ROW_MAJOR, 1)),
                 ref_tensor(s, dtype, TD_FILTER, 2));
    check_binary(ref_expanded(s, dtype, 0.5), ref_tensor(s, dtype, TD_ROW_MAJOR, 2));
    check_binary(ref_tensor(TD_SCALAR, dtype, TD_ROW_MAJOR, 1),
                 ref_tensor(TD_SCALAR, dtype, TD_ROW_MAJOR, 2));
    check_binary(ref_tensor(TD_SHAPE(300, 200), dtype, TD_ROW_MAJOR, 1),
                 broadcast(dtype, 300, 200, true));
    check_binary(ref_tensor(TD_SHAPE(4, 3, 5, 6), dtype, TD_IMAGE, 1),
                 ref_tensor(TD_SHAPE(4, 3, 5, 6), dtype, TD_ROW_MAJOR, 2));
    check_binary(ref_tensor(s, TD_BF16, TD_ROW_MAJOR, 1), ref_tensor(s, TD_BF16, TD_ROW_MAJOR, 2));
}

static void test_binary(void **state)
{
    (void)state;
    ref_run(binary_cases);
}

/* The result may be one of the operands. */
static void in_place(td_dtype dtype)
{
    td_tensor *a = ref_tensor(TD_SHAPE(40000), dtype, TD_ROW_MAJOR, 1);
    td_tensor *b = ref_tensor(TD_SHAPE(40000), dtype, TD_ROW_MAJOR, 2);
    double *want = ref_values(a), *other = ref_values(b);
    for (int64_t i = 0; i < 40000; i++) {
        want[i] = (want[i] + other[i]) * 3.0;
    }
    k()->binary(TD_BINARY_ADD, a, a, b);
    k()->unary(TD_UNARY_MUL_SCALAR, a, a, 3.0);
    ref_close(a, want, NULL, 1e-5, "in place");
    free(want);
    free(other);
    td_free(a);
    td_free(b);
}

static void test_in_place(void **state)
{
    (void)state;
    ref_run(in_place);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fill),        cmocka_unit_test(test_copy_layouts),
        cmocka_unit_test(test_copy_dtypes), cmocka_unit_test(test_axpy),
        cmocka_unit_test(test_unary),       cmocka_unit_test(test_squares),
        cmocka_unit_test(test_unary_half),  cmocka_unit_test(test_halves),
        cmocka_unit_test(test_relu_of_nan), cmocka_unit_test(test_binary),
        cmocka_unit_test(test_in_place),
    };
    return cmocka_run_group_tests_name("kernels: elements", tests, NULL, NULL);
}
