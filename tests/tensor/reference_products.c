/* Slow matrix products and convolutions in double precision. */
#include "tests/tensor/reference_products.h"
#include "tensor/f16.h"

#include <math.h>
#include <stdlib.h>

/* ---- comparing ---- */

/* The values of a factor as the kernels multiply it. */
static double *factor_values(const td_tensor *t, td_dtype other)
{
    double *values = ref_values(t);
    for (int64_t i = 0; t->dtype == TD_F32 && other == TD_BF16 && i < td_numel(t); i++) {
        values[i] = td_bf16_to_f32(td_f32_to_bf16((float)values[i]));
    }
    return values;
}

static void check(const td_tensor *got, const double *want, const double *terms, double tolerance,
                  const char *what)
{
    if (got->dtype != TD_BF16) {
        ref_close(got, want, terms, tolerance > 0 ? tolerance : ref_tolerance(got->dtype), what);
        return;
    }
    /* Rounded once, from a sum that is as exact as an f32 one. */
    double *values = ref_values(got);
    for (int64_t i = 0; i < td_numel(got); i++) {
        double slack = 1e-6 * terms[i];
        double low = td_bf16_to_f32(td_f32_to_bf16((float)(want[i] - slack)));
        double high = td_bf16_to_f32(td_f32_to_bf16((float)(want[i] + slack)));
        if (!(values[i] >= low && values[i] <= high)) {
            fail_msg("%s: element %lld of %s is %.9g instead of %.9g, rounded", what, (long long)i,
                     td_describe(got), values[i], want[i]);
        }
    }
    ref_digest(values, (size_t)td_numel(got) * sizeof *values);
    free(values);
}

/* ---- matrix products ---- */

/* Row-major values of a[B,m,k], b[B,k,n], bias[n]; want starts as what c held. */
static void product(int64_t batch, int64_t m, int64_t n, int64_t depth, const double *a,
                    const double *b, const double *bias, double *want, double *terms)
{
    for (int64_t i = 0; i < batch * m * n; i++) {
        int64_t t = i / (m * n), row = i / n % m, column = i % n;
        terms[i] = fabs(want[i]) + (bias ? fabs(bias[column]) : 0.0);
        want[i] += bias ? bias[column] : 0.0;
        for (int64_t l = 0; l < depth; l++) {
            double term = a[(t * m + row) * depth + l] * b[(t * depth + l) * n + column];
            want[i] += term;
            terms[i] += fabs(term);
        }
    }
}

void ref_check_matmul(td_tensor *c, td_tensor *a, td_tensor *b, td_tensor *bias, bool accumulate,
                      td_math math, double tolerance)
{
    int64_t m = c->shape[c->ndim - 2], n = c->shape[c->ndim - 1], depth = a->shape[a->ndim - 1];
    int64_t count = td_numel(c);
    double *left = factor_values(a, b->dtype), *right = factor_values(b, a->dtype);
    double *terms = ref_zeros(count);
    double *shift = bias ? ref_values(bias) : NULL;
    double *want = accumulate ? ref_values(c) : ref_zeros(count);
    product(count > 0 ? count / (m * n) : 0, m, n, depth, left, right, shift, want, terms);
    ref_kernels()->matmul(c, a, b, bias, accumulate, math);
    check(c, want, terms, tolerance, "matmul");
    free(left);
    free(right);
    free(terms);
    free(shift);
    free(want);
    td_free(c);
    td_free(a);
    td_free(b);
    td_free(bias);
}

/* ---- convolutions ---- */

typedef struct conv_tensors {
    const ref_conv_types *types;
    td_tensor *x, *w, *y;
    double *xv, *wv, *yv; /* their values, row-major */
    double *to, *terms;   /* the result: as large as the target */
    int target;           /* 0: y, 1: x, 2: w */
} conv_tensors;

/* The three passes are the same sum of products; `target` tells which of the three is wanted. */
static void conv_reference(const ref_conv *c, conv_tensors *t)
{
    int64_t groups = c->params.groups, per = c->ic / groups, oh = t->y->shape[2];
    int64_t total = c->n * c->oc * oh * t->y->shape[3];
    for (int64_t i = 0; i < total; i++) {
        int64_t ow = t->y->shape[3], px = i % ow, py = i / ow % oh;
        int64_t o = i / (ow * oh) % c->oc, n = i / (ow * oh * c->oc);
        for (int64_t j = 0; j < per * c->kh * c->kw; j++) {
            int64_t kw = j % c->kw, kh = j / c->kw % c->kh, in = j / (c->kw * c->kh);
            int64_t h = py * c->params.stride[0] - c->params.pad[0] + kh * c->params.dilation[0];
            int64_t w = px * c->params.stride[1] - c->params.pad[1] + kw * c->params.dilation[1];
            if (h < 0 || h >= c->ih || w < 0 || w >= c->iw) {
                continue;
            }
            int64_t at_x = ref_at4(t->x, n, o / (c->oc / groups) * per + in, h, w);
            int64_t at_w = ref_at4(t->w, o, in, kh, kw);
            int64_t at[3] = { i, at_x, at_w };
            double factor[3] = { t->yv[i], t->xv[at_x], t->wv[at_w] };
            factor[t->target] = 1.0;
            double term = factor[0] * factor[1] * factor[2];
            t->to[at[t->target]] += term;
            t->terms[at[t->target]] += fabs(term);
        }
    }
}

static void make_tensors(const ref_conv *c, conv_tensors *t)
{
    const td_conv2d_params *p = &c->params;
    const ref_conv_types *types = t->types;
    int64_t oh = (c->ih + 2 * p->pad[0] - p->dilation[0] * (c->kh - 1) - 1) / p->stride[0] + 1;
    int64_t ow = (c->iw + 2 * p->pad[1] - p->dilation[1] * (c->kw - 1) - 1) / p->stride[1] + 1;
    t->x = ref_tensor(TD_SHAPE(c->n, c->ic, c->ih, c->iw), types->x, types->image, 1);
    t->w = ref_tensor(TD_SHAPE(c->oc, c->ic / p->groups, c->kh, c->kw), types->w, types->filter, 2);
    t->y = ref_tensor(TD_SHAPE(c->n, c->oc, oh, ow), types->y, types->image, 3);
    t->xv = factor_values(t->x, types->w);
    t->wv = factor_values(t->w, types->x);
    t->yv = factor_values(t->y, types->w);
}

/* Computes what `target` names, into `to`, and compares. */
static void check_pass(const ref_conv *c, conv_tensors *t, int target, td_tensor *to,
                       bool accumulate, td_tensor *bias)
{
    const td_kernels *k = ref_kernels();
    int64_t count = td_numel(to), per = to->shape[2] * to->shape[3];
    t->target = target;
    t->to = accumulate ? ref_values(to) : ref_zeros(count);
    t->terms = ref_zeros(count);
    double *shift = bias ? ref_values(bias) : NULL;
    for (int64_t i = 0; i < count; i++) {
        t->to[i] += bias ? shift[i / per % to->shape[1]] : 0.0;
        t->terms[i] += fabs(t->to[i]);
    }
    free(shift);
    conv_reference(c, t);
    if (target == 0) {
        k->conv2d(to, t->x, t->w, bias, &c->params);
    } else if (target == 1) {
        k->conv2d_grad_input(to, t->y, t->w, &c->params, accumulate);
    } else {
        k->conv2d_grad_weight(to, t->y, t->x, &c->params, accumulate);
    }
    check(to, t->to, t->terms, t->types->tolerance, "convolution");
    free(t->to);
    free(t->terms);
    td_free(to);
}

void ref_check_conv(const ref_conv *c, const ref_conv_types *types)
{
    conv_tensors t = { .types = types };
    make_tensors(c, &t);
    td_dtype shift = types->x == TD_F64 ? TD_F64 : TD_F32;
    td_tensor *bias = ref_tensor(TD_SHAPE(c->oc), shift, TD_ROW_MAJOR, 4);
    td_shape x = td_shape_of(t.x), w = td_shape_of(t.w), y = td_shape_of(t.y);
    check_pass(c, &t, 0, ref_tensor(y, types->y, types->image, 5), false, NULL);
    check_pass(c, &t, 0, ref_tensor(y, types->y, types->image, 5), false, bias);
    check_pass(c, &t, 0, ref_scattered(ref_tensor(y, types->y, types->image, 5)), false, bias);
    check_pass(c, &t, 1, ref_tensor(x, types->x, types->image, 6), false, NULL);
    check_pass(c, &t, 1, ref_tensor(x, types->x, types->image, 6), true, NULL);
    check_pass(c, &t, 2, ref_tensor(w, types->w, types->filter, 7), false, NULL);
    check_pass(c, &t, 2, ref_tensor(w, types->w, types->filter, 7), true, NULL);
    td_free(bias);
    td_free(t.x);
    td_free(t.w);
    td_free(t.y);
    free(t.xv);
    free(t.wv);
    free(t.yv);
}
