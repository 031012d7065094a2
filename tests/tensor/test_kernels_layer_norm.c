/* Layer and RMS normalisation, and their gradients. */
#include "tests/tensor/reference.h"

#include "tensor/kernels/kernels.h"
#include "tensor/extend.h"

#include <math.h>
#include <stdlib.h>

static const td_kernels *k(void)
{
    return ref_kernels();
}

/* What the gradients should be, from sums of known terms. */
typedef struct grad_reference {
    double *dx, *dweight, *dbias;
    double *dx_terms, *dweight_terms, *dbias_terms;
} grad_reference;

/* got held 0.5 everywhere before. */
static void check_grad(td_tensor *got, double *want, double *terms, bool accumulate, double tol,
                       const char *what)
{
    for (int64_t i = 0; i < td_numel(got) && accumulate; i++) {
        want[i] += 0.5;
        terms[i] += 0.5;
    }
    ref_close(got, want, terms, tol, what);
    td_free(got);
    free(want);
    free(terms);
}

typedef struct layer_values {
    int64_t rows, d;
    bool rms;                       /* the mean counts as 0 */
    double *x, *weight, *bias, *dy; /* weight and bias may be NULL */
    double *mean, *inv_std;
} layer_values;

static double at(const double *values, int64_t i, double otherwise)
{
    return values ? values[i] : otherwise;
}

static void layer_statistics(layer_values *v)
{
    v->mean = ref_zeros(v->rows);
    v->inv_std = ref_zeros(v->rows);
    for (int64_t r = 0; r < v->rows; r++) {
        double m2 = 0.0;
        for (int64_t i = 0; i < v->d && !v->rms; i++) {
            v->mean[r] += v->x[r * v->d + i] / (double)v->d;
        }
        for (int64_t i = 0; i < v->d; i++) {
            m2 += pow(v->x[r * v->d + i] - v->mean[r], 2.0);
        }
        v->inv_std[r] = 1.0 / sqrt(m2 / (double)v->d + 1e-5);
    }
}

static double layer_hat(const layer_values *v, int64_t r, int64_t i)
{
    return (v->x[r * v->d + i] - v->mean[r]) * v->inv_std[r];
}

static void check_layer(const layer_values *v, const td_tensor *x, const td_tensor *weight,
                        const td_tensor *bias, td_tensor *mean, td_tensor *inv_std)
{
    double *want = ref_zeros(v->rows * v->d), *terms = ref_zeros(v->rows * v->d);
    for (int64_t j = 0; j < v->rows * v->d; j++) {
        int64_t r = j / v->d, i = j % v->d;
        double value = layer_hat(v, r, i) * at(v->weight, i, 1.0);
        want[j] = value + at(v->bias, i, 0.0);
        terms[j] = fabs(value) + fabs(at(v->bias, i, 0.0)) + fabs(v->mean[r] * v->inv_std[r]);
    }
    td_tensor *y = ref_filled(td_shape_of(x), x->dtype, TD_ROW_MAJOR, 9.0);
    if (v->rms) {
        k()->rms_norm(y, inv_std, x, weight, 1e-5);
    } else {
        k()->layer_norm(y, mean, inv_std, x, weight, bias, 1e-5);
    }
    double tolerance = ref_tolerance(x->dtype);
    ref_close(y, want, terms, tolerance, "layer_norm");
    for (int64_t r = 0; r < v->rows; r++) {
        terms[r] = 1.0; /* numbers in [-1, 1) */
    }
    ref_close(mean, v->mean, terms, tolerance, "layer mean");
    ref_close(inv_std, v->inv_std, NULL, tolerance, "layer inv_std");
    free(want);
    free(terms);
    td_free(y);
}

static void layer_grad_reference(const layer_values *v, grad_reference *r)
{
    for (int64_t row = 0; row < v->rows; row++) {
        double g_sum = 0.0, gx_sum = 0.0, size = 0.0;
        for (int64_t i = 0; i < v->d; i++) {
            double g = v->dy[row * v->d + i] * at(v->weight, i, 1.0), hat = layer_hat(v, row, i);
            g_sum += v->rms ? 0.0 : g / (double)v->d;
            gx_sum += g * hat / (double)v->d;
            size += fabs(g) * (1.0 + fabs(hat)) / (double)v->d;
            r->dbias[i] += v->dy[row * v->d + i];
            r->dbias_terms[i] += fabs(v->dy[row * v->d + i]);
            r->dweight[i] += v->dy[row * v->d + i] * hat;
            r->dweight_terms[i] += fabs(v->dy[row * v->d + i] * hat);
        }
        for (int64_t i = 0; i < v->d; i++) {
            int64_t j = row * v->d + i;
            double g = v->dy[j] * at(v->weight, i, 1.0), hat = layer_hat(v, row, i);
            r->dx[j] = v->inv_std[row] * (g - g_sum - hat * gx_sum);
            r->dx_terms[j] = v->inv_std[row] * (fabs(g) + size * (1.0 + fabs(hat)));
        }
    }
}

static void check_layer_grad(const layer_values *v, const td_tensor *x, const td_tensor *dy,
                             const td_tensor *weight, const td_tensor *mean,
                             const td_tensor *inv_std, bool accumulate)
{
    int64_t n = v->rows * v->d;
    td_dtype t = x->dtype;
    double tolerance = ref_tolerance(t);
    grad_reference r = { .dx = ref_zeros(n),
                         .dx_terms = ref_zeros(n),
                         .dweight = ref_zeros(v->d),
                         .dweight_terms = ref_zeros(v->d),
                         .dbias = ref_zeros(v->d),
                         .dbias_terms = ref_zeros(v->d) };
    layer_grad_reference(v, &r);
    td_tensor *dx = ref_filled(td_shape_of(x), t, TD_ROW_MAJOR, 0.5);
    td_tensor *dweight = ref_filled(TD_SHAPE(v->d), t, TD_ROW_MAJOR, 0.5);
    td_tensor *dbias = ref_filled(TD_SHAPE(v->d), t, TD_ROW_MAJOR, 0.5);
    if (v->rms) {
        k()->layer_norm_grad(NULL, NULL, dbias, dy, x, weight, mean, inv_std, false, false,
                             accumulate);
        k()->rms_norm_grad(NULL, dweight, dy, x, weight, inv_std, false, false);
        k()->fill(dweight, 0.5);
        k()->rms_norm_grad(dx, dweight, dy, x, weight, inv_std, accumulate, !accumulate);
    } else {
        k()->layer_norm_grad(NULL, NULL, dbias, dy, x, weight, mean, inv_std, false, false, false);
        k()->fill(dbias, 0.5);
        k()->layer_norm_grad(dx, dweight, dbias, dy, x, weight, mean, inv_std, accumulate,
                             !accumulate, accumulate);
    }
    check_grad(dx, r.dx, r.dx_terms, accumulate, tolerance, "layer dx");
    check_grad(dweight, r.dweight, r.dweight_terms, !accumulate, tolerance, "layer dweight");
    check_grad(dbias, r.dbias, r.dbias_terms, accumulate, tolerance, "layer dbias");
}

static void layer_case(td_dtype dtype, td_shape shape, bool affine, bool scattered, bool rms)
{
    int64_t d = shape.dim[shape.ndim - 1], rows = td_shape_numel(shape) / d;
    td_tensor *x = ref_tensor(shape, dtype, TD_ROW_MAJOR, 1);
    td_tensor *dy = ref_tensor(shape, dtype, TD_ROW_MAJOR, 2);
    td_tensor *weight = affine ? ref_tensor(TD_SHAPE(d), dtype, TD_ROW_MAJOR, 3) : NULL;
    td_tensor *bias = affine && !rms ? ref_tensor(TD_SHAPE(d), dtype, TD_ROW_MAJOR, 4) : NULL;
    td_tensor *mean = td_zeros(TD_SHAPE(rows), dtype, ref_device());
    td_tensor *inv_std = td_zeros(TD_SHAPE(rows), dtype, ref_device());
    x = scattered ? ref_scattered(x) : x;
    dy = scattered ? ref_scattered(dy) : dy;
    layer_values v = { .rows = rows,
                       .d = d,
                       .rms = rms,
                       .x = ref_values(x),
                       .dy = ref_values(dy),
                       .weight = affine ? ref_values(weight) : NULL,
                       .bias = bias != NULL ? ref_values(bias) : NULL };
    layer_statistics(&v);
    check_layer(&v, x, weight, bias, mean, inv_std);
    check_layer_grad(&v, x, dy, weight, mean, inv_std, scattered);
    double *values[] = { v.x, v.dy, v.weight, v.bias, v.mean, v.inv_std };
    td_tensor *tensors[] = { x, dy, weight, bias, mean, inv_std };
    for (int i = 0; i < 6; i++) {
        free(values[i]);
        td_free(tensors[i]);
    }
}

static void layer_cases(td_dtype dtype)
{
    for (int rms = 0; rms < 2; rms++) {
        layer_case(dtype, TD_SHAPE(1, 1), true, false, rms);
        layer_case(dtype, TD_SHAPE(3, 5, 7), true, true, rms);
        layer_case(dtype, TD_SHAPE(200, 33), false, false, rms);
        layer_case(dtype, TD_SHAPE(130, 300), true, false, rms);
    }
}

static void test_layer_norm(void **state)
{
    (void)state;
    ref_run(layer_cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layer_norm),
    };
    return cmocka_run_group_tests_name("kernels: layer normalisation", tests, NULL, NULL);
}
