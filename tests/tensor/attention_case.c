/* Numbers of awkward sizes, and a reference that forms all pairs. */
#include "tests/tensor/attention_case.h"

#include "tests/tensor/reference.h"

#include "tensor/extend.h"
#include "tensor/kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct attention_case {
    int64_t batch, queries, keys, heads, kv_heads, width;
    bool causal, packed, accumulate;
} attention_case;

static const attention_case cases[] = {
    { 1, 1, 1, 1, 1, 1, true, true, false },     { 2, 3, 3, 2, 2, 17, true, true, false },
    { 1, 17, 17, 1, 1, 65, false, true, true },  { 2, 65, 65, 2, 1, 3, true, true, false },
    { 1, 127, 127, 1, 1, 32, true, true, true }, { 1, 130, 130, 4, 2, 16, true, false, true },
    { 1, 64, 64, 1, 1, 64, true, false, false }, { 1, 1, 129, 2, 1, 24, true, false, false },
    { 1, 70, 161, 1, 1, 7, true, false, false }, { 1, 128, 200, 1, 1, 127, true, false, false },
    { 2, 5, 67, 1, 1, 3, false, false, false },  { 1, 67, 5, 3, 1, 9, false, false, true },
    { 3, 33, 48, 2, 2, 31, true, false, true },
};

/* Row-major values and gradients of one case, and the sums of absolute terms. */
typedef struct attention_values {
    double *q, *k, *v, *dy;
    double *y, *lse, *dq, *dk, *dv;
    double *y_terms, *dq_terms, *dk_terms, *dv_terms;
} attention_values;

static double *row(double *x, int64_t tokens, int64_t heads, int64_t width, int64_t b, int64_t t,
                   int64_t head)
{
    return x + ((b * tokens + t) * heads + head) * width;
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* to += factor x; size: of the terms that the factor is the sum of. */
static void add(double *to, double *terms, const double *x, double factor, double size, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] += factor * x[i];
        terms[i] += fabs(size * x[i]);
    }
}

/* One query of one head. */
static void reference_row(const attention_case *c, const attention_values *r, double scale,
                          int64_t b, int64_t head, int64_t t)
{
    int64_t h = c->width, from = head / (c->heads / c->kv_heads);
    int64_t end = c->causal ? c->keys - c->queries + t + 1 : c->keys;
#define QUERY(x) row(r->x, c->queries, c->heads, h, b, t, head)
#define KEY(x, s) row(r->x, c->keys, c->kv_heads, h, b, s, from)
    double *p = ref_zeros(end), top = -INFINITY, sum = 0.0;
    for (int64_t s = 0; s < end; s++) {
        p[s] = scale * dot(QUERY(q), KEY(k, s), h);
        top = fmax(top, p[s]);
    }
    for (int64_t s = 0; s < end; s++) {
        p[s] = exp(p[s] - top);
        sum += p[s];
    }
    r->lse[(b * c->heads + head) * c->queries + t] = top + log(sum);
    for (int64_t s = 0; s < end; s++) {
        p[s] /= sum;
        add(QUERY(y), QUERY(y_terms), KEY(v, s), p[s], p[s], h);
        add(KEY(dv, s), KEY(dv_terms, s), QUERY(dy), p[s], p[s], h);
    }
    double mean = dot(QUERY(dy), QUERY(y), h), size = 0.0;
    for (int64_t i = 0; i < h; i++) {
        size += 2.0 * fabs(QUERY(dy)[i]); /* values are below 1 */
    }
    for (int64_t s = 0; s < end; s++) {
        double ds = p[s] * (dot(QUERY(dy), KEY(v, s), h) - mean) * scale;
        add(QUERY(dq), QUERY(dq_terms), KEY(k, s), ds, p[s] * size * scale, h);
        add(KEY(dk, s), KEY(dk_terms, s), QUERY(q), ds, p[s] * size * scale, h);
    }
    free(p);
}

static attention_values reference(const attention_case *c, double *q, double *k, double *v,
                                  double *dy)
{
    int64_t of_q = c->batch * c->queries * c->heads * c->width;
    int64_t of_k = c->batch * c->keys * c->kv_heads * c->width;
    attention_values r = { q,
                           k,
                           v,
                           dy,
                           ref_zeros(of_q),
                           ref_zeros(of_q),
                           ref_zeros(of_q),
                           ref_zeros(of_k),
                           ref_zeros(of_k),
                           ref_zeros(of_q),
                           ref_zeros(of_q),
                           ref_zeros(of_k),
                           ref_zeros(of_k) };
    for (int64_t i = 0; i < c->batch * c->heads * c->queries; i++) {
        reference_row(c, &r, 1.0 / sqrt((double)c->width), i / c->queries / c->heads,
                      i / c->queries % c->heads, i % c->queries);
    }
    return r;
}

/* ---- tensors ---- */

/* q, k and v: views of one tensor, or three. */
typedef struct three {
    td_tensor *own[3], parts[3];
} three;

static three make(const attention_case *c, td_dtype dtype, uint64_t seed, double fill)
{
    three x = { .own = { NULL } };
    int64_t first = 0, heads[3] = { c->heads, c->kv_heads, c->kv_heads };
    int64_t all = (c->heads + 2 * c->kv_heads) * c->width;
    td_shape packed = TD_SHAPE(c->batch, c->queries, all);
    for (int i = 0; i < 3; i++) {
        td_shape shape = TD_SHAPE(c->batch, i == 0 ? c->queries : c->keys, heads[i], c->width);
        td_shape own = c->packed ? packed : shape;
        if (i == 0 || !c->packed) {
            x.own[i] = seed != 0 ? ref_tensor(own, dtype, TD_ROW_MAJOR, seed + (uint64_t)i)
                                 : ref_filled(own, dtype, TD_ROW_MAJOR, fill);
        }
        if (!c->packed && !c->causal) {
            x.own[i] = ref_scattered(x.own[i]);
        }
        x.parts[i] = *x.own[c->packed ? 0 : i];
        if (c->packed) {
            int64_t stride[4] = { c->queries * all, all, c->width, 1 };
            x.parts[i].ndim = 4;
            memcpy(x.parts[i].shape, shape.dim, sizeof stride);
            memcpy(x.parts[i].stride, stride, sizeof stride);
            x.parts[i].offset += first * c->width;
            first += heads[i];
        }
    }
    return x;
}

static void end(three *x)
{
    for (int i = 0; i < 3; i++) {
        td_free(x->own[i]);
    }
}

static void check_grad(const attention_case *c, const td_tensor *got, double *want, double *terms,
                       double tolerance, const char *what)
{
    for (int64_t i = 0; c->accumulate && i < td_numel(got); i++) {
        want[i] += 0.5;
        terms[i] += 0.5;
    }
    ref_close(got, want, terms, tolerance, what);
    free(want);
    free(terms);
}

static void check_case(const attention_case *c, td_dtype dtype)
{
    three x = make(c, dtype, 1, 0.0), dx = make(c, dtype, 0, 0.5);
    td_tensor *dy = ref_tensor(td_shape_of(&x.parts[0]), dtype, TD_ROW_MAJOR, 9);
    td_tensor *y = ref_filled(td_shape_of(dy), dtype, TD_ROW_MAJOR, 9.0);
    td_tensor *lse = ref_filled(TD_SHAPE(c->batch, c->heads, c->queries),
                                dtype == TD_F64 ? TD_F64 : TD_F32, TD_ROW_MAJOR, 9.0);
    attention_values r = reference(c, ref_values(&x.parts[0]), ref_values(&x.parts[1]),
                                   ref_values(&x.parts[2]), ref_values(dy));
    td_attention_args args = { .q = &x.parts[0],
                               .k = &x.parts[1],
                               .v = &x.parts[2],
                               .y = y,
                               .lse = lse,
                               .causal = c->causal,
                               .scale = 1.0 / sqrt((double)c->width) };
    td_attention_grad_args grad = { .forward = args,
                                    .dy = dy,
                                    .dq = &dx.parts[0],
                                    .dk = &dx.parts[1],
                                    .dv = &dx.parts[2],
                                    .accumulate = { c->accumulate, c->accumulate, c->accumulate } };
    ref_kernels()->attention(&args);
    ref_kernels()->attention_grad(&grad);
    double tolerance = 3.0 * ref_tolerance(dtype);
    check_grad(&(attention_case){ 0 }, y, r.y, r.y_terms, tolerance, "attention");
    check_grad(c, &dx.parts[0], r.dq, r.dq_terms, tolerance, "dq");
    check_grad(c, &dx.parts[1], r.dk, r.dk_terms, tolerance, "dk");
    check_grad(c, &dx.parts[2], r.dv, r.dv_terms, tolerance, "dv");
    ref_close(lse, r.lse, NULL, dtype == TD_F64 ? 1e-11 : 1e-5, "lse");
    double *inputs[] = { r.q, r.k, r.v, r.dy, r.lse };
    for (int i = 0; i < 5; i++) {
        free(inputs[i]);
    }
    end(&x);
    end(&dx);
    td_free(dy);
    td_free(y);
    td_free(lse);
}

void attention_cases(td_dtype dtype)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_case(&cases[i], dtype);
    }
}
