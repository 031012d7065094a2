/* Batch normalisation and its gradient. */
#include "tests/tensor/norm_case.h"

#include "tensor/kernels/kernels.h"
#include "tensor/extend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const td_kernels *k(void)
{
    return ref_kernels();
}

static double x_hat(const norm_data *d, int64_t i)
{
    return (d->xv[i] - d->used_mean[norm_channel(d, i)]) * d->inv_std[norm_channel(d, i)];
}

static double weight_of(const norm_data *d, int64_t i)
{
    return d->weightv ? d->weightv[norm_channel(d, i)] : 1.0;
}

/* The running statistics after the call. */
static void check_running(const norm_case *c, const norm_data *d, double tolerance)
{
    double rows = (double)(d->n / d->channels);
    double unbiased = rows > 1.0 ? rows / (rows - 1.0) : 1.0;
    double *mean = ref_zeros(d->channels), *var = ref_zeros(d->channels);
    double *terms = ref_zeros(d->channels);
    for (int64_t i = 0; i < d->channels; i++) {
        double m = c->training ? 0.1 : 0.0;
        mean[i] = (1.0 - m) * d->meanv[i] + m * d->batch_mean[i];
        var[i] = (1.0 - m) * d->varv[i] + m * d->batch_var[i] * unbiased;
        terms[i] = 1.0 + fabs(c->offset);
    }
    ref_close(d->mean, mean, terms, tolerance, "running mean");
    ref_close(d->var, var, NULL, tolerance, "running variance");
    free(mean);
    free(var);
    free(terms);
}

static void check_norm(const norm_case *c, td_dtype dtype)
{
    norm_data d;
    norm_make(&d, c, dtype);
    double tolerance = ref_tolerance(dtype), *terms = ref_zeros(d.n + d.channels);
    td_tensor *mean = ref_filled(TD_SHAPE(d.channels), norm_per_channel(dtype), TD_ROW_MAJOR, 7.0);
    td_tensor *inv_std =
        ref_filled(TD_SHAPE(d.channels), norm_per_channel(dtype), TD_ROW_MAJOR, 7.0);
    td_tensor *y = norm_input(c, dtype, 9, 0.0);
    for (int64_t i = 0; i < d.n; i++) {
        double value = x_hat(&d, i) * weight_of(&d, i);
        double bias = d.biasv ? d.biasv[norm_channel(&d, i)] : 0.0, add = d.addv ? d.addv[i] : 0.0;
        terms[i] = 1.0 + fabs(value) + fabs(bias) + fabs(add); /* whatever the mean is */
        d.y[i] = c->relu ? fmax(value + bias + add, 0.0) : value + bias + add;
    }
    k()->batch_norm(&(td_batch_norm_args){ .x = d.x,
                                           .weight = d.weight,
                                           .bias = d.bias,
                                           .add = d.add,
                                           .activation = c->relu ? TD_NORM_RELU : TD_NORM_LINEAR,
                                           .training = c->training,
                                           .eps = 1e-5,
                                           .momentum = 0.1,
                                           .running_mean = d.mean,
                                           .running_var = d.var,
                                           .mean = mean,
                                           .inv_std = inv_std,
                                           .y = y });
    ref_close(y, d.y, terms, tolerance, "batch_norm");
    for (int64_t i = 0; i < d.channels; i++) {
        terms[i] = 1.0 + fabs(c->offset);
    }
    tolerance = ref_tolerance(norm_per_channel(dtype));
    ref_close(mean, d.used_mean, terms, tolerance, "mean");
    ref_close(inv_std, d.inv_std, NULL, tolerance, "inv_std");
    check_running(c, &d, tolerance);
    free(terms);
    td_free(mean);
    td_free(inv_std);
    td_free(y);
    norm_free(&d);
}

static void batch_norm_cases(td_dtype dtype)
{
    for (size_t i = 0; i < NORM_CASES; i++) {
        check_norm(&norm_cases[i], dtype);
    }
}

static void test_batch_norm(void **state)
{
    (void)state;
    ref_run(batch_norm_cases);
    ref_run_half(batch_norm_cases);
}

/* A mean of a thousand spreads: the variance must not drown in it. */
static void large_mean(td_dtype dtype)
{
    norm_case c = {
        TD_SHAPE(40, 19, 9, 9), TD_IMAGE, 600.0, false, false, true, true, false, false
    };
    check_norm(&c, dtype);
}

static void test_batch_norm_large_mean(void **state)
{
    (void)state;
    ref_run(large_mean);
}

/* In evaluation y may be x. */
static void norm_in_place(td_dtype dtype)
{
    td_tensor *x = ref_tensor(TD_SHAPE(3, 5, 4, 4), dtype, TD_IMAGE, 1);
    td_tensor *y = ref_tensor(TD_SHAPE(3, 5, 4, 4), dtype, TD_IMAGE, 2);
    td_tensor *mean = ref_tensor(TD_SHAPE(5), norm_per_channel(dtype), TD_ROW_MAJOR, 3);
    td_tensor *var = ref_filled(TD_SHAPE(5), norm_per_channel(dtype), TD_ROW_MAJOR, 0.5);
    td_tensor *used = ref_filled(TD_SHAPE(5), norm_per_channel(dtype), TD_ROW_MAJOR, 0.0);
    td_tensor *inv_std = ref_filled(TD_SHAPE(5), norm_per_channel(dtype), TD_ROW_MAJOR, 0.0);
    td_batch_norm_args args = { .x = x,
                                .eps = 1e-5,
                                .activation = TD_NORM_RELU,
                                .running_mean = mean,
                                .running_var = var,
                                .mean = used,
                                .inv_std = inv_std,
                                .y = y };
    k()->batch_norm(&args);
    args.y = x;
    k()->batch_norm(&args);
    double *want = ref_values(y);
    ref_close(x, want, NULL, 0.0, "batch_norm in place");
    free(want);
    td_tensor *all[] = { x, y, mean, var, used, inv_std };
    for (int i = 0; i < 6; i++) {
        td_free(all[i]);
    }
}

static void test_batch_norm_in_place(void **state)
{
    (void)state;
    ref_run(norm_in_place);
    ref_run_half(norm_in_place);
}

/* What the gradients should be, from sums of known terms. */
typedef struct grad_reference {
    double *dx, *dadd, *dweight, *dbias;
    double *dx_terms, *dadd_terms, *dweight_terms, *dbias_terms;
} grad_reference;

static void norm_grad_reference(const norm_case *c, const norm_data *d, const double *dy,
                                const double *y, grad_reference *r)
{
    double rows = (double)(d->n / d->channels);
    double *g = ref_zeros(d->n), *sum = ref_zeros(2 * d->channels);
    double *absolute = ref_zeros(2 * d->channels);
    for (int64_t i = 0; i < d->n; i++) {
        int64_t ch = norm_channel(d, i);
        g[i] = c->relu && !(y[i] > 0.0) ? 0.0 : dy[i];
        sum[ch] += g[i];
        sum[d->channels + ch] += g[i] * x_hat(d, i);
        absolute[ch] += fabs(g[i]);
        absolute[d->channels + ch] += fabs(g[i] * x_hat(d, i));
    }
    for (int64_t i = 0; i < d->n; i++) {
        int64_t ch = norm_channel(d, i);
        double scale = weight_of(d, i) * d->inv_std[ch];
        double drop = c->training ? (sum[ch] + x_hat(d, i) * sum[d->channels + ch]) / rows : 0.0;
        r->dx[i] = scale * (g[i] - drop);
        r->dx_terms[i] =
            fabs(scale) *
            (fabs(g[i]) +
             (absolute[ch] + (1.0 + fabs(x_hat(d, i))) * absolute[d->channels + ch]) / rows);
        r->dadd[i] = g[i];
        r->dadd_terms[i] = fabs(g[i]);
    }
    memcpy(r->dbias, sum, (size_t)d->channels * sizeof *sum);
    memcpy(r->dweight, sum + d->channels, (size_t)d->channels * sizeof *sum);
    memcpy(r->dbias_terms, absolute, (size_t)d->channels * sizeof *sum);
    memcpy(r->dweight_terms, absolute + d->channels, (size_t)d->channels * sizeof *sum);
    free(g);
    free(sum);
    free(absolute);
}

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

static void check_norm_grad(const norm_case *c, td_dtype dtype, bool expanded)
{
    norm_data d;
    norm_make(&d, c, dtype);
    td_shape per = TD_SHAPE(d.channels);
    td_tensor *y = norm_input(c, dtype, 11, 0.0);
    td_tensor *dy = expanded ? ref_expanded(c->shape, dtype, 0.25) : norm_input(c, dtype, 12, 0.0);
    td_tensor *mean = td_new(per, norm_per_channel(dtype), ref_device()),
              *inv_std = td_new(per, norm_per_channel(dtype), ref_device());
    td_write(mean, d.used_mean, TD_F64);
    td_write(inv_std, d.inv_std, TD_F64);
    double *g = ref_values(dy), *yv = ref_values(y);
    grad_reference r = { ref_zeros(d.n),        ref_zeros(d.n),       ref_zeros(d.channels),
                         ref_zeros(d.channels), ref_zeros(d.n),       ref_zeros(d.n),
                         ref_zeros(d.channels), ref_zeros(d.channels) };
    norm_grad_reference(c, &d, g, yv, &r);
    td_batch_norm_grad_args args = {
        .dy = dy,
        .x = d.x,
        .y = y,
        .weight = d.weight,
        .mean = mean,
        .inv_std = inv_std,
        .activation = c->relu ? TD_NORM_RELU : TD_NORM_LINEAR,
        .training = c->training,
        .dx = norm_filled(c, c->shape, dtype),
        .dweight = norm_filled(c, per, norm_per_channel(dtype)),
        .dbias = norm_filled(c, per, norm_per_channel(dtype)),
        .dadd = norm_filled(c, c->shape, dtype),
        .accumulate_dx = c->accumulate,
        .accumulate_dweight = !c->accumulate,
        .accumulate_dbias = c->accumulate,
        .accumulate_dadd = !c->accumulate,
    };
    k()->batch_norm_grad(&args);
    double tol = ref_tolerance(dtype), fine = ref_tolerance(norm_per_channel(dtype));
    check_grad(args.dx, r.dx, r.dx_terms, args.accumulate_dx, tol, "dx");
    check_grad(args.dadd, r.dadd, r.dadd_terms, args.accumulate_dadd, tol, "dadd");
    check_grad(args.dweight, r.dweight, r.dweight_terms, args.accumulate_dweight, fine, "dweight");
    check_grad(args.dbias, r.dbias, r.dbias_terms, args.accumulate_dbias, fine, "dbias");
    free(g);
    free(yv);
    td_free(y);
    td_free(dy);
    td_free(mean);
    td_free(inv_std);
    norm_free(&d);
}

static void batch_norm_grad_cases(td_dtype dtype)
{
    for (size_t i = 0; i < NORM_CASES; i++) {
        check_norm_grad(&norm_cases[i], dtype, false);
    }
    check_norm_grad(&norm_cases[0], dtype, true);
}

static void test_batch_norm_grad(void **state)
{
    (void)state;
    ref_run(batch_norm_grad_cases);
    ref_run_half(batch_norm_grad_cases);
}

/* Each of the outputs alone. */
static void single_outputs(td_dtype dtype)
{
    const norm_case *c = &norm_cases[3];
    norm_data d;
    norm_make(&d, c, dtype);
    td_shape per = TD_SHAPE(d.channels);
    td_tensor *dy = norm_input(c, dtype, 12, 0.0), *y = norm_input(c, dtype, 11, 0.0);
    td_batch_norm_grad_args args = {
        .dy = dy,
        .x = d.x,
        .y = y,
        .weight = d.weight,
        .mean = ref_tensor(per, norm_per_channel(dtype), TD_ROW_MAJOR, 5),
        .inv_std = ref_filled(per, norm_per_channel(dtype), TD_ROW_MAJOR, 1.5),
        .activation = TD_NORM_RELU,
        .training = true,
        .dx = norm_filled(c, c->shape, dtype),
        .dweight = norm_filled(c, per, norm_per_channel(dtype)),
        .dbias = norm_filled(c, per, norm_per_channel(dtype)),
        .dadd = norm_filled(c, c->shape, dtype),
    };
    td_tensor *all[4] = { args.dx, args.dweight, args.dbias, args.dadd };
    k()->batch_norm_grad(&args);
    for (int i = 0; i < 4; i++) {
        double *want = ref_values(all[i]);
        td_tensor *alone = norm_filled(c, td_shape_of(all[i]), all[i]->dtype);
        args.dx = i == 0 ? alone : NULL;
        args.dweight = i == 1 ? alone : NULL;
        args.dbias = i == 2 ? alone : NULL;
        args.dadd = i == 3 ? alone : NULL;
        k()->batch_norm_grad(&args);
        ref_close(alone, want, NULL, 0.0, "one output alone");
        free(want);
        td_free(alone);
        td_free(all[i]);
    }
    td_free((td_tensor *)(uintptr_t)args.mean);
    td_free((td_tensor *)(uintptr_t)args.inv_std);
    td_free(dy);
    td_free(y);
    norm_free(&d);
}

static void test_batch_norm_single_outputs(void **state)
{
    (void)state;
    ref_run(single_outputs);
    ref_run_half(single_outputs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_norm),
        cmocka_unit_test(test_batch_norm_large_mean),
        cmocka_unit_test(test_batch_norm_in_place),
        cmocka_unit_test(test_batch_norm_grad),
        cmocka_unit_test(test_batch_norm_single_outputs),
    };
    return cmocka_run_group_tests_name("kernels: batch normalisation", tests, NULL, NULL);
}
