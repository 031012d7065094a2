/* Maximum and average pooling, and their gradients. */
#include "tests/tensor/reference.h"

#include "tensor/kernels/kernels.h"
#include "tensor/extend.h"

#include <math.h>
#include <stdlib.h>

static const td_kernels *k(void)
{
    return ref_kernels();
}

typedef struct pool_case {
    int64_t n, c, h, w;
    td_pool2d_params p;
} pool_case;

static const pool_case cases[] = {
    { 3, 5, 8, 9, { { 2, 2 }, { 2, 2 }, { 0, 0 }, false, true } },
    { 2, 7, 16, 16, { { 3, 3 }, { 2, 2 }, { 1, 1 }, false, true } },
    { 2, 7, 9, 10, { { 3, 2 }, { 1, 2 }, { 1, 0 }, false, false } },
    { 9, 70, 7, 6, { { 3, 3 }, { 2, 2 }, { 1, 1 }, false, false } },
    { 3, 4, 5, 5, { { 2, 2 }, { 3, 3 }, { 0, 0 }, false, true } }, /* gaps between windows */
    { 1, 1, 1, 1, { { 1, 1 }, { 1, 1 }, { 0, 0 }, false, true } },
    { 2, 3, 4, 4, { { 4, 4 }, { 1, 1 }, { 2, 2 }, false, false } },
    { 40, 130, 4, 4, { { 2, 2 }, { 2, 2 }, { 0, 0 }, false, true } },
    { 0, 3, 4, 4, { { 2, 2 }, { 2, 2 }, { 0, 0 }, false, true } },
};
enum { CASES = sizeof cases / sizeof cases[0] };

static td_shape pooled(const pool_case *c)
{
    return TD_SHAPE(c->n, c->c, (c->h + 2 * c->p.pad[0] - c->p.kernel[0]) / c->p.stride[0] + 1,
                    (c->w + 2 * c->p.pad[1] - c->p.kernel[1]) / c->p.stride[1] + 1);
}

/* The element of x at place (kh, kw) of output i's window: row-major, or -1 in the padding. */
static int64_t tap(const pool_case *c, td_shape y, int64_t i, int kh, int kw)
{
    int64_t ox = i % y.dim[3], oy = i / y.dim[3] % y.dim[2], image = i / (y.dim[2] * y.dim[3]);
    int64_t h = oy * c->p.stride[0] - c->p.pad[0] + kh;
    int64_t w = ox * c->p.stride[1] - c->p.pad[1] + kw;
    return h < 0 || h >= c->h || w < 0 || w >= c->w ? -1 : (image * c->h + h) * c->w + w;
}

/* ---- maximum ---- */

static void max_reference(const pool_case *c, const double *x, double *y, double *index)
{
    td_shape shape = pooled(c);
    for (int64_t i = 0; i < td_shape_numel(shape); i++) {
        y[i] = -INFINITY;
        bool found = false;
        for (int place = 0; place < c->p.kernel[0] * c->p.kernel[1]; place++) {
            int64_t at = tap(c, shape, i, place / c->p.kernel[1], place % c->p.kernel[1]);
            if (at >= 0 && (!found || x[at] > y[i] || isnan(x[at]))) {
                y[i] = x[at];
                index[i] = place;
                found = true;
            }
        }
    }
}

/* Ties, which the first place wins, and a NaN here and there. */
static td_tensor *coarse(td_shape shape, td_dtype dtype, td_layout layout, bool nan)
{
    td_tensor *t = ref_tensor(shape, dtype, layout, 1);
    double *values = ref_values(t);
    for (int64_t i = 0; i < td_numel(t); i++) {
        values[i] = nan && i % 17 == 0 ? NAN : floor(values[i] * 4.0);
    }
    td_write(t, values, TD_F64);
    free(values);
    return t;
}

static void check_max(const pool_case *c, td_dtype dtype, td_layout layout, bool nan)
{
    td_shape shape = pooled(c);
    td_tensor *x = coarse(TD_SHAPE(c->n, c->c, c->h, c->w), dtype, layout, nan);
    td_tensor *y = ref_filled(shape, dtype, layout, 9.0);
    td_tensor *index = ref_filled(shape, TD_U8, layout, 200.0);
    double *from = ref_values(x), *want = ref_zeros(td_numel(y)), *at = ref_zeros(td_numel(y));
    max_reference(c, from, want, at);
    k()->max_pool2d(y, index, x, &c->p);
    ref_close(y, want, NULL, 0.0, "max_pool2d");
    ref_close(index, at, NULL, 0.0, "max_pool2d's index");
    k()->fill(y, 9.0);
    k()->max_pool2d(y, NULL, x, &c->p);
    ref_close(y, want, NULL, 0.0, "max_pool2d without index");
    free(from);
    free(want);
    free(at);
    td_free(x);
    td_free(y);
    td_free(index);
}

static void max_cases(td_dtype dtype)
{
    for (int i = 0; i < CASES; i++) {
        check_max(&cases[i], dtype, TD_IMAGE, false);
        check_max(&cases[i], dtype, TD_IMAGE, true);
        check_max(&cases[i], dtype, TD_ROW_MAJOR, false);
    }
}

static void test_max_pool(void **state)
{
    (void)state;
    ref_run(max_cases);
    ref_run_half(max_cases);
}

/* ---- gradients: of both kinds, through a table of weights ---- */

static double weight_of(const pool_case *c, td_shape y, int64_t i)
{
    int inside = 0;
    for (int place = 0; place < c->p.kernel[0] * c->p.kernel[1]; place++) {
        inside += tap(c, y, i, place / c->p.kernel[1], place % c->p.kernel[1]) >= 0;
    }
    /* Windows of these cases never reach beyond the padding. */
    return 1.0 / (c->p.count_include_pad ? c->p.kernel[0] * c->p.kernel[1] : inside);
}

/* want += gradient, terms += its size; index NULL: average. */
static void grad_reference(const pool_case *c, const double *dy, const double *index, double *want,
                           double *terms)
{
    td_shape shape = pooled(c);
    for (int64_t i = 0; i < td_shape_numel(shape); i++) {
        double weight = index ? 0.0 : weight_of(c, shape, i);
        for (int place = 0; place < c->p.kernel[0] * c->p.kernel[1]; place++) {
            int64_t at = tap(c, shape, i, place / c->p.kernel[1], place % c->p.kernel[1]);
            double share = index ? (index[i] == place ? 1.0 : 0.0) : weight;
            if (at >= 0) {
                want[at] += dy[i] * share;
                terms[at] += fabs(dy[i] * share);
            }
        }
    }
}

static void check_grad(const pool_case *c, td_dtype dtype, td_layout layout, bool max,
                       bool accumulate)
{
    td_shape shape = pooled(c), full = TD_SHAPE(c->n, c->c, c->h, c->w);
    td_tensor *x = coarse(full, dtype, layout, false);
    td_tensor *y = ref_filled(shape, dtype, layout, 0.0);
    td_tensor *index = ref_filled(shape, TD_U8, layout, 0.0);
    td_tensor *dy = ref_tensor(shape, dtype, layout, 5);
    td_tensor *dx = ref_tensor(full, dtype, layout, 6);
    dy = accumulate ? ref_scattered(dy) : dy;
    if (max) {
        k()->max_pool2d(y, index, x, &c->p);
    }
    double *g = ref_values(dy), *at = ref_values(index), *terms = ref_zeros(td_numel(x));
    double *want = accumulate ? ref_values(dx) : ref_zeros(td_numel(x));
    for (int64_t i = 0; i < td_numel(x); i++) {
        terms[i] = fabs(want[i]);
    }
    grad_reference(c, g, max ? at : NULL, want, terms);
    if (max) {
        k()->max_pool2d_grad(dx, dy, index, &c->p, accumulate);
    } else {
        k()->avg_pool2d_grad(dx, dy, &c->p, accumulate);
    }
    ref_close(dx, want, terms, ref_tolerance(dtype), max ? "max_pool2d_grad" : "avg_pool2d_grad");
    double *values[] = { g, at, terms, want };
    td_tensor *tensors[] = { x, y, index, dy, dx };
    for (int i = 0; i < 4; i++) {
        free(values[i]);
    }
    for (int i = 0; i < 5; i++) {
        td_free(tensors[i]);
    }
}

static void grad_cases(td_dtype dtype)
{
    for (int i = 0; i < CASES; i++) {
        for (int max = 0; max < 2; max++) {
            check_grad(&cases[i], dtype, TD_IMAGE, max != 0, false);
            check_grad(&cases[i], dtype, TD_IMAGE, max != 0, true);
            check_grad(&cases[i], dtype, TD_ROW_MAJOR, max != 0, false);
        }
    }
}

static void test_gradients(void **state)
{
    (void)state;
    ref_run(grad_cases);
    ref_run_half(grad_cases);
}

/* ---- average ---- */

static void check_avg(const pool_case *c, td_dtype dtype, td_layout layout)
{
    td_shape shape = pooled(c);
    td_tensor *x = ref_tensor(TD_SHAPE(c->n, c->c, c->h, c->w), dtype, layout, 1);
    td_tensor *y = ref_filled(shape, dtype, layout, 9.0);
    double *from = ref_values(x), *want = ref_zeros(td_numel(y)), *terms = ref_zeros(td_numel(y));
    for (int64_t i = 0; i < td_numel(y); i++) {
        for (int place = 0; place < c->p.kernel[0] * c->p.kernel[1]; place++) {
            int64_t at = tap(c, shape, i, place / c->p.kernel[1], place % c->p.kernel[1]);
            double share = at >= 0 ? from[at] * weight_of(c, shape, i) : 0.0;
            want[i] += share;
            terms[i] += fabs(share);
        }
    }
    k()->avg_pool2d(y, x, &c->p);
    ref_close(y, want, terms, ref_tolerance(dtype), "avg_pool2d");
    free(from);
    free(want);
    free(terms);
    td_free(x);
    td_free(y);
}

static void avg_cases(td_dtype dtype)
{
    static const pool_case whole = {
        2, 3, 17, 18, { { 17, 18 }, { 17, 18 }, { 0, 0 }, false, true }
    };
    for (int i = 0; i < CASES; i++) {
        check_avg(&cases[i], dtype, TD_IMAGE);
        check_avg(&cases[i], dtype, TD_ROW_MAJOR);
    }
    check_avg(&whole, dtype, TD_IMAGE); /* more places than are summed at once */
    check_grad(&whole, dtype, TD_IMAGE, false, false);
}

static void test_avg_pool(void **state)
{
    (void)state;
    ref_run(avg_cases);
    ref_run_half(avg_cases);
}

/* ---- 16 bits: added up in f32 and rounded once, however many places a window has ---- */

/* Both of positive numbers, whose partial sums are large. */
static void check_rounded_once(const pool_case *c, td_dtype dtype, bool grad)
{
    td_shape full = TD_SHAPE(c->n, c->c, c->h, c->w), shape = pooled(c);
    td_tensor *from = ref_tensor(grad ? shape : full, dtype, TD_IMAGE, 3);
    td_tensor *to = ref_filled(grad ? full : shape, dtype, TD_IMAGE, 0.5);
    double *values = ref_values(from), *want = grad ? ref_values(to) : ref_zeros(td_numel(to));
    double *terms = ref_zeros(td_numel(to));
    for (int64_t i = 0; i < td_numel(from); i++) {
        values[i] = fabs(values[i]);
    }
    td_write(from, values, TD_F64);
    if (grad) {
        grad_reference(c, values, NULL, want, terms);
        k()->avg_pool2d_grad(to, from, &c->p, true);
    } else {
        for (int64_t i = 0; i < td_numel(to); i++) {
            double weight = weight_of(c, shape, i);
            for (int place = 0; place < c->p.kernel[0] * c->p.kernel[1]; place++) {
                int64_t at = tap(c, shape, i, place / c->p.kernel[1], place % c->p.kernel[1]);
                want[i] += at >= 0 ? values[at] * weight : 0.0;
            }
        }
        k()->avg_pool2d(to, from, &c->p);
    }
    ref_close(to, want, NULL, 1.001 * ref_tolerance(dtype),
              grad ? "avg_pool2d_grad of many windows" : "avg_pool2d over many places");
    free(values);
    free(want);
    free(terms);
    td_free(from);
    td_free(to);
}

static void rounded_once_cases(td_dtype dtype)
{
    static const pool_case whole = {
        1, 3, 112, 112, { { 112, 112 }, { 1, 1 }, { 0, 0 }, false, true }
    };
    static const pool_case sliding = {
        1, 1, 80, 81, { { 40, 40 }, { 1, 1 }, { 0, 0 }, false, true }
    };
    check_rounded_once(&whole, dtype, false);
    check_rounded_once(&sliding, dtype, true);
}

static void test_rounded_once(void **state)
{
    (void)state;
    ref_run_half(rounded_once_cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_max_pool),
        cmocka_unit_test(test_avg_pool),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_rounded_once),
    };
    return cmocka_run_group_tests_name("kernels: pooling", tests, NULL, NULL);
}
