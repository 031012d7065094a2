/* Reductions: sums, means, maxima of any dimensions; argmax; sums of squares; finiteness. */
#include "tests/tensor/reference.h"

#include "tensor/kernels/kernels.h"
#include "tensor/extend.h"

#include <math.h>
#include <stdlib.h>

static const td_kernels *k(void)
{
    return ref_kernels();
}

/* Where row-major element i of `from` goes in `to`, whose reduced dimensions have size 1. */
static int64_t target(const td_tensor *from, const td_tensor *to, int64_t i)
{
    int64_t at = 0, step = 1;
    for (int d = from->ndim - 1; d >= 0; d--) {
        int64_t index = i % from->shape[d];
        i /= from->shape[d];
        at += (to->shape[d] == 1 ? 0 : index) * step;
        step *= to->shape[d];
    }
    return at;
}

static void reference(td_reduce_op op, const td_tensor *x, const td_tensor *y, double *want,
                      double *terms)
{
    double *from = ref_values(x);
    int64_t outputs = td_numel(y), n = td_numel(x);
    for (int64_t i = 0; i < outputs; i++) {
        want[i] = op == TD_REDUCE_MAX ? -INFINITY : 0.0;
        terms[i] = 0.0;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t at = target(x, y, i);
        want[at] =
            op == TD_REDUCE_MAX ? (from[i] > want[at] ? from[i] : want[at]) : want[at] + from[i];
        terms[at] += fabs(from[i]);
    }
    for (int64_t i = 0; i < outputs && op == TD_REDUCE_MEAN; i++) {
        want[i] /= (double)(n / outputs);
        terms[i] /= (double)(n / outputs);
    }
    free(from);
}

/* Reduces the dimensions whose bit is set in mask, in every way. */
static void check_reduce(const td_tensor *x, unsigned mask, td_layout layout)
{
    td_shape shape = td_shape_of(x);
    for (int d = 0; d < shape.ndim; d++) {
        shape.dim[d] = mask >> d & 1 ? 1 : shape.dim[d];
    }
    int64_t outputs = td_shape_numel(shape);
    double *want = ref_zeros(outputs), *terms = ref_zeros(outputs);
    td_dtype dtype = td_is_half(x->dtype) ? TD_F32 : x->dtype;
    td_tensor *y = ref_filled(shape, dtype, layout, 0.25);
    for (td_reduce_op op = TD_REDUCE_SUM; op <= TD_REDUCE_MAX; op++) {
        reference(op, x, y, want, terms);
        k()->reduce(op, y, x, false);
        ref_close(y, want, terms, op == TD_REDUCE_MAX ? 0.0 : ref_tolerance(dtype), "reduce");
    }
    k()->fill(y, 0.25);
    reference(TD_REDUCE_SUM, x, y, want, terms);
    for (int64_t i = 0; i < outputs; i++) {
        want[i] += 0.25;
        terms[i] += 0.25;
    }
    k()->reduce(TD_REDUCE_SUM, y, x, true);
    ref_close(y, want, terms, ref_tolerance(dtype), "reduce, accumulate");
    free(want);
    free(terms);
    td_free(y);
}

static void every_dimension(td_dtype dtype)
{
    td_tensor *tensors[] = {
        ref_tensor(TD_SHAPE(3, 5, 4, 7), dtype, TD_ROW_MAJOR, 1),
        ref_tensor(TD_SHAPE(3, 18, 4, 2), dtype, TD_IMAGE, 2),
        ref_scattered(ref_tensor(TD_SHAPE(3, 5, 4, 7), dtype, TD_ROW_MAJOR, 3)),
        ref_expanded(TD_SHAPE(3, 1, 4, 9), dtype, 0.5),
        ref_tensor(TD_SHAPE(1, 1, 1, 1), dtype, TD_ROW_MAJOR, 4),
    };
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        for (unsigned mask = 0; mask < 16; mask++) {
            check_reduce(tensors[i], mask, TD_ROW_MAJOR);
            check_reduce(tensors[i], mask, TD_IMAGE);
        }
        td_free(tensors[i]);
    }
}

static void test_every_dimension(void **state)
{
    (void)state;
    ref_run(every_dimension);
    ref_run_half(every_dimension);
}

static void large_case(td_shape shape, unsigned mask, td_dtype dtype, td_layout layout)
{
    td_tensor *x = ref_tensor(shape, dtype, layout, 5);
    check_reduce(x, mask, layout);
    td_free(x);
}

/* Many tasks: all elements, columns, rows, a global average pool, short rows. */
static void large(td_dtype dtype)
{
    large_case(TD_SHAPE(100003), 1, dtype, TD_ROW_MAJOR);
    large_case(TD_SHAPE(3001, 20), 1, dtype, TD_ROW_MAJOR);
    large_case(TD_SHAPE(3001, 20), 2, dtype, TD_ROW_MAJOR);
    large_case(TD_SHAPE(20, 3001), 2, dtype, TD_ROW_MAJOR);
    large_case(TD_SHAPE(20001, 3), 2, dtype, TD_ROW_MAJOR);
    large_case(TD_SHAPE(9, 90, 7, 8), 12, dtype, TD_IMAGE);
    large_case(TD_SHAPE(9, 90, 7, 8), 13, dtype, TD_IMAGE);
    large_case(TD_SHAPE(9, 90, 7, 8), 13, dtype, TD_ROW_MAJOR);
}

static void test_large(void **state)
{
    (void)state;
    ref_run(large);
    ref_run_half(large);
}

/* Nothing to add up, or nowhere to put it. */
static void empty(td_dtype dtype)
{
    td_tensor *x = ref_tensor(TD_SHAPE(3, 0), dtype, TD_ROW_MAJOR, 1);
    td_tensor *y = ref_filled(TD_SHAPE(3, 1), dtype, TD_ROW_MAJOR, 5.0);
    td_tensor *none = ref_filled(TD_SHAPE(1, 0), dtype, TD_ROW_MAJOR, 5.0);
    k()->reduce(TD_REDUCE_SUM, none, x, false);
    k()->reduce(TD_REDUCE_SUM, y, x, true);
    ref_close(y, (double[]){ 5.0, 5.0, 5.0 }, NULL, 0.0, "empty sum, accumulate");
    k()->reduce(TD_REDUCE_SUM, y, x, false);
    ref_close(y, (double[]){ 0.0, 0.0, 0.0 }, NULL, 0.0, "empty sum");
    k()->reduce(TD_REDUCE_MEAN, y, x, false);
    ref_close(y, (double[]){ NAN, NAN, NAN }, NULL, 0.0, "empty mean");
    assert_true(k()->sum_of_squares(x) == 0.0);
    assert_true(k()->all_finite(x));
    td_free(x);
    td_free(y);
    td_free(none);
}

static void test_empty(void **state)
{
    (void)state;
    ref_run(empty);
}

/* A NaN anywhere is the maximum, wherever it stands in a run. */
static void nan_is_largest(td_dtype dtype)
{
    for (int64_t place = 0; place < 70; place++) {
        td_tensor *x = ref_tensor(TD_SHAPE(2, 70), dtype, TD_ROW_MAJOR, 1);
        td_set(x, (int64_t[]){ 1, place }, NAN);
        td_tensor *rows = ref_filled(TD_SHAPE(2, 1), dtype, TD_ROW_MAJOR, 0.0);
        td_tensor *columns = ref_filled(TD_SHAPE(1, 70), dtype, TD_ROW_MAJOR, 0.0);
        k()->reduce(TD_REDUCE_MAX, rows, x, false);
        k()->reduce(TD_REDUCE_MAX, columns, x, false);
        assert_true(isnan(td_get(rows, (int64_t[]){ 1, 0 })));
        assert_false(isnan(td_get(rows, (int64_t[]){ 0, 0 })));
        for (int64_t c = 0; c < 70; c++) {
            assert_int_equal(isnan(td_get(columns, (int64_t[]){ 0, c })) != 0, c == place);
        }
        td_tensor *index = td_new(TD_SHAPE(2, 1), TD_I64, ref_device());
        k()->argmax(index, x, 1);
        assert_int_equal((int64_t)td_get(index, (int64_t[]){ 1, 0 }), place);
        td_free(x);
        td_free(rows);
        td_free(columns);
        td_free(index);
    }
}

static void test_nan_is_largest(void **state)
{
    (void)state;
    ref_run(nan_is_largest);
}

/* ---- argmax ---- */

static void check_argmax(td_tensor *x, int dim)
{
    td_shape shape = td_shape_of(x);
    int64_t n = shape.dim[dim], inner = 1;
    shape.dim[dim] = 1;
    for (int d = dim + 1; d < shape.ndim; d++) {
        inner *= shape.dim[d];
    }
    td_tensor *index = td_new(shape, TD_I64, ref_device());
    double *values = ref_values(x), *want = ref_zeros(td_numel(index));
    for (int64_t i = 0; i < td_numel(index); i++) {
        const double *first = values + i / inner * n * inner + i % inner;
        int64_t best = 0;
        for (int64_t j = 1; j < n; j++) {
            best = first[j * inner] > first[best * inner] ? j : best;
        }
        want[i] = (double)best;
    }
    k()->argmax(index, x, dim);
    ref_close(index, want, NULL, 0.0, "argmax");
    free(values);
    free(want);
    td_free(index);
    td_free(x);
}

static void argmax_cases(td_dtype dtype)
{
    for (int dim = 0; dim < 4; dim++) {
        check_argmax(ref_tensor(TD_SHAPE(3, 5, 4, 7), dtype, TD_ROW_MAJOR, 1), dim);
        check_argmax(ref_tensor(TD_SHAPE(3, 5, 4, 7), dtype, TD_IMAGE, 1), dim);
        check_argmax(ref_scattered(ref_indices(TD_SHAPE(3, 5, 4, 7), 4, 1)), dim);
    }
    check_argmax(ref_tensor(TD_SHAPE(5000, 10), dtype, TD_ROW_MAJOR, 1), 1);
    td_dtype integers[] = { TD_I32, TD_U8 };
    for (int i = 0; i < 2; i++) {
        td_tensor *index = ref_indices(TD_SHAPE(6, 50), 9, 2);
        check_argmax(td_clone_as(index, integers[i], ref_device()), 1);
        td_free(index);
    }
}

static void test_argmax(void **state)
{
    (void)state;
    ref_run(argmax_cases);
}

/* ---- sums of squares, finiteness ---- */

static void check_squares(td_tensor *x)
{
    double *values = ref_values(x), want = 0.0;
    for (int64_t i = 0; i < td_numel(x); i++) {
        want += values[i] * values[i];
    }
    double got = k()->sum_of_squares(x);
    ref_digest(&got, sizeof got);
    assert_true(fabs(got - want) <= 1e-12 * want);
    free(values);
    td_free(x);
}

static void squares_cases(td_dtype dtype)
{
    check_squares(ref_tensor(TD_SCALAR, dtype, TD_ROW_MAJOR, 1));
    check_squares(ref_tensor(TD_SHAPE(31), dtype, TD_ROW_MAJOR, 1));
    check_squares(ref_tensor(TD_SHAPE(123457), dtype, TD_ROW_MAJOR, 1));
    check_squares(ref_tensor(TD_SHAPE(5, 6, 7, 8), dtype, TD_IMAGE, 1));
    check_squares(ref_scattered(ref_tensor(TD_SHAPE(9, 50, 3), dtype, TD_ROW_MAJOR, 1)));
    check_squares(ref_expanded(TD_SHAPE(300, 300), dtype, 0.5));
}

static void test_sum_of_squares(void **state)
{
    (void)state;
    ref_run(squares_cases);
}

/* Of two tensors, where a device clips by itself: their norm, and what is left, to the bit. */
static void check_clip(td_tensor *x, td_tensor *y, double max_norm)
{
    td_tensor *both[] = { x, y };
    td_tensor *want[] = { td_clone(x), td_clone(y) };
    double norm = 0.0, expected = sqrt(k()->sum_of_squares(x) + k()->sum_of_squares(y));
    double scale = max_norm / (expected + 1e-6);
    k()->clip(both, 2, NULL, max_norm, &norm);
    assert_true(norm == expected);
    for (int i = 0; i < 2; i++) {
        if (scale < 1.0) {
            k()->unary(TD_UNARY_mul_scalar, want[i], want[i], scale, 0.0);
        }
        double *is = ref_values(both[i]), *was = ref_values(want[i]);
        assert_memory_equal(is, was, (size_t)td_numel(both[i]) * sizeof *is);
        free(is);
        free(was);
        td_free(both[i]);
        td_free(want[i]);
    }
}

static void clip_cases(td_dtype dtype)
{
    const double limits[] = { 0.0, 0.37, 1e9 };
    for (int i = 0; i < 3; i++) {
        check_clip(ref_tensor(TD_SHAPE(31), dtype, TD_ROW_MAJOR, 1),
                   ref_tensor(TD_SHAPE(2, 3, 4, 5), dtype, TD_IMAGE, 2), limits[i]);
    }
}

static void test_clip(void **state)
{
    (void)state;
    if (k()->clip == NULL) {
        skip();
    }
    ref_run(clip_cases);
}

static void check_finite(td_dtype dtype, int64_t n, bool scattered)
{
    static const double bad[] = { INFINITY, -INFINITY, NAN };
    td_tensor *x = ref_tensor(TD_SHAPE(2, n), dtype, TD_ROW_MAJOR, 1);
    x = scattered ? ref_scattered(x) : x;
    assert_true(k()->all_finite(x));
    for (int i = 0; i < 3; i++) {
        int64_t at[2] = { 1, (n - 1) * i / 2 };
        double old = td_get(x, at);
        td_set(x, at, bad[i]);
        assert_false(k()->all_finite(x));
        td_set(x, at, old);
    }
    assert_true(k()->all_finite(x));
    td_free(x);
}

static void finite_cases(td_dtype dtype)
{
    static const td_dtype halves[] = { TD_BF16, TD_F16 };
    check_finite(dtype, 1, false);
    check_finite(dtype, 50, true);
    check_finite(dtype, 20001, false);
    for (int i = 0; i < 2; i++) {
        check_finite(halves[i], 37, false);
        check_finite(halves[i], 37, true);
    }
}

static void test_all_finite(void **state)
{
    (void)state;
    ref_run(finite_cases);
}

/* Scaled in place, and what was not finite is noticed; a flag that is set stays set. */
static void check_unscale(td_tensor *x, double bad)
{
    int64_t n = td_numel(x);
    td_tensor *found = td_zeros(TD_SHAPE(1), TD_I32, ref_device());
    td_tensor *scale = td_full(TD_SHAPE(TD_SCALE_NUMBERS), 8.0, TD_F64, ref_device());
    double *want = ref_values(x);
    for (int64_t i = 0; i < n; i++) {
        want[i] *= 0.125;
    }
    k()->unscale(x, scale, found);
    ref_close(x, want, NULL, 0.0, "unscale");
    assert_true(td_item(found) == 0);
    if (n > 0) {
        int64_t last[2] = { x->shape[0] - 1, x->shape[1] - 1 };
        td_set(x, last, bad);
        k()->unscale(x, scale, found);
        assert_true(td_item(found) == 1 && !isfinite(td_get(x, last)));
        td_fill_(x, 1.0);
        k()->unscale(x, scale, found);
        assert_true(td_item(found) == 1);
    }
    free(want);
    td_free(found);
    td_free(scale);
    td_free(x);
}

static void unscale_cases(td_dtype dtype)
{
    check_unscale(ref_tensor(TD_SHAPE(1, 1), dtype, TD_ROW_MAJOR, 1), NAN);
    check_unscale(ref_tensor(TD_SHAPE(0, 3), dtype, TD_ROW_MAJOR, 1), NAN);
    check_unscale(ref_tensor(TD_SHAPE(7, 5003), dtype, TD_ROW_MAJOR, 2), INFINITY);
    check_unscale(ref_scattered(ref_tensor(TD_SHAPE(9, 31), dtype, TD_ROW_MAJOR, 3)), -INFINITY);
}

static void test_unscale(void **state)
{
    (void)state;
    ref_run(unscale_cases);
}

static void test_adapt_scale(void **state)
{
    (void)state;
    static const struct {
        int found;
        double after[TD_SCALE_NUMBERS];
    } steps[] = {
        { 0, { 8, 1, 0, TD_SCALE_TAKEN, 0 } },   { 1, { 4, 0, 1, TD_SCALE_SKIPPED, 1 } },
        { 1, { 2, 0, 2, TD_SCALE_SKIPPED, 2 } }, { 1, { 2, 0, 3, TD_SCALE_HOPELESS, 3 } },
        { 0, { 2, 1, 3, TD_SCALE_TAKEN, 3 } },   { 0, { 8, 0, 3, TD_SCALE_TAKEN, 3 } },
        { 0, { 8, 1, 3, TD_SCALE_TAKEN, 3 } },   { 0, { 16, 0, 3, TD_SCALE_TAKEN, 3 } },
    };
    const td_scale_rule rule = { 4.0, 0.5, 2.0, 16.0, 2, true };
    double numbers[TD_SCALE_NUMBERS] = { 8 };
    td_tensor *scale = td_from(numbers, TD_SHAPE(TD_SCALE_NUMBERS), TD_F64, ref_device());
    td_tensor *found = td_zeros(TD_SHAPE(1), TD_I32, ref_device());
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        td_fill_(found, steps[i].found);
        k()->adapt_scale(scale, found, &rule);
        td_read(scale, numbers, TD_F64);
        assert_memory_equal(numbers, steps[i].after, sizeof numbers);
    }
    td_free(scale);
    td_free(found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_dimension),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_nan_is_largest),
        cmocka_unit_test(test_argmax),
        cmocka_unit_test(test_sum_of_squares),
        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_all_finite),
        cmocka_unit_test(test_unscale),
        cmocka_unit_test(test_adapt_scale),
    };
    return cmocka_run_group_tests_name("kernels: reductions", tests, NULL, NULL);
}
