/* Softmax, log-softmax, cross-entropy, and their gradients. */
#include "tests/tensor/reference.h"

#include "tensor/kernels/kernels.h"

#include <math.h>
#include <stdlib.h>

static const td_kernels *k(void)
{
    return ref_kernels();
}

/* Numbers in [-scale, scale). */
static td_tensor *logits_of(td_shape shape, td_dtype dtype, td_layout layout, double scale)
{
    td_tensor *t = ref_tensor(shape, dtype, layout, 1);
    double *values = ref_values(t);
    for (int64_t i = 0; i < td_numel(t); i++) {
        values[i] *= scale;
    }
    td_write(t, values, TD_F64);
    free(values);
    return t;
}

/* log(sum(exp)) of n numbers, `step` apart. */
static double log_sum_exp(const double *x, int64_t n, int64_t step)
{
    double top = -INFINITY, sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        top = fmax(top, x[i * step]);
    }
    for (int64_t i = 0; i < n; i++) {
        sum += exp(x[i * step] - top);
    }
    return top + log(sum);
}

/* ---- softmax ---- */

/* The row-major index of the first element of the line along dim that i lies on, and its step. */
static int64_t line_of(const td_tensor *t, int dim, int64_t i, int64_t *step)
{
    *step = 1;
    for (int d = dim + 1; d < t->ndim; d++) {
        *step *= t->shape[d];
    }
    return i - i / *step % t->shape[dim] * *step;
}

static void check_softmax(const td_tensor *x, td_tensor *y, int dim, bool log_of)
{
    int64_t n = td_numel(x), step;
    double *from = ref_values(x), *want = ref_zeros(n), *terms = ref_zeros(n);
    for (int64_t i = 0; i < n; i++) {
        int64_t first = line_of(x, dim, i, &step);
        double norm = log_sum_exp(from + first, x->shape[dim], step);
        want[i] = log_of ? from[i] - norm : exp(from[i] - norm);
        terms[i] = log_of ? fabs(from[i]) + fabs(norm) : want[i] * (1.0 + fabs(from[i] - norm));
    }
    k()->softmax(y, x, dim, log_of);
    ref_close(y, want, terms, ref_tolerance(x->dtype), "softmax");
    free(from);
    free(want);
    free(terms);
}

static void check_softmax_grad(const td_tensor *y, const td_tensor *dy, td_tensor *dx, int dim,
                               bool log_of, bool accumulate)
{
    int64_t n = td_numel(y), step;
    double *out = ref_values(y), *g = ref_values(dy), *want = ref_values(dx);
    double *terms = ref_zeros(n);
    for (int64_t i = 0; i < n; i++) {
        int64_t first = line_of(y, dim, i, &step);
        double sum = 0.0, size = 0.0;
        for (int64_t j = 0; j < y->shape[dim]; j++) {
            double term = g[first + j * step] * (log_of ? 1.0 : out[first + j * step]);
            sum += term;
            size += fabs(term);
        }
        double result = log_of ? g[i] - exp(out[i]) * sum : out[i] * (g[i] - sum);
        double factor = log_of ? exp(out[i]) * (1.0 + fabs(out[i])) : fabs(out[i]);
        terms[i] = fabs(want[i]) + fabs(g[i]) * (log_of ? 1.0 : fabs(out[i])) + factor * size;
        want[i] = accumulate ? want[i] + result : result;
    }
    k()->softmax_grad(dx, dy, y, dim, log_of, accumulate);
    ref_close(dx, want, terms, ref_tolerance(y->dtype), "softmax_grad");
    free(out);
    free(g);
    free(want);
    free(terms);
}

/* dy_expanded: the gradient of a sum. */
static void softmax_case(td_shape shape, td_layout layout, int dim, td_dtype dtype,
                         bool dy_expanded)
{
    for (int log_of = 0; log_of < 2; log_of++) {
        td_tensor *x = logits_of(shape, dtype, layout, 20.0);
        td_tensor *y = ref_filled(shape, dtype, layout, 9.0);
        td_tensor *dx = ref_tensor(shape, dtype, layout, 3);
        td_tensor *dy =
            dy_expanded ? ref_expanded(shape, dtype, 0.5) : ref_tensor(shape, dtype, layout, 2);
        check_softmax(x, y, dim, log_of != 0);
        check_softmax_grad(y, dy, dx, dim, log_of != 0, true);
        check_softmax_grad(y, dy, dx, dim, log_of != 0, false);
        td_free(x);
        td_free(y);
        td_free(dx);
        td_free(dy);
    }
}

static void softmax_cases(td_dtype dtype)
{
    for (int dim = 0; dim < 4; dim++) {
        softmax_case(TD_SHAPE(3, 5, 4, 7), TD_ROW_MAJOR, dim, dtype, false);
        softmax_case(TD_SHAPE(3, 5, 4, 7), TD_IMAGE, dim, dtype, dim == 1);
        softmax_case(TD_SHAPE(2, 1, 4, 1), TD_ROW_MAJOR, dim, dtype, false);
    }
    softmax_case(TD_SHAPE(300, 41), TD_ROW_MAJOR, 1, dtype, true);
    softmax_case(TD_SHAPE(41, 300), TD_ROW_MAJOR, 0, dtype, false);
    softmax_case(TD_SHAPE(0, 4), TD_ROW_MAJOR, 1, dtype, false);
    softmax_case(TD_SHAPE(1), TD_ROW_MAJOR, 0, dtype, false);
}

static void test_softmax(void **state)
{
    (void)state;
    ref_run(softmax_cases);
}

/* Huge logits neither overflow nor vanish. */
static void huge_logits(td_dtype dtype)
{
    td_tensor *x = td_new(TD_SHAPE(1, 3), dtype, ref_device());
    td_tensor *y = td_new(TD_SHAPE(1, 3), dtype, ref_device());
    td_write(x, (double[]){ 1e4, 1e4, -INFINITY }, TD_F64);
    k()->softmax(y, x, 1, false);
    ref_close(y, (double[]){ 0.5, 0.5, 0.0 }, NULL, 1e-7, "softmax of huge logits");
    k()->softmax(y, x, 1, true);
    ref_close(y, (double[]){ -log(2.0), -log(2.0), -INFINITY }, NULL, 1e-6, "its logarithm");
    td_tensor *label = ref_filled(TD_SHAPE(1), TD_I64, TD_ROW_MAJOR, 1.0);
    td_tensor *loss = td_new(TD_SHAPE(1), dtype, ref_device());
    td_tensor *total = td_new(TD_SCALAR, TD_F64, ref_device());
    td_write(x, (double[]){ 0x1p60, 0x1p60, -INFINITY }, TD_F64);
    k()->cross_entropy(loss, total, y, x, label, NULL,
                       &(td_entropy_params){ 0.0, TD_IGNORES_NONE, false });
    ref_close(loss, (double[]){ log(2.0) }, NULL, 1e-6, "cross-entropy of huge logits");
    td_free(label);
    td_free(loss);
    td_free(total);
    td_free(x);
    td_free(y);
}

static void test_huge_logits(void **state)
{
    (void)state;
    ref_run(huge_logits);
}

/* ---- cross-entropy ---- */

/* What a case has beside logits and labels. */
typedef struct entropy_case {
    td_entropy_params params;
    bool weighted, logs, per_row, accumulate;
} entropy_case;

/* The losses of rows, their weights, and in dx the gradient of each row's loss. */
static void entropy_reference(const double *x, const double *label, const double *weight,
                              int64_t rows, int64_t classes, const entropy_case *c, double *log_p,
                              double *dx, double *losses, double *weights)
{
    double s = c->params.smoothing;
    for (int64_t r = 0; r < rows; r++) {
        bool counts = (int64_t)label[r] != c->params.ignore;
        double all = 0.0;
        losses[r] = 0.0;
        weights[r] = counts ? weight[(int64_t)label[r]] : 0.0;
        for (int64_t k = 0; k < classes; k++) {
            all += weight[k] * (s / (double)classes + ((int64_t)label[r] == k ? 1.0 - s : 0.0));
        }
        for (int64_t k = 0; k < classes; k++) {
            int64_t i = r * classes + k;
            double target =
                weight[k] * (s / (double)classes + ((int64_t)label[r] == k ? 1.0 - s : 0.0));
            log_p[i] = c->logs ? x[i] : x[i] - log_sum_exp(x + r * classes, classes, 1);
            losses[r] -= counts && target != 0.0 ? target * log_p[i] : 0.0;
            dx[i] = counts ? (c->logs ? 0.0 : exp(log_p[i]) * all) - target : 0.0;
        }
    }
}

static td_tensor *class_weights(int64_t classes, td_dtype dtype)
{
    td_tensor *w = ref_filled(TD_SHAPE(classes), dtype, TD_ROW_MAJOR, 1.0);
    for (int64_t k = 0; k < classes; k++) {
        td_set(w, (int64_t[]){ k }, 0.25 + (double)(k % 5));
    }
    return w;
}

/* Frees logits and labels. */
static void check_entropy(td_tensor *logits, td_tensor *labels, entropy_case c)
{
    int64_t n = td_numel(logits), rows = logits->shape[0], classes = logits->shape[1];
    td_dtype dtype = logits->dtype;
    double tolerance = ref_tolerance(dtype), *x = ref_values(logits), *terms = ref_zeros(n + rows);
    double *log_p = ref_zeros(n), *dx = ref_zeros(n), *losses = ref_zeros(rows);
    double *weights = ref_zeros(rows), *label = ref_values(labels);
    td_tensor *weight = class_weights(classes, dtype);
    double *per_class = ref_values(weight);
    for (int64_t k = 0; k < classes; k++) {
        per_class[k] = c.weighted ? per_class[k] : 1.0;
    }
    td_shape shape = td_shape_of(logits), result = c.per_row ? TD_SHAPE(rows) : TD_SCALAR;
    td_tensor *loss = ref_filled(result, dtype, TD_ROW_MAJOR, 9.0);
    td_tensor *total = ref_filled(TD_SCALAR, TD_F64, TD_ROW_MAJOR, 9.0);
    td_tensor *out = ref_filled(shape, dtype, TD_ROW_MAJOR, 9.0);
    td_tensor *grad = ref_filled(shape, dtype, TD_ROW_MAJOR, 0.5);
    td_tensor *dloss = ref_filled(result, dtype, TD_ROW_MAJOR, 1.5);
    entropy_reference(x, label, per_class, rows, classes, &c, log_p, dx, losses, weights);
    double sum = 0.0, all = 0.0;
    for (int64_t r = 0; r < rows; r++) {
        sum += losses[r];
        all += weights[r];
        terms[r] = 40.0 * (1.0 + fabs(losses[r]));
    }
    double want = c.params.sum ? sum : sum / all, divisor = c.params.sum || c.per_row ? 1.0 : all;
    k()->cross_entropy(loss, total, c.logs ? NULL : out, logits, labels, c.weighted ? weight : NULL,
                       &c.params);
    if (c.per_row) {
        ref_close(loss, losses, terms, tolerance, "losses");
    } else {
        ref_close(loss, &want, (double[]){ 40.0 * (1.0 + fabs(want)) }, tolerance, "loss");
    }
    ref_close(total, &all, (double[]){ 1.0 + all }, 1e-14, "the sum of the weights");
    for (int64_t i = 0; i < n && !c.logs; i++) { /* an ignored row's may be anything */
        bool counts = weights[i / classes] != 0.0;
        terms[i] = counts ? fabs(x[i]) + fabs(x[i] - log_p[i]) : 1e300;
    }
    if (!c.logs) {
        ref_close(out, log_p, terms, tolerance, "log_p");
    }
    for (int64_t i = 0; i < n; i++) {
        dx[i] = 1.5 * dx[i] / divisor + (c.accumulate ? 0.5 : 0.0);
        terms[i] = (c.accumulate ? 0.5 : 0.0) +
                   5.0 * (1.0 + fabs(log_p[i]) * exp(c.logs ? 0.0 : log_p[i])) / divisor;
    }
    k()->cross_entropy_grad(grad, dloss, total, c.logs ? NULL : out, labels,
                            c.weighted ? weight : NULL, &c.params, c.accumulate);
    ref_close(grad, dx, terms, tolerance, "cross_entropy_grad");
    double *values[] = { x, terms, log_p, dx, losses, weights, label, per_class };
    td_tensor *tensors[] = { loss, total, out, grad, dloss, weight, logits, labels };
    for (int i = 0; i < 8; i++) {
        free(values[i]);
        td_free(tensors[i]);
    }
}

static void entropy_cases(td_dtype t)
{
    static const entropy_case cases[] = {
        { { 0.0, TD_IGNORES_NONE, false }, .accumulate = true },
        { { 0.1, TD_IGNORES_NONE, false }, .accumulate = false },
        { { 0.1, 1, true }, .weighted = true },
        { { 0.0, 2, false }, .weighted = true, .accumulate = true },
        { { 0.2, 0, false }, .weighted = true, .per_row = true },
        { { 0.0, 0, false }, .weighted = true, .logs = true, .accumulate = true },
        { { 0.1, TD_IGNORES_NONE, false }, .logs = true, .per_row = true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_entropy(logits_of(TD_SHAPE(32, 3), t, TD_ROW_MAJOR, 5.0),
                      ref_indices(TD_SHAPE(32), 3, 2), cases[i]);
        check_entropy(ref_scattered(logits_of(TD_SHAPE(7, 13), t, TD_ROW_MAJOR, 20.0)),
                      ref_scattered(ref_indices(TD_SHAPE(7), 13, 2)), cases[i]);
        check_entropy(logits_of(TD_SHAPE(500, 100), t, TD_ROW_MAJOR, 9.0),
                      ref_indices(TD_SHAPE(500), 100, 2), cases[i]);
    }
    check_entropy(logits_of(TD_SHAPE(1, 1), t, TD_ROW_MAJOR, 9.0), ref_indices(TD_SHAPE(1), 1, 2),
                  cases[0]);
}

static void test_cross_entropy(void **state)
{
    (void)state;
    ref_run(entropy_cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_huge_logits),
        cmocka_unit_test(test_cross_entropy),
    };
    return cmocka_run_group_tests_name("kernels: softmax", tests, NULL, NULL);
}
