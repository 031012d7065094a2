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

static const double q = 1.5; /* the second number of those that have two */

/* The value of each operation in double, as it is usually written. */
static double unary_value(td_unary_op op, double x, double p)
{
    switch (op) {
#define VALUE(name, value)                                                                         \
    case TD_UNARY_##name:                                                                          \
        return value;
        VALUE(neg, -x)
        VALUE(exp, exp(x))
        VALUE(log, log(x))
        VALUE(sqrt, sqrt(x))
        VALUE(pow, pow(x, p))
        VALUE(relu, isnan(x) ? x : fmax(x, 0.0))
        VALUE(sigmoid, 1.0 / (1.0 + exp(-x)))
        VALUE(tanh, tanh(x))
        VALUE(silu, x / (1.0 + exp(-x)))
        VALUE(gelu, 0.5 * x * erfc(-x / sqrt(2.0)))
        VALUE(add_scalar, x + p)
        VALUE(mul_scalar, x * p)
        VALUE(abs, fabs(x))
        VALUE(sign, x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : 0.0)
        VALUE(floor, floor(x))
        VALUE(ceil, ceil(x))
        VALUE(round, nearbyint(x))
        VALUE(reciprocal, 1.0 / x)
        VALUE(rsqrt, 1.0 / sqrt(x))
        VALUE(sin, sin(x))
        VALUE(cos, cos(x))
        VALUE(erf, erf(x))
        VALUE(clamp, fmin(fmax(x, p), q))
        VALUE(leaky_relu, x > 0.0 ? x : p * x)
        VALUE(huber, fabs(x) < p ? 0.5 * x * x : p * (fabs(x) - 0.5 * p))
        VALUE(elu, x > 0.0 ? x : p * expm1(x))
        VALUE(selu, 1.0507009873554804934193349852946 *
                        (x > 0.0 ? x : 1.6732632423543772848170429916717 * expm1(x)))
        VALUE(softplus, x > 0.0 ? x + log1p(exp(-x)) : log1p(exp(x)))
        VALUE(softsign, x / (1.0 + fabs(x)))
        VALUE(hardtanh, fmin(fmax(x, p), q))
        VALUE(relu6, fmin(fmax(x, 0.0), 6.0))
        VALUE(hardsigmoid, fmin(fmax(x + 3.0, 0.0), 6.0) / 6.0)
        VALUE(hardswish, x * fmin(fmax(x + 3.0, 0.0), 6.0) / 6.0)
        VALUE(mish, x * tanh(log1p(exp(x))))
        VALUE(gelu_tanh,
              0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x))))
#undef VALUE
    case TD_UNARY_COUNT:
        break;
    }
    return 0.0;
}

/* A slope by central differences of the above: good to about 1e-9. */
static double unary_slope(td_unary_op op, double x, double p)
{
    double h = 1e-5;
    if (op == TD_UNARY_relu) {
        return x > 0.0 ? 1.0 : 0.0;
    }
    return (unary_value(op, x - 2 * h, p) - 8 * unary_value(op, x - h, p) +
            8 * unary_value(op, x + h, p) - unary_value(op, x + 2 * h, p)) /
           (12 * h);
}

static bool wants_positive(td_unary_op op)
{
    return op == TD_UNARY_log || op == TD_UNARY_sqrt || op == TD_UNARY_pow ||
           op == TD_UNARY_reciprocal || op == TD_UNARY_rsqrt;
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
    k()->unary(op, y, x, p, q);
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
    k()->unary_grad(op, dx, dy, x, y, p, q, accumulate);
    ref_close(dx, want, terms, tolerance > 1e-8 ? tolerance : 1e-8, "unary_grad");
    free(from);
    free(g);
    free(want);
    free(terms);
}

static void unary_case(td_unary_op op, td_shape shape, td_dtype dtype, bool scattered)
{
    double p = op == TD_UNARY_pow ? 2.5 : 0.75;
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
    unary_case(TD_UNARY_relu, TD_SHAPE(40001), dtype, false);
    unary_case(TD_UNARY_tanh, TD_SHAPE(33000), dtype, false);
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
    check_unary(TD_UNARY_pow, x, y, 2.0);
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
        check_unary(TD_UNARY_relu, x, y, 0.0);
        check_unary_grad(TD_UNARY_relu, x, y, dy, dx, 0.0, true);
        check_unary(TD_UNARY_silu, x, y, 0.0);
        check_unary_grad(TD_UNARY_silu, x, y, dy, dx, 0.0, false);
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
    k()->unary(TD_UNARY_relu, y, x, 0.0, 0.0);
    td_read(y, to, TD_F32);
    assert_true(isnan(to[0]) && to[1] == 0.0f && to[2] == 2.0f);
    k()->unary_grad(TD_UNARY_relu, d, dy, NULL, y, 0.0, 0.0, false);
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
    case TD_BINARY_add:
        return a + b;
    case TD_BINARY_sub:
        return a - b;
    case TD_BINARY_mul:
        return a * b;
    case TD_BINARY_div:
        return a / b;
    case TD_BINARY_maximum:
        return fmax(a, b);
    case TD_BINARY_minimum:
        return fmin(a, b);
    case TD_BINARY_pow_tensor:
        return pow(a, b);
    case TD_BINARY_prelu:
        return a > 0.0 ? a : a * b;
    case TD_BINARY_COUNT:
        break;
    }
    return 0.0;
}

/* The slope by a (0) or b (1), by central differences. */
static double binary_slope(td_binary_op op, int input, double a, double b)
{
    if (op == TD_BINARY_maximum || op == TD_BINARY_minimum) { /* kinks */
        bool first = op == TD_BINARY_maximum ? a > b : a < b;
        return a == b ? 0.5 : first == (input == 0) ? 1.0 : 0.0;
    }
    if (op == TD_BINARY_prelu) {
        return a > 0.0 ? (input == 0 ? 1.0 : 0.0) : input == 0 ? b : a;
    }
    double h = 1e-5, slope = 0.0;
    for (int i = 1; i <= 2; i++) {
        double step = i * h, weight = i == 1 ? 8.0 : -1.0;
        slope += weight * (binary_value(op, input == 0 ? a + step : a, input == 1 ? b + step : b) -
                           binary_value(op, input == 0 ? a - step : a, input == 1 ? b - step : b));
    }
    return slope / (12.0 * h);
}

static void check_binary_op(td_binary_op op, const td_tensor *a, const td_tensor *b)
{
    int64_t n = td_numel(a);
    double *left = ref_values(a), *right = ref_values(b);
    double *want = ref_zeros(n), *terms = ref_zeros(n), tolerance = ref_tolerance(a->dtype);
    td_tensor *y = ref_filled(td_shape_of(a), a->dtype, TD_ROW_MAJOR, 9.0);
    for (int64_t i = 0; i < n; i++) {
        want[i] = binary_value(op, left[i], right[i]);
        terms[i] = fabs(left[i]) + fabs(right[i]) + fabs(want[i]);
    }
    k()->binary(op, y, a, b);
    ref_close(y, want, terms, tolerance, "binary");
    td_tensor *g = ref_tensor(td_shape_of(a), a->dtype, TD_ROW_MAJOR, 5);
    double *by = ref_values(g);
    for (int input = 0; input < 2; input++) {
        for (int64_t i = 0; i < n; i++) {
            want[i] = by[i] * binary_slope(op, input, left[i], right[i]);
            terms[i] = fabs(want[i]) + fabs(by[i]);
        }
        k()->binary_grad(op, input, y, g, a, b);
        ref_close(y, want, terms, tolerance > 1e-8 ? tolerance : 1e-8, "binary_grad");
    }
    free(by);
    td_free(g);
    td_free(y);
    free(left);
    free(right);
    free(want);
    free(terms);
}

/* Frees a and b. */
static void check_binary(td_tensor *a, td_tensor *b)
{
    for (td_binary_op op = 0; op < TD_BINARY_COUNT; op++) {
        if (op != TD_BINARY_div && op != TD_BINARY_pow_tensor) { /* are not of all numbers */
            check_binary_op(op, a, b);
        }
    }
    td_free(a);
    td_free(b);
}

/* Numbers from 0.5 to 2. */
static td_tensor *positive(td_tensor *t)
{
    double *values = ref_values(t);
    for (int64_t i = 0; i < td_numel(t); i++) {
        values[i] = 1.25 + 0.75 * values[i];
    }
    td_write(t, values, TD_F64);
    free(values);
    return t;
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
    static const td_binary_op of_positive[] = { TD_BINARY_div, TD_BINARY_pow_tensor };
    for (int i = 0; i < 2; i++) {
        td_tensor *a = positive(ref_tensor(s, dtype, TD_ROW_MAJOR, 1));
        td_tensor *b = positive(ref_tensor(s, dtype, TD_ROW_MAJOR, 2));
        check_binary_op(of_positive[i], a, b);
        td_free(a);
        td_free(b);
    }
}

/* bf16 and f16: the values, in float, rounded. */
static void test_binary_half(void **state)
{
    (void)state;
    static const td_dtype halves[] = { TD_BF16, TD_F16 };
    td_shape s = TD_SHAPE(37, 19);
    for (int i = 0; i < 2; i++) {
        td_tensor *a = ref_tensor(s, halves[i], TD_ROW_MAJOR, 1);
        td_tensor *b = ref_tensor(s, halves[i], TD_ROW_MAJOR, 2);
        check_binary_op(TD_BINARY_add, a, b);
        check_binary_op(TD_BINARY_mul, a, b);
        td_free(a);
        td_free(b);
    }
}

/* ---- integers, comparisons, choices ---- */

static int64_t integer_value(td_binary_op op, int64_t a, int64_t b)
{
    switch (op) {
    case TD_BINARY_add:
        return (int64_t)((uint64_t)a + (uint64_t)b);
    case TD_BINARY_sub:
        return (int64_t)((uint64_t)a - (uint64_t)b);
    case TD_BINARY_mul:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    case TD_BINARY_maximum:
        return a > b ? a : b;
    default:
        return a < b ? a : b;
    }
}

static void test_integers(void **state)
{
    (void)state;
    enum { N = 5 };
    const int64_t left[N] = { INT64_MAX, -7, 3, INT64_MIN, 200 }, right[N] = { 2, 5, 3, -1, 100 };
    td_tensor *a = td_from(left, TD_SHAPE(N), TD_I64, ref_device());
    td_tensor *b = td_from(right, TD_SHAPE(N), TD_I64, ref_device());
    td_tensor *y = td_zeros(TD_SHAPE(N), TD_I64, ref_device());
    for (td_binary_op op = 0; op < TD_BINARY_COUNT; op++) {
        int64_t got[N];
        if (!td_binary_of_integers(op)) {
            continue;
        }
        k()->binary(op, y, a, b);
        td_read(y, got, TD_I64);
        for (int i = 0; i < N; i++) {
            assert_true(got[i] == integer_value(op, left[i], right[i]));
        }
    }
    td_free(a);
    td_free(b);
    td_free(y);
    uint8_t bytes[2] = { 200, 3 }, sum[2];
    a = td_from(bytes, TD_SHAPE(2), TD_U8, ref_device());
    y = td_zeros(TD_SHAPE(2), TD_U8, ref_device());
    k()->binary(TD_BINARY_add, y, a, a);
    td_read(y, sum, TD_U8);
    assert_int_equal(sum[0], (uint8_t)400);
    td_free(a);
    td_free(y);
}

static bool compare_value(td_compare_op op, double a, double b)
{
    switch (op) {
    case TD_COMPARE_eq:
        return a == b;
    case TD_COMPARE_ne:
        return a != b;
    case TD_COMPARE_lt:
        return a < b;
    case TD_COMPARE_le:
        return a <= b;
    case TD_COMPARE_gt:
        return a > b;
    default:
        return a >= b;
    }
}

/* Values that are often equal, some NaN; and with them chosen by each other. */
static void check_compare(td_dtype dtype, int64_t rows, int64_t columns, bool scattered)
{
    int64_t n = rows * columns;
    double *left = ref_zeros(n), *right = ref_zeros(n), *got = ref_zeros(n);
    for (int64_t i = 0; i < n; i++) {
        left[i] = (double)(i * 7 % 5);
        right[i] = i % 11 == 0 && td_is_float(dtype) ? NAN : (double)(i * 3 % 5);
    }
    td_shape s = TD_SHAPE(rows, columns);
    td_tensor *a = td_zeros(s, dtype, ref_device()), *b = td_zeros(s, dtype, ref_device());
    td_tensor *y = td_zeros(s, TD_U8, ref_device()), *z = td_zeros(s, dtype, ref_device());
    td_write(a, left, TD_F64);
    td_write(b, right, TD_F64);
    a = scattered ? ref_scattered(a) : a;
    for (td_compare_op op = 0; op < TD_COMPARE_COUNT; op++) {
        k()->compare(op, y, a, b);
        td_read(y, got, TD_F64);
        for (int64_t i = 0; i < n; i++) {
            assert_true(got[i] == compare_value(op, left[i], right[i]));
        }
    }
    for (int nulls = 0; nulls < 3; nulls++) {
        k()->compare(TD_COMPARE_lt, y, a, b);
        k()->where(z, y, nulls == 1 ? NULL : a, nulls == 2 ? NULL : b);
        td_read(z, got, TD_F64);
        for (int64_t i = 0; i < n; i++) {
            double yes = nulls == 1 ? 0.0 : left[i], no = nulls == 2 ? 0.0 : right[i];
            double want = left[i] < right[i] ? yes : no;
            assert_true(got[i] == want || (isnan(got[i]) && isnan(want)));
        }
    }
    td_free(a);
    td_free(b);
    td_free(y);
    td_free(z);
    free(left);
    free(right);
    free(got);
}

static void compare_cases(td_dtype dtype)
{
    check_compare(dtype, 37, 19, false);
    check_compare(dtype, 37, 19, true);
    check_compare(dtype, 0, 3, false);
    check_compare(dtype, 200, 300, false);
}

static void test_compare(void **state)
{
    (void)state;
    ref_run(compare_cases);
    static const td_dtype others[] = { TD_BF16, TD_F16, TD_I64, TD_I32, TD_U8 };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        check_compare(others[i], 37, 19, i % 2 == 0);
    }
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
    k()->binary(TD_BINARY_add, a, a, b);
    k()->unary(TD_UNARY_mul_scalar, a, a, 3.0, 0.0);
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
        cmocka_unit_test(test_in_place),    cmocka_unit_test(test_binary_half),
        cmocka_unit_test(test_integers),    cmocka_unit_test(test_compare),
    };
    return cmocka_run_group_tests_name("kernels: elements", tests, NULL, NULL);
}
