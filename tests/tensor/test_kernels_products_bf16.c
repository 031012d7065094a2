/* Matrix products and convolutions whose tensors are bf16, alone and beside f32, against double
 * precision: the sum is as exact as an f32 one, and a bf16 result is rounded once. */
#include "tests/tensor/conv_case.h"
#include "tests/tensor/reference_products.h"

#include "tensor/cpu/conv.h"
#include "tensor/cpu/isa.h"
#include "tensor/extend.h"
#include "tensor/f16.h"

#include <stdlib.h>

/* Of split f32, against the sum of the absolute terms. A factor's second half is 2^-8 of it at
 * most, and what both halves leave out 2^-16; of a product the product of the second halves and
 * what either factor leaves out are missing: 3 times 2^-16 at most, and usually far less. */
#define SPLIT_TOLERANCE (3 * 0x1p-16)

/* Which of the operands are bf16; the others are f32. */
typedef struct mix {
    td_dtype c, a, b;
} mix;

static const mix mixes[] = {
    { TD_BF16, TD_BF16, TD_BF16 }, { TD_BF16, TD_BF16, TD_F32 }, { TD_F32, TD_BF16, TD_BF16 },
    { TD_F32, TD_BF16, TD_F32 },   { TD_F32, TD_F32, TD_BF16 },  { TD_BF16, TD_F32, TD_BF16 },
    { TD_BF16, TD_F32, TD_F32 },
};

static td_tensor *matrix(td_shape shape, td_dtype dtype, uint64_t seed)
{
    return ref_tensor(shape, dtype, TD_ROW_MAJOR, seed);
}

/* A [rows, columns] matrix that lies in memory by columns. */
static td_tensor *by_columns(int64_t rows, int64_t columns, td_dtype dtype, uint64_t seed)
{
    td_tensor *base = matrix(TD_SHAPE(columns, rows), dtype, seed);
    td_tensor *t = td_slice_of_storage(base, 0, TD_SHAPE(rows, columns), (int64_t[]){ 1, rows });
    td_free(base);
    return t;
}

/* Whether the instruction set has kernels of its own for bf16; if not, the general ones, which have
 * their tests, are used after a conversion, and a few cases are enough. */
static bool multiplies_bf16(void)
{
    return td_isa_current() > TD_ISA_VECTORS;
}

static void product_as(const mix *t, int64_t m, int64_t n, int64_t d)
{
    td_math math = { .precision = TD_PRECISION_BF16 };
    ref_check_matmul(matrix(TD_SHAPE(m, n), t->c, 1), matrix(TD_SHAPE(m, d), t->a, 2),
                     matrix(TD_SHAPE(d, n), t->b, 3), NULL, false, math, 0);
    ref_check_matmul(matrix(TD_SHAPE(m, n), t->c, 1), matrix(TD_SHAPE(m, d), t->a, 2),
                     by_columns(d, n, t->b, 3), matrix(TD_SHAPE(n), TD_F32, 4), true, math, 0);
    ref_check_matmul(by_columns(m, n, t->c, 1), by_columns(m, d, t->a, 2),
                     matrix(TD_SHAPE(d, n), t->b, 3), matrix(TD_SHAPE(n), TD_BF16, 4), false, math,
                     0);
    ref_check_matmul(ref_scattered(matrix(TD_SHAPE(m, n), t->c, 1)),
                     ref_scattered(matrix(TD_SHAPE(m, d), t->a, 2)),
                     ref_scattered(matrix(TD_SHAPE(d, n), t->b, 3)), NULL, true, math, 0);
}

static void products(td_dtype unused)
{
    (void)unused;
    static const int64_t sizes[][3] = {
        { 1, 1, 1 },  { 33, 10, 64 }, { 0, 3, 2 },    { 3, 0, 2 },    { 3, 4, 0 },
        { 1, 10, 9 }, { 33, 1, 20 },  { 70, 90, 50 }, { 64, 32, 96 }, { 7, 129, 31 },
    };
    for (size_t i = 0; i < sizeof mixes / sizeof mixes[0]; i++) {
        size_t step = i == 1 && multiplies_bf16() ? 1 : 3; /* the others: some of the sizes */
        for (size_t s = i % step; s < sizeof sizes / sizeof sizes[0]; s += step) {
            product_as(&mixes[i], sizes[s][0], sizes[s][1], sizes[s][2]);
        }
    }
}

static void test_matmul(void **state)
{
    (void)state;
    ref_run_as(products, TD_BF16);
}

/* Blocks of each number of rows have code of their own. */
static void row_counts(td_dtype unused)
{
    (void)unused;
    for (int64_t m = 1; m <= 33; m++) {
        product_as(&mixes[1], m, 20, 6);
    }
}

static void test_row_counts(void **state)
{
    (void)state;
    ref_run_as(row_counts, TD_BF16);
}

static void batched(td_dtype unused)
{
    (void)unused;
    td_math math = { 0 };
    for (size_t i = 0; i < sizeof mixes / sizeof mixes[0]; i++) {
        const mix *t = &mixes[i];
        ref_check_matmul(matrix(TD_SHAPE(3, 5, 7), t->c, 1), matrix(TD_SHAPE(3, 5, 9), t->a, 2),
                         matrix(TD_SHAPE(3, 9, 7), t->b, 3), matrix(TD_SHAPE(7), TD_F32, 4), true,
                         math, 0);
        ref_check_matmul(matrix(TD_SHAPE(2, 3, 34, 6), t->c, 1),
                         ref_scattered(matrix(TD_SHAPE(2, 3, 34, 35), t->a, 2)),
                         ref_tensor(TD_SHAPE(2, 3, 35, 6), t->b, TD_IMAGE, 3), NULL, false, math,
                         0);
        /* Twelve rows whose elements are apart in memory, which are one matrix with the shared
         * right side. */
        td_tensor *rows = matrix(TD_SHAPE(2, 24), t->a, 2),
                  *right = matrix(TD_SHAPE(2, 3), t->b, 3);
        ref_check_matmul(matrix(TD_SHAPE(12, 1, 3), t->c, 1),
                         td_slice_of_storage(rows, 0, TD_SHAPE(12, 1, 2), (int64_t[]){ 2, 2, 24 }),
                         td_slice_of_storage(right, 0, TD_SHAPE(12, 2, 3), (int64_t[]){ 0, 3, 1 }),
                         NULL, false, math, 0);
        td_free(rows);
        td_free(right);
    }
}

static void test_batched_matmul(void **state)
{
    (void)state;
    ref_run_as(batched, TD_BF16);
}

/* ---- convolutions ---- */

#define PARAMS(stride_, pad_, dilation_, groups_)                                                  \
    {                                                                                              \
        { stride_, stride_ }, { pad_, pad_ }, { dilation_, dilation_ }, groups_,                   \
        {                                                                                          \
            TD_PRECISION_BF16, false                                                               \
        }                                                                                          \
    }

static const ref_conv conv_cases[] = {
    { 3, 3, 8, 9, 5, 3, 3, PARAMS(1, 1, 1, 1) },    { 2, 3, 9, 8, 18, 7, 7, PARAMS(2, 3, 1, 1) },
    { 2, 4, 7, 6, 6, 3, 2, PARAMS(2, 1, 1, 2) },    { 2, 5, 4, 4, 3, 1, 1, PARAMS(2, 0, 1, 1) },
    { 1, 2, 2, 2, 4, 3, 3, PARAMS(1, 1, 1, 1) },    { 33, 36, 2, 2, 34, 3, 3, PARAMS(1, 1, 1, 1) },
    { 2, 6, 5, 5, 6, 3, 3, PARAMS(1, 1, 1, 6) },    { 7, 32, 1, 1, 64, 3, 3, PARAMS(1, 1, 1, 1) },
    { 1, 33, 9, 10, 17, 3, 3, PARAMS(1, 2, 2, 1) }, { 5, 16, 7, 6, 40, 3, 3, PARAMS(2, 1, 1, 1) },
    { 3, 64, 12, 3, 32, 3, 1, PARAMS(1, 0, 1, 2) }, { 0, 4, 3, 3, 4, 3, 3, PARAMS(1, 1, 1, 1) },
};

static void convolutions(td_dtype unused)
{
    (void)unused;
    size_t count = multiplies_bf16() ? sizeof conv_cases / sizeof conv_cases[0] : 3;
    for (size_t i = 0; i < count; i++) {
        ref_check_conv(&conv_cases[i],
                       &(ref_conv_types){ TD_BF16, TD_F32, TD_BF16, TD_IMAGE, TD_FILTER, 0 });
    }
    for (size_t i = 0; i < 3; i++) {
        ref_check_conv(&conv_cases[i],
                       &(ref_conv_types){ TD_BF16, TD_BF16, TD_BF16, TD_IMAGE, TD_FILTER, 0 });
        ref_check_conv(&conv_cases[i], &(ref_conv_types){ TD_BF16, TD_F32, TD_BF16, TD_ROW_MAJOR,
                                                          TD_ROW_MAJOR, 0 });
    }
}

static void test_convolution(void **state)
{
    (void)state;
    ref_run_as(convolutions, TD_BF16);
}

/* ---- convolutions of any shape ---- */

static uint64_t seed;

static int64_t below(int64_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((seed >> 33) % (uint64_t)n);
}

static int64_t one_of(const int64_t *values, int64_t count)
{
    return values[below(count)];
}

/* Channels below, at and above the sizes of tiles; every other one has groups, or many channels. */
static td_conv2d_desc any_conv(void)
{
    static const int64_t channels[] = { 1, 3, 8, 9, 16, 17, 31, 32, 33, 48, 64, 66, 70 };
    static const int64_t batches[] = { 1, 1, 2, 3, 7, 16, 17, 33, 40 };
    static const double largest = 6e4; /* products, so that the reference is not slow */
    td_conv2d_desc d;
    do {
        d = (td_conv2d_desc){ .dtype = TD_F32, .n = one_of(batches, 9), .groups = 1 };
        d.groups = below(4) == 0 ? 2 + below(3) : 1;
        d.ic = d.groups * one_of(channels, 13);
        d.oc = d.groups * one_of(channels, 13);
        if (below(8) == 0) {
            d.groups = d.ic;
            d.oc = d.ic * (1 + below(2));
        }
        d.ih = 1 + below(9);
        d.iw = 1 + below(9);
        d.kh = (int)(1 + below(5));
        d.kw = below(3) ? d.kh : (int)(1 + below(5));
        d.stride_h = (int)(1 + below(3));
        d.stride_w = (int)(1 + below(3));
        d.pad_h = (int)below(3);
        d.pad_w = (int)below(3);
        d.dil_h = below(4) ? 1 : 2;
        d.dil_w = below(4) ? 1 : 2;
    } while (!conv_finish(&d) ||
             (double)(d.n * d.oc * d.ih * d.iw) * (double)(d.ic / d.groups * d.kh * d.kw) >
                 largest);
    return d;
}

/* The dtypes of images and weights; f32 images are split, and their weights. */
static td_dtype image_dtype, weight_dtype;

static td_conv2d_desc as_bf16(const td_conv2d_desc *d)
{
    td_conv2d_desc desc = *d;
    desc.bf16 = true;
    desc.dtype = image_dtype;
    desc.weight_dtype = weight_dtype;
    return desc;
}

static size_t bf16_workspace(const td_conv2d_desc *d, td_conv2d_pass pass)
{
    td_conv2d_desc desc = as_bf16(d);
    return td_conv2d_workspace(&desc, pass);
}

/* `count` numbers in the dtype, in memory of their exact size. */
static void *as_dtype(const float *from, int64_t count, td_dtype dtype)
{
    size_t size = td_dtype_size(dtype);
    void *to = malloc((size_t)count * size + 1);
    assert_non_null(to);
    for (int64_t i = 0; i < count; i++) {
        if (dtype == TD_BF16) {
            ((td_bf16 *)to)[i] = td_f32_to_bf16(from[i]);
        } else {
            ((float *)to)[i] = from[i];
        }
    }
    return to;
}

static void take_back(float *to, const void *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = image_dtype == TD_BF16 ? td_bf16_to_f32(((const td_bf16 *)from)[i])
                                       : ((const float *)from)[i];
    }
}

static void run_bf16(td_pool *pool, const td_conv2d_desc *d, td_conv2d_pass pass,
                     const conv_operands *o, void *workspace)
{
    td_conv2d_desc desc = as_bf16(d);
    int64_t nx = d->n * d->ih * d->iw * d->ic, ny = d->n * d->oh * d->ow * d->oc;
    int64_t nw = (int64_t)d->kh * d->kw * (d->ic / d->groups) * d->oc;
    void *x = as_dtype(o->x, nx, image_dtype), *y = as_dtype(o->y, ny, image_dtype);
    void *w = as_dtype(o->w, nw, weight_dtype);
    bool weights = pass == TD_CONV2D_BACKWARD_WEIGHTS; /* their gradient is f32 */
    conv_operands operands = { x, weights ? o->w : w, o->bias, y, o->accumulate };
    td_conv2d_call call = conv_call(&desc, pass, &operands);
    td_conv2d_run(pool, &call, workspace);
    if (pass == TD_CONV2D_FORWARD) {
        take_back(o->y, y, ny);
    } else if (!weights) {
        take_back(o->x, x, nx);
    }
    free(x);
    free(y);
    free(w);
}

/* In bf16, with weights of either dtype, and split; those that the kernels of bf16 take. */
static void any_convolutions(td_dtype unused)
{
    (void)unused;
    static const conv_method rounded = { bf16_workspace, run_bf16, .bf16 = true };
    static const conv_method split = { bf16_workspace, run_bf16, .of_terms = SPLIT_TOLERANCE };
    int shapes = getenv("TANDEM_LONG") != NULL ? 20000 : 100;
    seed = 5;
    for (int i = 0; i < shapes && multiplies_bf16(); i++) {
        td_conv2d_desc d = any_conv();
        image_dtype = i % 3 < 2 ? TD_BF16 : TD_F32;
        weight_dtype = i % 3 == 1 ? TD_BF16 : TD_F32;
        td_conv2d_desc desc = as_bf16(&d);
        if (td_conv2d_takes_bf16(&desc)) {
            conv_check(i % 3 < 2 ? &rounded : &split, &d);
        }
    }
}

static void test_any_convolution(void **state)
{
    (void)state;
    ref_run_as(any_convolutions, TD_BF16);
}

/* ---- split f32 ---- */

static void split_products(td_dtype unused)
{
    (void)unused;
    td_math math = { .precision = TD_PRECISION_BF16X3 };
    static const int64_t sizes[][3] = { { 1, 1, 1 }, { 33, 10, 64 }, { 70, 90, 51 }, { 3, 4, 0 } };
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        int64_t m = sizes[s][0], n = sizes[s][1], d = sizes[s][2];
        ref_check_matmul(matrix(TD_SHAPE(m, n), TD_F32, 1), matrix(TD_SHAPE(m, d), TD_F32, 2),
                         matrix(TD_SHAPE(d, n), TD_F32, 3), matrix(TD_SHAPE(n), TD_F32, 4), true,
                         math, SPLIT_TOLERANCE);
        ref_check_matmul(by_columns(m, n, TD_F32, 1), by_columns(m, d, TD_F32, 2),
                         by_columns(d, n, TD_F32, 3), NULL, false, math, SPLIT_TOLERANCE);
    }
}

static void split_convolutions(td_dtype unused)
{
    (void)unused;
    size_t count = multiplies_bf16() ? sizeof conv_cases / sizeof conv_cases[0] : 1;
    for (size_t i = 0; i < count; i++) {
        ref_conv c = conv_cases[i];
        c.params.math.precision = TD_PRECISION_BF16X3;
        ref_check_conv(
            &c, &(ref_conv_types){ TD_F32, TD_F32, TD_F32, TD_IMAGE, TD_FILTER, SPLIT_TOLERANCE });
    }
}

static void test_split(void **state)
{
    (void)state;
    ref_run_as(split_products, TD_BF16);
    ref_run_as(split_convolutions, TD_BF16);
}

/* Relative error of a whole convolution: 4e-6 is what split f32 promises. */
static void test_split_error(void **state)
{
    (void)state;
    td_math math = { .precision = TD_PRECISION_BF16X3 };
    int64_t m = 64, n = 48, d = 1152;
    td_tensor *a = matrix(TD_SHAPE(m, d), TD_F32, 2), *b = matrix(TD_SHAPE(d, n), TD_F32, 3);
    td_tensor *c = matrix(TD_SHAPE(m, n), TD_F32, 1);
    double *left = ref_values(a), *right = ref_values(b), *want = ref_zeros(m * n);
    for (int64_t i = 0; i < m * n; i++) {
        for (int64_t l = 0; l < d; l++) {
            want[i] += left[i / n * d + l] * right[l * n + i % n];
        }
    }
    td_cpu_kernels()->matmul(c, a, b, NULL, false, math);
    double error = ref_relative_l2(c, want);
    print_message("relative error of split f32 (%s): %.2g\n", td_cpu_kernels()->name, error);
    assert_true(error < 5e-6);
    free(left);
    free(right);
    free(want);
    td_free(a);
    td_free(b);
    td_free(c);
}

static void test_math_setting(void **state)
{
    (void)state;
    td_math before = td_math_now();
    assert_int_equal(before.precision, TD_PRECISION_FP32);
    assert_false(before.winograd);
    td_set_math((td_math){ TD_PRECISION_BF16X3, true });
    assert_int_equal(td_math_now().precision, TD_PRECISION_BF16X3);
    assert_true(td_math_now().winograd);
    td_set_math(before);
    for (int i = 0; i < TD_PRECISION_COUNT; i++) {
        td_precision parsed;
        assert_true(td_precision_parse(td_precision_name((td_precision)i), &parsed));
        assert_int_equal(parsed, i);
    }
    td_precision untouched = TD_PRECISION_BF16;
    assert_false(td_precision_parse("fp8", &untouched));
    assert_int_equal(untouched, TD_PRECISION_BF16);
    assert_string_equal(td_precision_name((td_precision)99), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_row_counts),
        cmocka_unit_test(test_batched_matmul),
        cmocka_unit_test(test_convolution),
        cmocka_unit_test(test_split),
        cmocka_unit_test_setup_teardown(test_any_convolution, conv_make_pools, conv_free_pools),
        cmocka_unit_test(test_split_error),
        cmocka_unit_test(test_math_setting),
    };
    return cmocka_run_group_tests_name("kernels: products, bf16", tests, NULL, NULL);
}
