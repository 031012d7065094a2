/* Checks one convolution of any shape against plain loops in double precision. */
#include "tests/tensor/conv_case.h"

#include "tensor/cpu/isa.h"
#include "tensor/f16.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed = 1;
static td_pool *pools[3];
static const int pool_threads[3] = { 2, 3, 7 };

uint64_t conv_random(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed >> 33;
}

void conv_seed(uint64_t value)
{
    seed = value;
}

static size_t type_size(td_dtype dtype)
{
    return dtype == TD_F32 ? sizeof(float) : sizeof(double);
}

/* ---- arrays: in the tested type, and exactly ---- */

typedef struct array {
    int64_t count;
    void *data;
    double *exact;
} array;

static array make_array(td_dtype dtype, bool bf16, int64_t count)
{
    array a = { count, malloc((size_t)count * type_size(dtype) + 1),
                malloc((size_t)count * sizeof(double) + 1) };
    assert_non_null(a.data);
    assert_non_null(a.exact);
    for (int64_t i = 0; i < count; i++) {
        float value = (float)conv_random() / (float)(1u << 30) - 1;
        value = bf16 ? td_bf16_to_f32(td_f32_to_bf16(value)) : value;
        if (dtype == TD_F32) {
            ((float *)a.data)[i] = value;
        } else {
            ((double *)a.data)[i] = value;
        }
        a.exact[i] = value;
    }
    return a;
}

static void free_array(array *a)
{
    free(a->data);
    free(a->exact);
}

/* ---- the reference ---- */

/* A sum and the sum of the magnitudes of its terms, for every element of a result. */
typedef struct reference {
    double *sum, *scale;
} reference;

static reference make_reference(const array *start, bool accumulate)
{
    reference r = { calloc((size_t)start->count + 1, sizeof(double)),
                    calloc((size_t)start->count + 1, sizeof(double)) };
    assert_non_null(r.sum);
    assert_non_null(r.scale);
    for (int64_t i = 0; accumulate && i < start->count; i++) {
        r.sum[i] = start->exact[i];
        r.scale[i] = fabs(start->exact[i]);
    }
    return r;
}

static void add_term(reference *r, int64_t at, double term)
{
    r->sum[at] += term;
    r->scale[at] += fabs(term);
}

static void free_reference(reference *r)
{
    free(r->sum);
    free(r->scale);
}

/* Calls visit for every triple (element of x, of w, of y) that the convolution multiplies. */
typedef void (*visit_fn)(void *ctx, int64_t x, int64_t w, int64_t y);

static void visit_pixel(const td_conv2d_desc *d, int64_t ih, int64_t iw, int64_t oh, int64_t ow,
                        int64_t tap, visit_fn visit, void *ctx)
{
    int64_t icg = d->ic / d->groups, ocg = d->oc / d->groups;
    for (int64_t n = 0; n < d->n; n++) {
        for (int64_t oc = 0; oc < d->oc; oc++) {
            for (int64_t ic = 0; ic < icg; ic++) {
                visit(ctx, ((ih * d->iw + iw) * d->n + n) * d->ic + oc / ocg * icg + ic,
                      (tap * icg + ic) * d->oc + oc, ((oh * d->ow + ow) * d->n + n) * d->oc + oc);
            }
        }
    }
}

static void visit_all(const td_conv2d_desc *d, visit_fn visit, void *ctx)
{
    for (int64_t oh = 0; oh < d->oh; oh++) {
        for (int64_t ow = 0; ow < d->ow; ow++) {
            for (int64_t tap = 0; tap < (int64_t)d->kh * d->kw; tap++) {
                int64_t ih = oh * d->stride_h - d->pad_h + tap / d->kw * d->dil_h;
                int64_t iw = ow * d->stride_w - d->pad_w + tap % d->kw * d->dil_w;
                if (ih >= 0 && ih < d->ih && iw >= 0 && iw < d->iw) {
                    visit_pixel(d, ih, iw, oh, ow, tap, visit, ctx);
                }
            }
        }
    }
}

/* ---- a case: its arrays and its three results ---- */

typedef struct test_case {
    const conv_method *method;
    td_conv2d_desc desc;
    bool accumulate;
    array x, w, bias, y, dy, dx, dw; /* y, dx, dw: what the results hold before */
    bool with_bias;
    reference ref_y, ref_dx, ref_dw;
} test_case;

static void visit_case(void *ctx, int64_t x, int64_t w, int64_t y)
{
    test_case *t = ctx;
    add_term(&t->ref_y, y, t->x.exact[x] * t->w.exact[w]);
    add_term(&t->ref_dx, x, t->dy.exact[y] * t->w.exact[w]);
    add_term(&t->ref_dw, w, t->dy.exact[y] * t->x.exact[x]);
}

static test_case make_case(const conv_method *method, const td_conv2d_desc *d)
{
    test_case t = { .method = method,
                    .desc = *d,
                    .accumulate = conv_random() % 2,
                    .with_bias = conv_random() % 2 };
    int64_t nx = d->ih * d->iw * d->n * d->ic, ny = d->oh * d->ow * d->n * d->oc;
    int64_t nw = (int64_t)d->kh * d->kw * (d->ic / d->groups) * d->oc;
    t.x = make_array(d->dtype, method->bf16, nx);
    t.dx = make_array(d->dtype, method->bf16, nx);
    t.w = make_array(d->dtype, method->bf16, nw);
    t.dw = make_array(d->dtype, method->bf16, nw);
    t.y = make_array(d->dtype, method->bf16, ny);
    t.dy = make_array(d->dtype, method->bf16, ny);
    t.bias = make_array(d->dtype, method->bf16, d->oc);
    t.ref_y = make_reference(&t.y, false);
    t.ref_dx = make_reference(&t.dx, t.accumulate);
    t.ref_dw = make_reference(&t.dw, t.accumulate);
    visit_all(d, visit_case, &t);
    for (int64_t i = 0; i < ny && t.with_bias; i++) {
        add_term(&t.ref_y, i, t.bias.exact[i % d->oc]);
    }
    return t;
}

static void free_case(test_case *t)
{
    array *arrays[] = { &t->x, &t->w, &t->bias, &t->y, &t->dy, &t->dx, &t->dw };
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        free_array(arrays[i]);
    }
    free_reference(&t->ref_y);
    free_reference(&t->ref_dx);
    free_reference(&t->ref_dw);
}

td_conv2d_call conv_call(const td_conv2d_desc *d, td_conv2d_pass pass, const conv_operands *o)
{
    return (td_conv2d_call){ .desc = d,
                             .pass = pass,
                             .x = o->x,
                             .w = o->w,
                             .y = o->y,
                             .bias = o->bias,
                             .accumulate = o->accumulate };
}

static void run_pass(td_pool *pool, const test_case *t, td_conv2d_pass pass, void *result,
                     void *workspace)
{
    conv_operands o = { .x = t->x.data,
                        .w = t->w.data,
                        .bias = t->with_bias ? t->bias.data : NULL,
                        .y = t->dy.data,
                        .accumulate = t->accumulate };
    switch (pass) {
    case TD_CONV2D_FORWARD:
        o.y = result;
        o.accumulate = false;
        break;
    case TD_CONV2D_BACKWARD_DATA:
        o.x = result;
        break;
    case TD_CONV2D_BACKWARD_WEIGHTS:
        o.w = result;
        break;
    }
    t->method->run(pool, &t->desc, pass, &o, workspace);
}

/* The result of a pass in fresh memory. The workspace has the exact size, so that the sanitizer
 * sees a step beyond it, and is full of NaN, so that nothing stale is used. */
static void *compute(td_pool *pool, const test_case *t, td_conv2d_pass pass, const array *before)
{
    size_t bytes = (size_t)before->count * type_size(t->desc.dtype);
    void *result = malloc(bytes + 1);
    assert_non_null(result);
    memcpy(result, before->data, bytes);
    size_t need = t->method->workspace(&t->desc, pass);
    void *workspace = malloc(need + 1);
    assert_non_null(workspace);
    memset(workspace, 0xff, need);
    run_pass(pool, t, pass, result, workspace);
    free(workspace);
    return result;
}

static void complain(const test_case *t, const char *pass, const char *what, double error,
                     double limit)
{
    const td_conv2d_desc *d = &t->desc;
    fail_msg("%s, %s: n %d, %dx%dx%d -> %dx%dx%d, kernel %dx%d stride %d,%d pad %d,%d "
             "dilation %d,%d groups %d: %s is off by %g, %g allowed",
             pass, td_isa_name(td_isa_current()), (int)d->n, (int)d->ic, (int)d->ih, (int)d->iw,
             (int)d->oc, (int)d->oh, (int)d->ow, d->kh, d->kw, d->stride_h, d->stride_w, d->pad_h,
             d->pad_w, d->dil_h, d->dil_w, (int)d->groups, what, error, limit);
}

static double value_at(const test_case *t, const void *result, int64_t i)
{
    return t->desc.dtype == TD_F32 ? (double)((const float *)result)[i]
                                   : ((const double *)result)[i];
}

/* Every element, against the magnitude of its own terms. */
static void check_elements(const test_case *t, const char *pass, const void *result,
                           const reference *ref, int64_t count)
{
    double of_terms = t->method->of_terms;
    of_terms = of_terms > 0 ? of_terms : t->desc.dtype == TD_F32 ? 1e-6 : 1e-12;
    for (int64_t i = 0; i < count; i++) {
        double limit = of_terms * ref->scale[i];
        limit += t->method->bf16 ? 0x1p-8 * fabs(ref->sum[i]) : 0;
        double error = fabs(value_at(t, result, i) - ref->sum[i]);
        if (!(error <= limit)) {
            char what[64];
            snprintf(what, sizeof what, "element %lld", (long long)i);
            complain(t, pass, what, error, limit);
        }
    }
}

/* The whole result, relative to its length; and no element alone, relative to the largest. */
static void check_whole(const test_case *t, const char *pass, const void *result,
                        const reference *ref, int64_t count)
{
    double squares = 0, errors = 0, largest = 0, worst = 0;
    for (int64_t i = 0; i < count; i++) {
        double error = fabs(value_at(t, result, i) - ref->sum[i]);
        squares += ref->sum[i] * ref->sum[i];
        errors += error * error;
        largest = fmax(largest, fabs(ref->sum[i]));
        worst = error <= worst ? worst : error; /* NaN stays */
    }
    double limit = t->method->relative;
    if (!(sqrt(errors) <= limit * sqrt(squares))) {
        complain(t, pass, "the result", sqrt(errors / squares), limit);
    }
    if (!(worst <= 5 * limit * largest)) {
        complain(t, pass, "some element", worst, 5 * limit * largest);
    }
}

static void check_pass(const test_case *t, td_conv2d_pass pass, const char *name,
                       const array *before, const reference *ref)
{
    void *alone = compute(NULL, t, pass, before);
    if (t->method->relative > 0) {
        check_whole(t, name, alone, ref, before->count);
    } else {
        check_elements(t, name, alone, ref, before->count);
    }
    int step = checks_part() ? 3 : 1; /* of the numbers of threads, any one */
    for (int i = step > 1 ? (int)(conv_random() % 3) : 0; i < 3; i += step) {
        void *together = compute(pools[i], t, pass, before);
        assert_memory_equal(alone, together, (size_t)before->count * type_size(t->desc.dtype));
        free(together);
    }
    free(alone);
}

void conv_check(const conv_method *method, const td_conv2d_desc *desc)
{
    test_case t = make_case(method, desc);
    check_pass(&t, TD_CONV2D_FORWARD, "forward", &t.y, &t.ref_y);
    check_pass(&t, TD_CONV2D_BACKWARD_DATA, "backward-data", &t.dx, &t.ref_dx);
    check_pass(&t, TD_CONV2D_BACKWARD_WEIGHTS, "backward-weights", &t.dw, &t.ref_dw);
    free_case(&t);
}

/* ---- shapes and pools ---- */

bool conv_finish(td_conv2d_desc *d)
{
    int64_t h = d->ih + 2 * d->pad_h - (int64_t)d->dil_h * (d->kh - 1) - 1;
    int64_t w = d->iw + 2 * d->pad_w - (int64_t)d->dil_w * (d->kw - 1) - 1;
    if (h < 0 || w < 0) {
        return false;
    }
    d->oh = h / d->stride_h + 1;
    d->ow = w / d->stride_w + 1;
    return true;
}

int conv_make_pools(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        pools[i] = td_pool_new(pool_threads[i]);
        if (!pools[i]) {
            return -1;
        }
    }
    return 0;
}

int conv_free_pools(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        td_pool_free(pools[i]);
    }
    return 0;
}
