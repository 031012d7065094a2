/* Kernels that work element by element: fill, axpy, operations on one and two tensors and their
 * gradients, comparisons; on tensors that lie in memory in every way. */
#include "tests/tensor/reference.h"

#include "tensor/extend.h"
#include "tensor/kernels/kernels.h"

#include <math.h>
#include <stdlib.h>

static const td_kernels *k(void)
{
    return ref_kernels();
}

/* ---- what a case makes, until its end ---- */

enum { MOST_MADE = 16 };
static td_tensor *tensors[MOST_MADE];
static double *arrays[MOST_MADE];
static int tensor_count, array_count;

static td_tensor *keep(td_tensor *t)
{
    assert_true(t != NULL && tensor_count < MOST_MADE);
    return tensors[tensor_count++] = t;
}

static double *keep_array(double *values)
{
    assert_true(values != NULL && array_count < MOST_MADE);
    return arrays[array_count++] = values;
}

/* t's elements, row-major. */
static double *values_of(const td_tensor *t)
{
    return keep_array(ref_values(t));
}

static double *zeros(int64_t n)
{
    return keep_array(ref_zeros(n));
}

static void end_case(void)
{
    while (tensor_count > 0) {
        td_free(tensors[--tensor_count]);
    }
    while (array_count > 0) {
        free(arrays[--array_count]);
    }
}

/* ---- how tensors lie in memory ---- */

/* The layouts, then: all strides odd; all elements are one; all rows, or columns, of a matrix are
 * one. */
typedef enum place { PLAIN, IMAGE, FILTER, SCATTERED, ONE, SAME_ROWS, SAME_COLUMNS } place;

static const struct {
    td_shape shape;
    place a, b;
} places[] = {
    { { 0, { 0 } }, PLAIN, PLAIN },
    { { 1, { 0 } }, PLAIN, PLAIN },
    { { 3, { 3, 0, 2 } }, PLAIN, PLAIN },
    { { 2, { 37, 19 } }, PLAIN, PLAIN },
    { { 2, { 37, 19 } }, PLAIN, SAME_ROWS },
    { { 2, { 37, 19 } }, PLAIN, SAME_COLUMNS },
    { { 2, { 37, 19 } }, PLAIN, ONE },
    { { 2, { 37, 19 } }, SCATTERED, FILTER },
    { { 4, { 4, 3, 5, 6 } }, IMAGE, PLAIN },
    { { 3, { 3, 13, 5 } }, SCATTERED, SCATTERED },
    { { 2, { 300, 200 } }, PLAIN, SAME_ROWS }, /* for several threads */
    /* a is only read: */
    { { 2, { 37, 19 } }, SAME_COLUMNS, PLAIN },
    { { 2, { 37, 19 } }, SAME_ROWS, SAME_COLUMNS },
    { { 2, { 37, 19 } }, ONE, PLAIN },
};
enum { PLACES = sizeof places / sizeof *places, WRITABLE = PLACES - 3, LARGE = WRITABLE - 1 };

/* Numbers from low to high, the i-th from the seed and i. */
static td_tensor *make(td_shape shape, place where, td_dtype dtype, uint64_t seed, double low,
                       double high)
{
    td_shape own = shape;
    if (where == ONE) {
        return keep(ref_expanded(shape, dtype, low + 0.75 * (high - low)));
    }
    if (where == SAME_ROWS || where == SAME_COLUMNS) {
        own = TD_SHAPE(shape.dim[where == SAME_ROWS ? 1 : 0]);
    }
    td_layout layout = where <= FILTER ? (td_layout)where : TD_ROW_MAJOR;
    td_tensor *t = td_new_layout(own, dtype, layout, ref_device());
    assert_non_null(t);
    double *values = ref_zeros(td_numel(t));
    for (int64_t i = 0; i < td_numel(t); i++) {
        values[i] = low + (ref_random(seed, i) + 1.0) / 2.0 * (high - low);
    }
    td_write(t, values, TD_F64);
    free(values);
    t = keep(where == SCATTERED ? ref_scattered(t) : t);
    if (own.ndim == shape.ndim) {
        return t;
    }
    int64_t stride[2] = { where == SAME_ROWS ? 0 : 1, where == SAME_ROWS ? 1 : 0 };
    return keep(td_slice_of_storage(t, 0, shape, stride));
}

/* All dtypes of floats. */
static void run(void (*body)(td_dtype dtype))
{
    ref_run(body);
    ref_run_half(body);
    body(TD_F16);
}

/* ---- fill, axpy ---- */

static void fill_cases(td_dtype dtype)
{
    for (int i = 0; i < WRITABLE; i++) {
        td_tensor *t = make(places[i].shape, places[i].a, dtype, 1, 0.0, 5.0);
        double *want = zeros(td_numel(t));
        for (int64_t j = 0; j < td_numel(t); j++) {
            want[j] = 6.0;
        }
        k()->fill(t, 6.0);
        ref_close(t, want, NULL, 0.0, "fill");
        end_case();
    }
}

static void test_fill(void **state)
{
    (void)state;
    run(fill_cases);
    fill_cases(TD_U8);
    fill_cases(TD_I64);
}

static void check_axpy(td_tensor *y, double alpha, const td_tensor *x)
{
    double *want = values_of(y), *from = values_of(x), *terms = zeros(td_numel(y));
    for (int64_t i = 0; i < td_numel(y); i++) {
        terms[i] = fabs(want[i]) + fabs(alpha * from[i]);
        want[i] += alpha * from[i];
    }
    k()->axpy(y, alpha, x);
    ref_close(y, want, terms, ref_tolerance(y->dtype), "axpy");
    end_case();
}

static void axpy_cases(td_dtype dtype)
{
    static const double alphas[] = { -0.75, 1.0, 0.1 };
    for (int i = 0; i < WRITABLE; i++) {
        td_tensor *y = make(places[i].shape, places[i].a, dtype, 1, -1.0, 1.0);
        check_axpy(y, alphas[i % 3], make(places[i].shape, places[i].b, dtype, 2, -1.0, 1.0));
    }
}

static void test_axpy(void **state)
{
    (void)state;
    run(axpy_cases);
    check_axpy(keep(ref_indices(TD_SHAPE(40), 100, 1)), -3.0,
               keep(ref_indices(TD_SHAPE(40), 100, 2)));
}

/* ---- of one tensor ---- */

static const double q = 1.503; /* the second number of those that have two; no 16-bit float */

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
    switch (op) {
    case TD_UNARY_relu:
        return x > 0.0 ? 1.0 : 0.0;
    case TD_UNARY_sign: /* steps, on which 16-bit floats lie */
    case TD_UNARY_floor:
    case TD_UNARY_ceil:
    case TD_UNARY_round:
        return 0.0;
    default:
        return (unary_value(op, x - 2 * h, p) - 8 * unary_value(op, x - h, p) +
                8 * unary_value(op, x + h, p) - unary_value(op, x + 2 * h, p)) /
               (12 * h);
    }
}

static void check_unary(td_unary_op op, const td_tensor *x, td_tensor *y, double p)
{
    double *from = values_of(x), *want = zeros(td_numel(x)), *terms = zeros(td_numel(x));
    for (int64_t i = 0; i < td_numel(x); i++) {
        want[i] = unary_value(op, from[i], p);
        terms[i] = fabs(want[i]) + fabs(from[i]) + fabs(p);
    }
    k()->unary(op, y, x, p, q);
    ref_close(y, want, terms, ref_tolerance(x->dtype), "unary");
}

/* A slope may read y, which is rounded, and to the third power. */
static void check_unary_grad(td_unary_op op, const td_tensor *x, const td_tensor *y,
                             const td_tensor *dy, td_tensor *dx, double p, bool accumulate)
{
    int64_t n = td_numel(x);
    double *from = values_of(x), *g = values_of(dy), *want = values_of(dx), *terms = zeros(n);
    double tolerance = ref_tolerance(x->dtype) * (td_is_half(x->dtype) ? 4.0 : 1.0);
    for (int64_t i = 0; i < n; i++) {
        double result = g[i] * unary_slope(op, from[i], p);
        terms[i] = fabs(want[i]) + fabs(result) + fabs(g[i]);
        want[i] = accumulate ? want[i] + result : result;
    }
    k()->unary_grad(op, dx, dy, x, y, p, q, accumulate);
    ref_close(dx, want, terms, fmax(tolerance, 1e-8), "unary_grad");
}

static void unary_case(td_unary_op op, int i, td_dtype dtype, double p)
{
    bool positive = op == TD_UNARY_log || op == TD_UNARY_sqrt || op == TD_UNARY_reciprocal ||
                    op == TD_UNARY_rsqrt || (op == TD_UNARY_pow && p != 2.0);
    td_shape s = places[i].shape;
    td_tensor *x = make(s, places[i].a, dtype, 7, positive ? 0.25 : -2.9, positive ? 1.25 : 2.9);
    td_tensor *dy = make(s, places[i].b, dtype, 8, -1.0, 1.0);
    td_tensor *y = make(s, PLAIN, dtype, 9, 9.0, 9.0), *dx = make(s, PLAIN, dtype, 9, -1.0, 1.0);
    check_unary(op, x, y, p);
    check_unary_grad(op, x, y, dy, dx, p, true);
    check_unary_grad(op, x, y, dy, dx, p, false);
    end_case();
}

static void unary_cases(td_dtype dtype)
{
    for (int i = 0; i < PLACES; i++) {
        for (td_unary_op op = 0; op < TD_UNARY_COUNT && i != LARGE; op++) {
            unary_case(op, i, dtype, op == TD_UNARY_pow ? 2.5 : 0.7512);
        }
        unary_case(TD_UNARY_pow, i, dtype, 2.0);
    }
    unary_case(TD_UNARY_tanh, LARGE, dtype, 0.0);
}

static void test_unary(void **state)
{
    (void)state;
    run(unary_cases);
}

/* ---- of two tensors ---- */

static double binary_value(td_binary_op op, double a, double b)
{
    switch (op) {
#define VALUE(name, value)                                                                         \
    case TD_BINARY_##name:                                                                         \
        return value;
        VALUE(add, a + b)
        VALUE(sub, a - b)
        VALUE(mul, a * b)
        VALUE(div, a / b)
        VALUE(maximum, fmax(a, b))
        VALUE(minimum, fmin(a, b))
        VALUE(pow_tensor, pow(a, b))
        VALUE(prelu, a > 0.0 ? a : a * b)
        VALUE(swiglu, a / (1.0 + exp(-a)) * b)
#undef VALUE
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

static void binary_case(td_binary_op op, int i, td_dtype dtype)
{
    bool positive = op == TD_BINARY_div || op == TD_BINARY_pow_tensor;
    double low = positive ? 0.5 : -1.0, high = positive ? 2.0 : 1.0;
    td_shape s = places[i].shape;
    td_tensor *a = make(s, places[i].a, dtype, 1, low, high);
    td_tensor *b = make(s, places[i].b, dtype, 2, low, high);
    td_tensor *g = make(s, PLAIN, dtype, 5, -1.0, 1.0), *y = make(s, PLAIN, dtype, 5, 9.0, 9.0);
    int64_t n = td_numel(a);
    double *left = values_of(a), *right = values_of(b), *by = values_of(g);
    double *want = zeros(n), *terms = zeros(n), tolerance = ref_tolerance(dtype);
    for (int64_t j = 0; j < n; j++) {
        want[j] = binary_value(op, left[j], right[j]);
        terms[j] = fabs(left[j]) + fabs(right[j]) + fabs(want[j]);
    }
    k()->binary(op, y, a, b);
    ref_close(y, want, terms, tolerance, "binary");
    for (int input = 0; input < 2; input++) {
        for (int64_t j = 0; j < n; j++) {
            want[j] = by[j] * binary_slope(op, input, left[j], right[j]);
            terms[j] = fabs(want[j]) + fabs(by[j]);
        }
        k()->binary_grad(op, input, y, g, a, b);
        ref_close(y, want, terms, fmax(tolerance, 1e-8), "binary_grad");
    }
    end_case();
}

static void binary_cases(td_dtype dtype)
{
    for (int i = 0; i < PLACES; i++) {
        for (td_binary_op op = 0; op < TD_BINARY_COUNT; op++) {
            binary_case(op, i, dtype);
        }
    }
}

static void test_binary(void **state)
{
    (void)state;
    run(binary_cases);
}

/* The result may be one of the operands. */
static void in_place(td_dtype dtype)
{
    td_tensor *a = make(TD_SHAPE(40000), PLAIN, dtype, 1, -1.0, 1.0);
    double *want = values_of(a), *other;
    td_tensor *b = make(TD_SHAPE(40000), PLAIN, dtype, 2, -1.0, 1.0);
    other = values_of(b);
    for (int64_t i = 0; i < 40000; i++) {
        want[i] = (want[i] + other[i]) * 3.0;
    }
    k()->binary(TD_BINARY_add, a, a, b);
    k()->unary(TD_UNARY_mul_scalar, a, a, 3.0, 0.0);
    ref_close(a, want, NULL, 1e-5, "in place");
    end_case();
}

static void test_in_place(void **state)
{
    (void)state;
    ref_run(in_place);
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
    const bool values[TD_COMPARE_COUNT] = {
        [TD_COMPARE_eq] = a == b,
        [TD_COMPARE_ne] = a != b,
        [TD_COMPARE_lt] = a<b, [TD_COMPARE_le] = a <= b, [TD_COMPARE_gt] = a> b,
        [TD_COMPARE_ge] = a >= b,
    };
    return values[op];
}

/* Values that are often equal, some NaN; and chosen by each other: a or 0, b or 0. */
static void check_compare(td_dtype dtype, td_shape s, place where)
{
    int64_t n = td_shape_numel(s);
    double *left = zeros(n), *right = zeros(n), *got = zeros(n);
    for (int64_t i = 0; i < n; i++) {
        left[i] = (double)(i * 7 % 5);
        right[i] = i % 11 == 0 && td_is_float(dtype) ? NAN : (double)(i * 3 % 5);
    }
    td_tensor *a = make(s, where, dtype, 1, 0.0, 0.0), *b = make(s, PLAIN, dtype, 1, 0.0, 0.0);
    td_tensor *y = make(s, PLAIN, TD_U8, 1, 0.0, 0.0), *z = make(s, PLAIN, dtype, 1, 0.0, 0.0);
    td_write(a, left, TD_F64);
    td_write(b, right, TD_F64);
    for (td_compare_op op = 0; op < TD_COMPARE_COUNT; op++) {
        k()->compare(op, y, a, b);
        td_read(y, got, TD_F64);
        for (int64_t i = 0; i < n; i++) {
            assert_true(got[i] == compare_value(op, left[i], right[i]));
        }
    }
    k()->compare(TD_COMPARE_lt, y, a, b);
    for (int nulls = 0; nulls < 3; nulls++) {
        k()->where(z, y, nulls == 1 ? NULL : a, nulls == 2 ? NULL : b);
        td_read(z, got, TD_F64);
        for (int64_t i = 0; i < n; i++) {
            double yes = nulls == 1 ? 0.0 : left[i], no = nulls == 2 ? 0.0 : right[i];
            double want = left[i] < right[i] ? yes : no;
            assert_true(got[i] == want || (isnan(got[i]) && isnan(want)));
        }
    }
    end_case();
}

static void compare_cases(td_dtype dtype)
{
    for (int i = 0; i < WRITABLE; i++) {
        check_compare(dtype, places[i].shape, places[i].a);
    }
}

static void test_compare(void **state)
{
    (void)state;
    run(compare_cases);
    compare_cases(TD_I64);
    compare_cases(TD_I32);
    compare_cases(TD_U8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fill),     cmocka_unit_test(test_axpy),
        cmocka_unit_test(test_unary),    cmocka_unit_test(test_binary),
        cmocka_unit_test(test_in_place), cmocka_unit_test(test_integers),
        cmocka_unit_test(test_compare),
    };
    return cmocka_run_group_tests_name("kernels: elements", tests, NULL, NULL);
}
