/* The passes of the convolution against plain double-precision loops, at every instruction set of
 * the machine, on odd shapes; and the same bits for any number of threads. */
#include "tensor/cpu/conv.h"
#include "tensor/isa.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANDOM_SHAPES = 70 };

static uint64_t seed = 1;
static td_pool *pools[3];

static uint64_t random_bits(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed >> 33;
}

static int pick(const int *from, int count)
{
    return from[random_bits() % (uint64_t)count];
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

static array make_array(td_dtype dtype, int64_t count)
{
    array a = { count, malloc((size_t)count * type_size(dtype) + 1),
                malloc((size_t)count * sizeof(double) + 1) };
    assert_non_null(a.data);
    assert_non_null(a.exact);
    for (int64_t i = 0; i < count; i++) {
        float value = (float)random_bits() / (float)(1u << 30) - 1;
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
    td_conv2d_desc desc;
    bool accumulate;
    array x, w, bias, y, dy, dx, dw, db; /* y, dx, dw, db: what the results hold before */
    bool with_bias;
    reference ref_y, ref_dx, ref_dw, ref_db;
} test_case;

static void visit_case(void *ctx, int64_t x, int64_t w, int64_t y)
{
    test_case *t = ctx;
    add_term(&t->ref_y, y, t->x.exact[x] * t->w.exact[w]);
    add_term(&t->ref_dx, x, t->dy.exact[y] * t->w.exact[w]);
    add_term(&t->ref_dw, w, t->dy.exact[y] * t->x.exact[x]);
}

static test_case make_case(const td_conv2d_desc *d)
{
    test_case t = { .desc = *d, .accumulate = random_bits() % 2, .with_bias = random_bits() % 2 };
    int64_t nx = d->ih * d->iw * d->n * d->ic, ny = d->oh * d->ow * d->n * d->oc;
    int64_t nw = (int64_t)d->kh * d->kw * (d->ic / d->groups) * d->oc;
    t.x = make_array(d->dtype, nx);
    t.dx = make_array(d->dtype, nx);
    t.w = make_array(d->dtype, nw);
    t.dw = make_array(d->dtype, nw);
    t.y = make_array(d->dtype, ny);
    t.dy = make_array(d->dtype, ny);
    t.bias = make_array(d->dtype, d->oc);
    t.db = make_array(d->dtype, d->oc);
    t.ref_y = make_reference(&t.y, false);
    t.ref_dx = make_reference(&t.dx, t.accumulate);
    t.ref_dw = make_reference(&t.dw, t.accumulate);
    t.ref_db = make_reference(&t.db, t.accumulate);
    visit_all(d, visit_case, &t);
    for (int64_t i = 0; i < ny; i++) {
        add_term(&t.ref_db, i % d->oc, t.dy.exact[i]);
        if (t.with_bias) {
            add_term(&t.ref_y, i, t.bias.exact[i % d->oc]);
        }
    }
    return t;
}

static void free_case(test_case *t)
{
    array *arrays[] = { &t->x, &t->w, &t->bias, &t->y, &t->dy, &t->dx, &t->dw, &t->db };
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        free_array(arrays[i]);
    }
    free_reference(&t->ref_y);
    free_reference(&t->ref_dx);
    free_reference(&t->ref_dw);
    free_reference(&t->ref_db);
}

static void run_pass(td_pool *pool, const test_case *t, td_conv2d_pass pass, void *result,
                     void *workspace)
{
    const td_conv2d_desc *d = &t->desc;
    switch (pass) {
    case TD_CONV2D_FORWARD:
        td_conv2d_forward(pool, d, t->x.data, t->w.data, t->with_bias ? t->bias.data : NULL, result,
                          workspace);
        break;
    case TD_CONV2D_BACKWARD_DATA:
        td_conv2d_backward_data(pool, d, t->dy.data, t->w.data, result, t->accumulate, workspace);
        break;
    case TD_CONV2D_BACKWARD_WEIGHTS:
        td_conv2d_backward_weights(pool, d, t->x.data, t->dy.data, result, t->accumulate,
                                   workspace);
        break;
    case TD_CONV2D_BACKWARD_BIAS:
        td_conv2d_backward_bias(pool, d, t->dy.data, result, t->accumulate, workspace);
        break;
    }
}

/* The result of a pass in fresh memory. The workspace has the exact size, so that the sanitizer
 * sees a step beyond it, and is full of NaN, so that nothing stale is used. */
static void *compute(td_pool *pool, const test_case *t, td_conv2d_pass pass, const array *before)
{
    size_t bytes = (size_t)before->count * type_size(t->desc.dtype);
    void *result = malloc(bytes + 1);
    assert_non_null(result);
    memcpy(result, before->data, bytes);
    size_t need = td_conv2d_workspace(&t->desc, pass);
    void *workspace = malloc(need + 1);
    assert_non_null(workspace);
    memset(workspace, 0xff, need);
    run_pass(pool, t, pass, result, workspace);
    free(workspace);
    return result;
}

static void check_result(const test_case *t, const char *pass, const void *result,
                         const reference *ref, int64_t count)
{
    const td_conv2d_desc *d = &t->desc;
    for (int64_t i = 0; i < count; i++) {
        double value =
            d->dtype == TD_F32 ? (double)((const float *)result)[i] : ((const double *)result)[i];
        double limit = (d->dtype == TD_F32 ? 1e-6 : 1e-12) * ref->scale[i];
        double error = fabs(value - ref->sum[i]);
        if (!(error <= limit)) {
            fail_msg("%s, %s: n %d, %dx%dx%d -> %dx%dx%d, kernel %dx%d stride %d,%d pad %d,%d "
                     "dilation %d,%d groups %d: element %d is off by %g, %g allowed",
                     pass, td_isa_name(td_isa_current()), (int)d->n, (int)d->ic, (int)d->ih,
                     (int)d->iw, (int)d->oc, (int)d->oh, (int)d->ow, d->kh, d->kw, d->stride_h,
                     d->stride_w, d->pad_h, d->pad_w, d->dil_h, d->dil_w, (int)d->groups, (int)i,
                     error, limit);
        }
    }
}

static void check_pass(const test_case *t, td_conv2d_pass pass, const char *name,
                       const array *before, const reference *ref)
{
    void *alone = compute(NULL, t, pass, before);
    check_result(t, name, alone, ref, before->count);
    for (int i = 0; i < 3; i++) {
        void *together = compute(pools[i], t, pass, before);
        assert_memory_equal(alone, together, (size_t)before->count * type_size(t->desc.dtype));
        free(together);
    }
    free(alone);
}

static void check_shape(const td_conv2d_desc *desc)
{
    test_case t = make_case(desc);
    check_pass(&t, TD_CONV2D_FORWARD, "forward", &t.y, &t.ref_y);
    check_pass(&t, TD_CONV2D_BACKWARD_DATA, "backward-data", &t.dx, &t.ref_dx);
    check_pass(&t, TD_CONV2D_BACKWARD_WEIGHTS, "backward-weights", &t.dw, &t.ref_dw);
    check_pass(&t, TD_CONV2D_BACKWARD_BIAS, "backward-bias", &t.db, &t.ref_db);
    free_case(&t);
}

/* ---- shapes ---- */

/* Fills in the output's size; false if there is none. */
static bool finish(td_conv2d_desc *d)
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

static double work(const td_conv2d_desc *d)
{
    return (double)(d->n * d->oh * d->ow * d->oc) * (double)(d->ic / d->groups * d->kh * d->kw);
}

static td_conv2d_desc random_shape(td_dtype dtype)
{
    static const int channels[] = { 1, 2, 3, 5, 17, 33, 64, 65, 100, 130 };
    static const int batches[] = { 1, 1, 2, 7, 16, 33, 80 };
    td_conv2d_desc d;
    do {
        d = (td_conv2d_desc){ .dtype = dtype, .n = pick(batches, 7), .groups = 1 };
        d.ic = pick(channels, 10);
        d.oc = pick(channels, 10);
        switch (random_bits() % 5) {
        case 0:
            d.groups = d.oc = d.ic;
            break;
        case 1:
            d.groups = 1 + (int64_t)(random_bits() % 4);
            d.ic = d.groups * (1 + (int64_t)(random_bits() % 20));
            d.oc = d.groups * (1 + (int64_t)(random_bits() % 20));
            break;
        default:
            break;
        }
        d.ih = 1 + (int64_t)(random_bits() % 12);
        d.iw = 1 + (int64_t)(random_bits() % 12);
        d.kh = 1 + (int)(random_bits() % 7);
        d.kw = random_bits() % 3 ? d.kh : 1 + (int)(random_bits() % 7);
        d.stride_h = 1 + (int)(random_bits() % 3);
        d.stride_w = random_bits() % 2 ? d.stride_h : 1 + (int)(random_bits() % 3);
        d.pad_h = (int)(random_bits() % 4);
        d.pad_w = random_bits() % 2 ? d.pad_h : (int)(random_bits() % 4);
        d.dil_h = random_bits() % 4 ? 1 : 1 + (int)(random_bits() % 3);
        d.dil_w = random_bits() % 4 ? 1 : 1 + (int)(random_bits() % 3);
    } while (!finish(&d) || work(&d) > 2e6);
    return d;
}

/* Shapes of real networks, small: each takes another way through the code. */
static void known_shapes(td_dtype dtype)
{
    static const struct {
        int n, ic, size, oc, k, stride, pad, groups;
    } shapes[] = {
        { 3, 3, 16, 64, 7, 2, 3, 1 },    /* the first convolution */
        { 1, 3, 20, 64, 7, 2, 3, 1 },    /* the same, one picture */
        { 33, 64, 4, 64, 3, 1, 1, 1 },   /* one panel of 64: weights in place */
        { 7, 64, 5, 128, 3, 2, 1, 1 },   /* odd size, two strides */
        { 16, 64, 4, 128, 1, 2, 0, 1 },  /* pixels that meet no tap */
        { 80, 130, 1, 130, 3, 1, 1, 1 }, /* only the central tap meets anything */
        { 260, 4, 5, 10, 3, 1, 1, 1 },   /* enough rows for several partial results */
        { 2, 17, 15, 5, 3, 1, 1, 1 },
        { 150, 5, 3, 5, 3, 1, 1, 5 }, /* depthwise, several blocks of pictures */
        { 0, 17, 6, 5, 3, 1, 1, 1 },  /* no pictures */
        { 0, 6, 6, 6, 3, 1, 1, 6 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        td_conv2d_desc d = { .dtype = dtype,
                             .n = shapes[i].n,
                             .ic = shapes[i].ic,
                             .ih = shapes[i].size,
                             .iw = shapes[i].size,
                             .oc = shapes[i].oc,
                             .kh = shapes[i].k,
                             .kw = shapes[i].k,
                             .stride_h = shapes[i].stride,
                             .stride_w = shapes[i].stride,
                             .pad_h = shapes[i].pad,
                             .pad_w = shapes[i].pad,
                             .dil_h = 1,
                             .dil_w = 1,
                             .groups = shapes[i].groups };
        assert_true(finish(&d));
        check_shape(&d);
    }
}

static void all_shapes(td_dtype dtype)
{
    seed = 1;
    known_shapes(dtype);
    for (int i = 0; i < RANDOM_SHAPES; i++) {
        td_conv2d_desc d = random_shape(dtype);
        check_shape(&d);
    }
}

static void test_f32_portable(void **state)
{
    (void)state;
    td_isa_force(TD_ISA_PORTABLE);
    all_shapes(TD_F32);
}

static void test_f32_avx2(void **state)
{
    (void)state;
    if (td_isa_force(TD_ISA_AVX2) != TD_ISA_AVX2) {
        skip();
    }
    all_shapes(TD_F32);
}

static void test_f32_avx512(void **state)
{
    (void)state;
    if (td_isa_force(TD_ISA_AVX512) != TD_ISA_AVX512) {
        skip();
    }
    all_shapes(TD_F32);
}

static void test_f64(void **state)
{
    (void)state;
    all_shapes(TD_F64);
}

/* Taps that meet only padding: their gradient is zero to the bit, whatever was there before. */
static void test_dead_taps_are_zero(void **state)
{
    (void)state;
    td_isa_force(td_isa_detect());
    td_conv2d_desc d = { .dtype = TD_F32,
                         .n = 9,
                         .ic = 70,
                         .ih = 1,
                         .iw = 1,
                         .oc = 70,
                         .kh = 3,
                         .kw = 3,
                         .stride_h = 1,
                         .stride_w = 1,
                         .pad_h = 1,
                         .pad_w = 1,
                         .dil_h = 1,
                         .dil_w = 1,
                         .groups = 1 };
    assert_true(finish(&d));
    test_case t = make_case(&d);
    t.accumulate = false;
    float *dw = compute(NULL, &t, TD_CONV2D_BACKWARD_WEIGHTS, &t.dw);
    for (int64_t i = 0; i < t.dw.count; i++) {
        bool centre = i / (d.ic * d.oc) == 4;
        assert_true(centre == (dw[i] != 0));
    }
    free(dw);
    free_case(&t);
}

static int make_pools(void **state)
{
    static const int threads[] = { 2, 3, 8 };
    (void)state;
    for (int i = 0; i < 3; i++) {
        pools[i] = td_pool_new(threads[i]);
        if (!pools[i]) {
            return -1;
        }
    }
    return 0;
}

static int free_pools(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        td_pool_free(pools[i]);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32_portable),       cmocka_unit_test(test_f32_avx2),
        cmocka_unit_test(test_f32_avx512),         cmocka_unit_test(test_f64),
        cmocka_unit_test(test_dead_taps_are_zero),
    };
    return cmocka_run_group_tests(tests, make_pools, free_pools);
}
