/* Batch normalisation and its gradient. */
#include "tests/reference.h"

#include "tensor/kernels.h"
#include "tensor/extend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const td_kernels *k(void)
{
    return ref_kernels();
}

/* What is per channel is f32 beside bf16. */
static td_dtype per_channel(td_dtype dtype)
{
    return td_is_half(dtype) ? TD_F32 : dtype;
}

typedef struct norm_case {
    td_shape shape; /* [N,C] or [N,C,H,W] */
    td_layout layout;
    double offset; /* added to all of x */
    bool relu, add, affine, training, accumulate, scattered;
} norm_case;

/* Tensors of a case and their values in double. */
typedef struct norm_data {
    int64_t n, channels, inner; /* elements, channels, pixels */
    td_tensor *x, *add, *weight, *bias, *mean, *var;
    double *xv, *addv, *weightv, *biasv, *meanv, *varv;
    double *batch_mean, *batch_var, *used_mean, *inv_std; /* [channels] */
    double *y;
} norm_data;

static int64_t channel(const norm_data *d, int64_t i)
{
    return i / d->inner % d->channels;
}

static td_tensor *norm_input(const norm_case *c, td_dtype dtype, uint64_t seed, double offset)
{
    td_tensor *t = ref_tensor(c->shape, dtype, c->layout, seed);
    double *values = ref_values(t);
    for (int64_t i = 0; i < td_numel(t); i++) {
        values[i] += offset;
    }
    td_write(t, values, TD_F64);
    free(values);
    return c->scattered ? ref_scattered(t) : t;
}

static void batch_statistics(norm_data *d)
{
    double rows = (double)(d->n / d->channels);
    for (int round = 0; round < 2; round++) { /* the second finds what rounding left of the first */
        double *rest = ref_zeros(d->channels);
        for (int64_t i = 0; i < d->n; i++) {
            rest[channel(d, i)] += d->xv[i] - d->batch_mean[channel(d, i)];
        }
        for (int64_t i = 0; i < d->channels && d->n > 0; i++) {
            d->batch_mean[i] += rest[i] / rows;
        }
        free(rest);
    }
    for (int64_t i = 0; i < d->n; i++) {
        double off = d->xv[i] - d->batch_mean[channel(d, i)];
        d->batch_var[channel(d, i)] += off * off / rows;
    }
}

static void make_norm(norm_data *d, const norm_case *c, td_dtype dtype)
{
    *d = (norm_data){ .channels = c->shape.dim[1], .n = td_shape_numel(c->shape) };
    d->inner = c->shape.ndim == 4 ? c->shape.dim[2] * c->shape.dim[3] : 1;
    td_shape per = TD_SHAPE(d->channels);
    d->x = norm_input(c, dtype, 1, c->offset);
    d->add = c->add ? norm_input(c, dtype, 2, 0.0) : NULL;
    d->weight = c->affine ? ref_tensor(per, per_channel(dtype), TD_ROW_MAJOR, 3) : NULL;
    d->bias = c->affine ? ref_tensor(per, per_channel(dtype), TD_ROW_MAJOR, 4) : NULL;
    d->mean = ref_tensor(per, per_channel(dtype), TD_ROW_MAJOR, 5);
    d->var = ref_filled(per, per_channel(dtype), TD_ROW_MAJOR, 0.75);
    d->xv = ref_values(d->x);
    d->addv = c->add ? ref_values(d->add) : NULL;
    d->weightv = c->affine ? ref_values(d->weight) : NULL;
    d->biasv = c->affine ? ref_values(d->bias) : NULL;
    d->meanv = ref_values(d->mean);
    d->varv = ref_values(d->var);
    d->batch_mean = ref_zeros(d->channels);
    d->batch_var = ref_zeros(d->channels);
    d->used_mean = ref_zeros(d->channels);
    d->inv_std = ref_zeros(d->channels);
    d->y = ref_zeros(d->n);
    batch_statistics(d);
    for (int64_t i = 0; i < d->channels; i++) {
        d->used_mean[i] = c->training ? d->batch_mean[i] : d->meanv[i];
        d->inv_std[i] = 1.0 / sqrt((c->training ? d->batch_var[i] : d->varv[i]) + 1e-5);
    }
}

static void free_norm(norm_data *d)
{
    td_tensor *tensors[] = { d->x, d->add, d->weight, d->bias, d->mean, d->var };
    double *values[] = { d->xv,         d->addv,      d->weightv,   d->biasv,   d->meanv, d->varv,
                         d->batch_mean, d->batch_var, d->used_mean, d->inv_std, d->y };
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        td_free(tensors[i]);
    }
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        free(values[i]);
    }
}

static double x_hat(const norm_data *d, int64_t i)
{
    return (d->xv[i] - d->used_mean[channel(d, i)]) * d->inv_std[channel(d, i)];
}

static double weight_of(const norm_data *d, int64_t i)
{
    return d->weightv ? d->weightv[channel(d, i)] : 1.0;
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
    make_norm(&d, c, dtype);
    double tolerance = ref_tolerance(dtype), *terms = ref_zeros(d.n + d.channels);
    td_tensor *mean = ref_filled(TD_SHAPE(d.channels), per_channel(dtype), TD_ROW_MAJOR, 7.0);
    td_tensor *inv_std = ref_filled(TD_SHAPE(d.channels), per_channel(dtype), TD_ROW_MAJOR, 7.0);
    td_tensor *y = norm_input(c, dtype, 9, 0.0);
    for (int64_t i = 0; i < d.n; i++) {
        double value = x_hat(&d, i) * weight_of(&d, i);
        double bias = d.biasv ? d.biasv[channel(&d, i)] : 0.0, add = d.addv ? d.addv[i] : 0.0;
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
    tolerance = ref_tolerance(per_channel(dtype));
    ref_close(mean, d.used_mean, terms, tolerance, "mean");
    ref_close(inv_std, d.inv_std, NULL, tolerance, "inv_std");
    check_running(c, &d, tolerance);
    free(terms);
    td_free(mean);
    td_free(inv_std);
    td_free(y);
    free_norm(&d);
}

static const norm_case norm_cases[] = {
    { { 4, { 4, 3, 5, 6 } }, TD_IMAGE, 0, false, false, true, true, false, false },
    { { 4, { 4, 3, 5, 6 } }, TD_ROW_MAJOR, 0, true, true, true, true, true, false },
    { { 4, { 3, 20, 9, 2 } }, TD_IMAGE, 0, true, true, true, true, false, true },
    { { 4, { 5, 64, 11, 12 } }, TD_IMAGE, 0, true, true, true, true, false, false },
    { { 4, { 9, 97, 8, 8 } }, TD_IMAGE, 0, true, false, true, true, true, false },
    { { 4, { 9, 97, 8, 8 } }, TD_IMAGE, 0, false, true, false, true, false, false },
    /* long rows, of which few are added up at a time */
    { { 4, { 3, 1100, 3, 3 } }, TD_IMAGE, 0, true, false, true, true, false, false },
    { { 4, { 3, 1100, 3, 3 } }, TD_IMAGE, 0, true, true, false, true, false, false },
    { { 2, { 27, 1100 } }, TD_IMAGE, 0, false, false, true, true, true, false },
    { { 2, { 130, 7 } }, TD_ROW_MAJOR, 0, true, false, true, true, false, false },
    { { 2, { 40, 130 } }, TD_ROW_MAJOR, 0, false, false, true, true, true, false },
    { { 4, { 4, 17, 5, 6 } }, TD_IMAGE, 0, true, true, true, false, true, false },
    { { 4, { 4, 17, 5, 6 } }, TD_IMAGE, 0, false, false, false, false, false, false },
    { { 4, { 0, 3, 2, 2 } }, TD_IMAGE, 0, true, true, false, false, false, false },
};

static void batch_norm_cases(td_dtype dtype)
{
    for (size_t i = 0; i < sizeof norm_cases / sizeof norm_cases[0]; i++) {
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
    td_tensor *mean = ref_tensor(TD_SHAPE(5), per_channel(dtype), TD_ROW_MAJOR, 3);
    td_tensor *var = ref_filled(TD_SHAPE(5), per_channel(dtype), TD_ROW_MAJOR, 0.5);
    td_tensor *used = ref_filled(TD_SHAPE(5), per_channel(dtype), TD_ROW_MAJOR, 0.0);
    td_tensor *inv_std = ref_filled(TD_SHAPE(5), per_channel(dtype), TD_ROW_MAJOR, 0.0);
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
        int64_t ch = channel(d, i);
        g[i] = c->relu && !(y[i] > 0.0) ? 0.0 : dy[i];
        sum[ch] += g[i];
        sum[d->channels + ch] += g[i] * x_hat(d, i);
        absolute[ch] += fabs(g[i]);
        absolute[d->channels + ch] += fabs(g[i] * x_hat(d, i));
    }
    for (int64_t i = 0; i < d->n; i++) {
        int64_t ch = channel(d, i);
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

static td_tensor *half(const norm_case *c, td_shape shape, td_dtype dtype)
{
    td_tensor *t = ref_filled(shape, dtype, shape.ndim > 1 ? c->layout : TD_ROW_MAJOR, 0.5);
    return c->scattered && shape.ndim > 1 ? ref_scattered(t) : t;
}

static void check_norm_grad(const norm_case *c, td_dtype dtype, bool expanded)
{
    norm_data d;
    make_norm(&d, c, dtype);
    td_shape per = TD_SHAPE(d.channels);
    td_tensor *y = norm_input(c, dtype, 11, 0.0);
    td_tensor *dy = expanded ? ref_expanded(c->shape, dtype, 0.25) : norm_input(c, dtype, 12, 0.0);
    td_tensor *mean = td_new(per, per_channel(dtype), ref_device()),
              *inv_std = td_new(per, per_channel(dtype), ref_device());
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
        .dx = half(c, c->shape, dtype),
        .dweight = half(c, per, per_channel(dtype)),
        .dbias = half(c, per, per_channel(dtype)),
        .dadd = half(c, c->shape, dtype),
        .accumulate_dx = c->accumulate,
        .accumulate_dweight = !c->accumulate,
        .accumulate_dbias = c->accumulate,
        .accumulate_dadd = !c->accumulate,
    };
    k()->batch_norm_grad(&args);
    double tol = ref_tolerance(dtype), fine = ref_tolerance(per_channel(dtype));
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
    free_norm(&d);
}

static void batch_norm_grad_cases(td_dtype dtype)
{
    for (size_t i = 0; i < sizeof norm_cases / sizeof norm_cases[0]; i++) {
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
    make_norm(&d, c, dtype);
    td_shape per = TD_SHAPE(d.channels);
    td_tensor *dy = norm_input(c, dtype, 12, 0.0), *y = norm_input(c, dtype, 11, 0.0);
    td_batch_norm_grad_args args = {
        .dy = dy,
        .x = d.x,
        .y = y,
        .weight = d.weight,
        .mean = ref_tensor(per, per_channel(dtype), TD_ROW_MAJOR, 5),
        .inv_std = ref_filled(per, per_channel(dtype), TD_ROW_MAJOR, 1.5),
        .activation = TD_NORM_RELU,
        .training = true,
        .dx = half(c, c->shape, dtype),
        .dweight = half(c, per, per_channel(dtype)),
        .dbias = half(c, per, per_channel(dtype)),
        .dadd = half(c, c->shape, dtype),
    };
    td_tensor *all[4] = { args.dx, args.dweight, args.dbias, args.dadd };
    k()->batch_norm_grad(&args);
    for (int i = 0; i < 4; i++) {
        double *want = ref_values(all[i]);
        td_tensor *alone = half(c, td_shape_of(all[i]), all[i]->dtype);
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
    free_norm(&d);
}

static void test_batch_norm_single_outputs(void **state)
{
    (void)state;
    ref_run(single_outputs);
    ref_run_half(single_outputs);
}

/* Sums from elsewhere give what the kernel finds itself, up to rounding; and a mask from x is the
 * one from y, to the bit. */
static void sums_and_affine(td_dtype dtype)
{
    const norm_case *c = &norm_cases[4];
    norm_data d;
    make_norm(&d, c, dtype);
    td_dtype fine = per_channel(dtype);
    td_shape per = TD_SHAPE(d.channels);
    td_tensor *y = norm_input(c, dtype, 9, 0.0), *dy = norm_input(c, dtype, 12, 0.0);
    double *both = ref_zeros(2 * d.channels);
    for (int64_t i = 0; i < d.n; i++) {
        both[channel(&d, i)] += d.xv[i];
        both[d.channels + channel(&d, i)] += d.xv[i] * d.xv[i];
    }
    td_tensor *sums = td_from(both, TD_SHAPE(2, d.channels), TD_F64, ref_device());
    free(both);
    td_batch_norm_args args = { .x = d.x,
                                .weight = d.weight,
                                .bias = d.bias,
                                .activation = TD_NORM_RELU,
                                .training = true,
                                .eps = 1e-5,
                                .mean = td_new(per, fine, ref_device()),
                                .inv_std = td_new(per, fine, ref_device()),
                                .affine = td_new(TD_SHAPE(2, d.channels), fine, ref_device()),
                                .y = y };
    k()->batch_norm(&args);
    double *want = ref_values(y), *terms = ref_zeros(d.n);
    for (int64_t i = 0; i < d.n; i++) {
        terms[i] = 1.0 + fabs(want[i]);
    }
    args.sums = sums;
    k()->batch_norm(&args);
    ref_close(y, want, terms, ref_tolerance(dtype), "batch_norm with sums");
    free(want);
    free(terms);
    td_batch_norm_grad_args grad = { .dy = dy,
                                     .x = d.x,
                                     .y = y,
                                     .weight = d.weight,
                                     .mean = args.mean,
                                     .inv_std = args.inv_std,
                                     .activation = TD_NORM_RELU,
                                     .training = true,
                                     .dx = norm_input(c, dtype, 13, 0.0),
                                     .dweight = td_new(per, fine, ref_device()),
                                     .dbias = td_new(per, fine, ref_device()) };
    k()->batch_norm_grad(&grad);
    double *dx = ref_values(grad.dx), *dw = ref_values(grad.dweight), *db = ref_values(grad.dbias);
    grad.y = NULL;
    grad.affine = args.affine;
    k()->batch_norm_grad(&grad);
    ref_close(grad.dx, dx, NULL, 0.0, "dx without y");
    ref_close(grad.dweight, dw, NULL, 0.0, "dweight without y");
    ref_close(grad.dbias, db, NULL, 0.0, "dbias without y");
    free(dx);
    free(dw);
    free(db);
    td_tensor *all[] = { y,           dy,      sums,         args.mean, args.inv_std,
                         args.affine, grad.dx, grad.dweight, grad.dbias };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        td_free(all[i]);
    }
    free_norm(&d);
}

static void test_batch_norm_sums_and_affine(void **state)
{
    (void)state;
    ref_run(sums_and_affine);
    ref_run_half(sums_and_affine);
}

/* The forward and the gradients of a case: in one pass, or batch normalisation and gelu after each
 * other. */
typedef struct gelu_results {
    td_tensor *y, *dx, *dweight, *dbias;
} gelu_results;

static gelu_results gelu_of(const norm_case *c, td_dtype dtype, bool fused, bool over_dy)
{
    norm_data d;
    make_norm(&d, c, dtype);
    td_dtype fine = per_channel(dtype);
    td_shape per = TD_SHAPE(d.channels);
    td_norm_activation activation = fused ? TD_NORM_GELU : TD_NORM_LINEAR;
    td_tensor *dy = norm_input(c, dtype, 12, 0.0), *z = norm_input(c, dtype, 9, 0.0);
    gelu_results r = { norm_input(c, dtype, 9, 0.0), over_dy ? dy : half(c, c->shape, dtype),
                       half(c, per, fine), half(c, per, fine) };
    td_batch_norm_args args = { .x = d.x,
                                .weight = d.weight,
                                .bias = d.bias,
                                .activation = activation,
                                .training = c->training,
                                .eps = 1e-5,
                                .momentum = 0.1,
                                .running_mean = d.mean,
                                .running_var = d.var,
                                .mean = td_new(per, fine, ref_device()),
                                .inv_std = td_new(per, fine, ref_device()),
                                .affine = td_new(TD_SHAPE(2, d.channels), fine, ref_device()),
                                .y = fused ? r.y : z };
    k()->batch_norm(&args);
    if (!fused) {
        k()->unary(TD_UNARY_gelu, r.y, z, 0.0, 0.0);
        k()->unary_grad(TD_UNARY_gelu, dy, dy, z, r.y, 0.0, 0.0, false);
    }
    k()->batch_norm_grad(&(td_batch_norm_grad_args){ .dy = dy,
                                                     .x = d.x,
                                                     .affine = fused ? args.affine : NULL,
                                                     .weight = d.weight,
                                                     .mean = args.mean,
                                                     .inv_std = args.inv_std,
                                                     .activation = activation,
                                                     .training = c->training,
                                                     .dx = r.dx,
                                                     .dweight = r.dweight,
                                                     .dbias = r.dbias,
                                                     .accumulate_dx = c->accumulate && !over_dy,
                                                     .accumulate_dweight = !c->accumulate,
                                                     .accumulate_dbias = c->accumulate });
    td_tensor *all[] = { z, args.mean, args.inv_std, args.affine, over_dy ? NULL : dy };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        td_free(all[i]);
    }
    free_norm(&d);
    return r;
}

static void same_and_free(td_tensor *got, td_tensor *expected, const char *what)
{
    double *want = ref_values(expected);
    ref_close(got, want, NULL, 0.0, what);
    free(want);
    td_free(got);
    td_free(expected);
}

static void gelu_cases(td_dtype dtype)
{
    static const norm_case wide = { { 2, { 5, 5000 } }, /* rows that are computed in pieces */
                                    TD_IMAGE,           0, false, false, true, true, false, false };
    size_t count = sizeof norm_cases / sizeof norm_cases[0];
    for (size_t i = 0; i < 2 * (count + 1); i++) {
        const norm_case *c = i / 2 < count ? &norm_cases[i / 2] : &wide;
        bool over_dy = i % 2 != 0;
        gelu_results fused = gelu_of(c, dtype, true, over_dy);
        gelu_results apart = gelu_of(c, dtype, false, over_dy);
        same_and_free(fused.y, apart.y, "batch_norm with gelu");
        same_and_free(fused.dx, apart.dx, "dx with gelu");
        same_and_free(fused.dweight, apart.dweight, "dweight with gelu");
        same_and_free(fused.dbias, apart.dbias, "dbias with gelu");
    }
}

static void test_batch_norm_gelu(void **state)
{
    (void)state;
    ref_run(gelu_cases);
    ref_run_half(gelu_cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_norm),
        cmocka_unit_test(test_batch_norm_large_mean),
        cmocka_unit_test(test_batch_norm_in_place),
        cmocka_unit_test(test_batch_norm_grad),
        cmocka_unit_test(test_batch_norm_single_outputs),
        cmocka_unit_test(test_batch_norm_sums_and_affine),
        cmocka_unit_test(test_batch_norm_gelu),
    };
    return cmocka_run_group_tests_name("kernels: batch normalisation", tests, NULL, NULL);
}
