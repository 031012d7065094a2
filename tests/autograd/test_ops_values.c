/* Operations on elements, reductions and shapes against the slow references. */
#include "autograd/ops/shapes.h"
#include "tests/help/expect_fatal.h"
#include "tests/autograd/ops_reference.h"
#include "tensor/extend.h"
#include "tensor/f16.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

static const td_dtype dtypes[] = { TD_F32, TD_F64 };
enum { DTYPES = 2 };

static int begin(void **state)
{
    (void)state;
    td_step_begin();
    return 0;
}

static int end(void **state)
{
    (void)state;
    td_step_end();
    ref_end();
    return 0;
}

static td_tensor *make(td_shape shape, td_dtype dtype, double from, double to)
{
    return ref_input(shape, dtype, TD_ROW_MAJOR, from, to);
}

static td_tensor *input(td_shape shape, td_dtype dtype)
{
    return make(shape, dtype, -3.0, 3.0);
}

/* ---- elements ---- */

static double f_neg(double x, double p)
{
    return (void)p, -x;
}
static double f_exp(double x, double p)
{
    return (void)p, exp(x);
}
static double f_log(double x, double p)
{
    return (void)p, log(x);
}
static double f_sqrt(double x, double p)
{
    return (void)p, sqrt(x);
}
static double f_pow(double x, double p)
{
    return pow(x, p);
}
static double f_relu(double x, double p)
{
    return (void)p, isnan(x) ? x : fmax(x, 0.0);
}
static double f_silu(double x, double p)
{
    return (void)p, x / (1.0 + exp(-x));
}
static double f_sigmoid(double x, double p)
{
    return (void)p, 1.0 / (1.0 + exp(-x));
}
static double f_tanh(double x, double p)
{
    return (void)p, tanh(x);
}
static double f_add(double x, double p)
{
    return x + p;
}
static double f_mul(double x, double p)
{
    return x * p;
}

/* 1 + erf loses digits where it is small; its terms are 1 and erf. */
static ref gelu_reference(ref x)
{
    ref y = ref_new(x.shape, true);
    for (int64_t i = 0; i < x.n; i++) {
        y.v[i] = 0.5 * x.v[i] * erfc(-x.v[i] / sqrt(2.0));
        y.terms[i] = 0.5 * fabs(x.v[i]) * (1.0 + fabs(erf(x.v[i] / sqrt(2.0))));
    }
    return y;
}

/* Holds a call, an expression of x, against a reference, an expression of r, on an input. */
#define CHECK_ON(input, call, reference)                                                           \
    do {                                                                                           \
        td_tensor *x = input;                                                                      \
        ref r = ref_read(x);                                                                       \
        ref_expect(call, reference, #call " of " #input);                                          \
    } while (0)

#define CHECK_UNARY(call, reference, from, to)                                                     \
    for (int i = 0; i < DTYPES; i++) {                                                             \
        td_dtype t = dtypes[i];                                                                    \
        CHECK_ON(make(TD_SCALAR, t, from, to), call, reference);                                   \
        CHECK_ON(make(TD_SHAPE(1), t, from, to), call, reference);                                 \
        CHECK_ON(make(TD_SHAPE(0, 3), t, from, to), call, reference);                              \
        CHECK_ON(make(TD_SHAPE(17), t, from, to), call, reference);                                \
        CHECK_ON(make(TD_SHAPE(1031), t, from, to), call, reference);                              \
        CHECK_ON(make(TD_SHAPE(2, 1, 9), t, from, to), call, reference);                           \
        CHECK_ON(ref_input(TD_SHAPE(3, 5, 4, 7), t, TD_IMAGE, from, to), call, reference);         \
        CHECK_ON(td_transpose(make(TD_SHAPE(19, 5), t, from, to), 0, 1), call, reference);         \
        CHECK_ON(td_slice(make(TD_SHAPE(9, 8), t, from, to), 1, 1, 8, 3), call, reference);        \
        CHECK_ON(td_expand(make(TD_SHAPE(3, 1), t, from, to), TD_SHAPE(2, 3, 4)), call,            \
                 reference);                                                                       \
    }

static void test_unary(void **state)
{
    (void)state;
    CHECK_UNARY(td_neg(x), ref_unary(r, f_neg, 0), -3.0, 3.0);
    CHECK_UNARY(td_exp(x), ref_unary(r, f_exp, 0), -3.0, 3.0);
    CHECK_UNARY(td_log(x), ref_unary(r, f_log, 0), 0.01, 9.0);
    CHECK_UNARY(td_sqrt(x), ref_unary(r, f_sqrt, 0), 0.0, 9.0);
}

static void test_activations(void **state)
{
    (void)state;
    CHECK_UNARY(td_relu(x), ref_unary(r, f_relu, 0), -3.0, 3.0);
    CHECK_UNARY(td_gelu(x), gelu_reference(r), -6.0, 6.0);
    CHECK_UNARY(td_silu(x), ref_unary(r, f_silu, 0), -30.0, 30.0);
    CHECK_UNARY(td_sigmoid(x), ref_unary(r, f_sigmoid, 0), -30.0, 30.0);
    CHECK_UNARY(td_tanh(x), ref_unary(r, f_tanh, 0), -12.0, 12.0);
}

static void test_with_a_number(void **state)
{
    (void)state;
    CHECK_UNARY(td_pow(x, 2.5), ref_unary(r, f_pow, 2.5), 0.0, 4.0);
    CHECK_UNARY(td_pow(x, -2.0), ref_unary(r, f_pow, -2.0), 0.5, 4.0);
    CHECK_UNARY(td_add_scalar(x, 0.75), ref_unary(r, f_add, 0.75), -3.0, 3.0);
    CHECK_UNARY(td_mul_scalar(x, -1.25), ref_unary(r, f_mul, -1.25), -3.0, 3.0);
}

static void test_extreme_values(void **state)
{
    (void)state;
    const double values[] = { 0.0, -0.0, INFINITY, -INFINITY, NAN, 200.0, -200.0, 1e-30, -1e-30 };
    for (int i = 0; i < DTYPES; i++) {
        double narrow = dtypes[i] == TD_F32;
        td_tensor *x = td_step_new(TD_SHAPE(9), dtypes[i], TD_ROW_MAJOR, TD_CPU, TD_HERE);
        td_write(x, values, TD_F64);
        ref r = ref_read(x);
        ref_expect(td_relu(x), ref_unary(r, f_relu, 0), "relu");
        ref_expect(td_sigmoid(x), ref_unary(r, f_sigmoid, 0), "sigmoid");
        ref_expect(td_tanh(x), ref_unary(r, f_tanh, 0), "tanh");
        ref_expect(td_sqrt(x), ref_unary(r, f_sqrt, 0), "sqrt");
        ref wide = ref_unary(r, f_exp, 0);
        for (int k = 0; narrow != 0.0 && k < 9; k++) {
            wide.v[k] = (float)wide.v[k]; /* exp(200) is infinite in f32 */
        }
        ref_expect(td_exp(x), wide, "exp");
    }
}

static void check_binary(td_tensor *a, td_tensor *b, td_tensor *positive)
{
    ref ra = ref_read(a), rb = ref_read(b), rp = ref_read(positive);
    ref_expect(td_add(a, b), ref_binary(REF_ADD, ra, rb), "add");
    ref_expect(td_sub(a, b), ref_binary(REF_SUB, ra, rb), "sub");
    ref_expect(td_mul(a, b), ref_binary(REF_MUL, ra, rb), "mul");
    ref_expect(td_div(a, positive), ref_binary(REF_DIV, ra, rp), "div");
}

static void test_binary(void **state)
{
    (void)state;
    td_shape shapes[][2] = {
        { TD_SCALAR, TD_SCALAR },
        { TD_SHAPE(1), TD_SHAPE(3, 1) },
        { TD_SHAPE(0, 3), TD_SHAPE(3) },
        { TD_SHAPE(0, 3), TD_SHAPE(1, 1) },
        { TD_SHAPE(17, 33), TD_SHAPE(17, 33) },
        { TD_SHAPE(4, 3, 5), TD_SHAPE(3, 1) },
        { TD_SHAPE(3, 1), TD_SHAPE(4, 1, 5) },
        { TD_SHAPE(5), TD_SHAPE(7, 5) },
        { TD_SHAPE(2, 3, 4, 5), TD_SHAPE(3, 1, 1) },
        { TD_SHAPE(2, 1, 2, 1, 2), TD_SHAPE(1, 3, 1, 3, 1) },
    };
    for (int i = 0; i < DTYPES; i++) {
        for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
            td_tensor *p = ref_input(shapes[k][1], dtypes[i], TD_ROW_MAJOR, 0.5, 4.0);
            check_binary(input(shapes[k][0], dtypes[i]), input(shapes[k][1], dtypes[i]), p);
        }
        td_shape image = TD_SHAPE(3, 5, 4, 2);
        td_tensor *a = ref_input(image, dtypes[i], TD_IMAGE, -3.0, 3.0);
        check_binary(a, ref_input(image, dtypes[i], TD_IMAGE, -3.0, 3.0),
                     ref_input(image, dtypes[i], TD_ROW_MAJOR, 0.5, 4.0));
        assert_true(td_is_layout(td_add(a, input(TD_SHAPE(5, 1, 1), dtypes[i])), TD_IMAGE));
        assert_true(td_is_layout(td_mul(input(TD_SHAPE(1), dtypes[i]), a), TD_IMAGE));
    }
}

/* ---- reductions ---- */

static void check_reductions(td_tensor *x, const char *what)
{
    ref r = ref_read(x);
    ref_expect(td_sum(x), ref_reduce(REF_SUM, r, -1, false), what);
    if (r.n > 0) {
        ref_expect(td_mean(x), ref_reduce(REF_MEAN, r, -1, false), what);
        ref_expect_exact(td_max(x), ref_reduce(REF_MAX, r, -1, false), what);
    }
    for (int d = 0; d < x->ndim; d++) {
        for (int keep = 0; keep < 2; keep++) {
            int dim = keep ? d - x->ndim : d;
            ref_expect(td_sum_dim(x, dim, keep), ref_reduce(REF_SUM, r, d, keep), what);
            if (x->shape[d] > 0) {
                ref_expect(td_mean_dim(x, dim, keep), ref_reduce(REF_MEAN, r, d, keep), what);
                ref_expect_exact(td_max_dim(x, dim, keep), ref_reduce(REF_MAX, r, d, keep), what);
                td_tensor *index = td_argmax(x, dim, keep);
                assert_int_equal(index->dtype, TD_I64);
                ref_expect_exact(index, ref_reduce(REF_ARGMAX, r, d, keep), what);
            }
        }
    }
}

static void test_reductions(void **state)
{
    (void)state;
    for (int i = 0; i < DTYPES; i++) {
        check_reductions(input(TD_SCALAR, dtypes[i]), "a scalar");
        check_reductions(input(TD_SHAPE(1), dtypes[i]), "one element");
        check_reductions(input(TD_SHAPE(5003), dtypes[i]), "a long vector");
        check_reductions(input(TD_SHAPE(33, 65), dtypes[i]), "a matrix");
        check_reductions(input(TD_SHAPE(3, 1, 7, 5), dtypes[i]), "four dimensions");
        check_reductions(input(TD_SHAPE(3, 0, 5), dtypes[i]), "an empty tensor");
        check_reductions(ref_input(TD_SHAPE(3, 9, 4, 5), dtypes[i], TD_IMAGE, -3.0, 3.0),
                         "an image");
        check_reductions(td_transpose(input(TD_SHAPE(17, 6), dtypes[i]), 0, 1), "a view");
        check_reductions(td_expand(input(TD_SHAPE(5, 1), dtypes[i]), TD_SHAPE(2, 5, 3)),
                         "an expanded tensor");
        assert_true(isnan(td_item(td_mean(input(TD_SHAPE(0), dtypes[i])))));
    }
    /* The first of equals; integers, too. */
    int64_t ties[] = { 2, 7, 7, 1, 7, 7, 3, 7 };
    td_tensor *t = td_step_new(TD_SHAPE(2, 4), TD_I64, TD_ROW_MAJOR, TD_CPU, TD_HERE);
    td_write(t, ties, TD_I64);
    ref_expect_exact(td_argmax(t, 1, false), ref_reduce(REF_ARGMAX, ref_read(t), 1, false), "ties");
}

/* ---- shapes ---- */

static void check_shapes(td_tensor *x)
{
    ref r = ref_read(x);
    int order[] = { 2, 0, 3, 1 }, swap[] = { 0, 3, 2, 1 };
    ref_expect_exact(td_permute(x, order), ref_permute(r, order), "permute");
    ref_expect_exact(td_transpose(x, 1, -1), ref_permute(r, swap), "transpose");
    td_shape flat = TD_SHAPE(r.shape.dim[0], r.n / r.shape.dim[0]);
    ref_expect_exact(td_flatten(x, 1), ref_reshape(r, flat), "flatten");
    ref_expect_exact(td_reshape(x, TD_SHAPE(-1)), ref_reshape(r, TD_SHAPE(r.n)), "reshape");
    ref turned = ref_permute(r, order);
    ref_expect_exact(td_reshape(td_permute(x, order), TD_SHAPE(2, -1)),
                     ref_reshape(turned, TD_SHAPE(2, r.n / 2)), "reshape of a view");
    ref_expect_exact(td_slice(x, 1, 1, -1, 2), ref_slice(r, 1, 1, (r.shape.dim[1] - 1) / 2, 2),
                     "slice");
    ref_expect_exact(td_slice(x, 2, 3, 2, 1), ref_slice(r, 2, 0, 0, 1), "empty slice");
    ref_expect_exact(td_slice(x, 1, 1, INT64_MAX, INT64_MAX), ref_slice(r, 1, 1, 1, 1),
                     "slice of one");
    ref_expect_exact(td_cat(((td_tensor *[]){ x, x }), 2, -2), ref_cat(r, r, 2), "cat");
    td_tensor *contiguous = td_contiguous(td_permute(x, order));
    assert_true(td_is_contiguous(contiguous));
    ref_expect_exact(contiguous, turned, "contiguous");
    ref_expect_exact(td_detach(x), r, "detach");
}

static void test_shapes(void **state)
{
    (void)state;
    for (int i = 0; i < DTYPES; i++) {
        check_shapes(input(TD_SHAPE(2, 7, 4, 5), dtypes[i]));
        check_shapes(ref_input(TD_SHAPE(2, 7, 4, 5), dtypes[i], TD_IMAGE, -3.0, 3.0));
        td_tensor *x = input(TD_SHAPE(3, 1), dtypes[i]);
        ref_expect_exact(td_expand(x, TD_SHAPE(2, 3, 4)),
                         ref_expand(ref_read(x), TD_SHAPE(2, 3, 4)), "expand");
    }
    check_shapes(ref_input(TD_SHAPE(2, 7, 4, 5), TD_I64, TD_ROW_MAJOR, -100.0, 100.0));
    check_shapes(ref_input(TD_SHAPE(2, 7, 4, 5), TD_BF16, TD_ROW_MAJOR, -3.0, 3.0));
}

/* What should cost nothing shares memory. */
static void test_views_share_memory(void **state)
{
    (void)state;
    td_tensor *x = input(TD_SHAPE(4, 6), TD_F32);
    assert_ptr_equal(td_transpose(x, 0, 1)->storage, x->storage);
    assert_ptr_equal(td_reshape(x, TD_SHAPE(2, 2, 6))->storage, x->storage);
    assert_ptr_equal(td_slice(x, 0, 1, 3, 1)->storage, x->storage);
    assert_ptr_equal(td_expand(x, TD_SHAPE(3, 4, 6))->storage, x->storage);
    assert_ptr_equal(td_contiguous(x), x);
    assert_ptr_not_equal(td_reshape(td_transpose(x, 0, 1), TD_SHAPE(24))->storage, x->storage);
    /* Maps of one pixel are matrices already, in the device's layout, too. */
    td_tensor *pixels = ref_input(TD_SHAPE(5, 7, 1, 1), TD_F32, TD_IMAGE, 0.0, 1.0);
    td_tensor *matrix = td_flatten(pixels, 1);
    assert_ptr_equal(matrix->storage, pixels->storage);
    assert_true(td_is_contiguous(matrix));
    assert_true(td_is_layout(td_reshape(matrix, TD_SHAPE(5, 7, 1, 1)), TD_IMAGE));
}

static void test_cast(void **state)
{
    (void)state;
    td_tensor *x = td_transpose(input(TD_SHAPE(7, 9), TD_F32), 0, 1);
    td_tensor *wide = td_cast(x, TD_F64);
    assert_int_equal(wide->dtype, TD_F64);
    ref_expect_exact(wide, ref_read(x), "f32 to f64");
    ref_expect_exact(td_cast(wide, TD_F32), ref_read(x), "f64 to f32");
    ref half = ref_read(x), whole = ref_read(x);
    for (int64_t i = 0; i < half.n; i++) {
        half.v[i] = (double)td_bf16_to_f32(td_f32_to_bf16((float)half.v[i]));
        whole.v[i] = trunc(whole.v[i]);
    }
    ref_expect_exact(td_cast(x, TD_BF16), half, "f32 to bf16");
    ref_expect_exact(td_cast(x, TD_I64), whole, "f32 to i64");
}

/* ---- along one dimension ---- */

/* A tensor of the step with these values. */
static td_tensor *of(td_shape shape, td_dtype dtype, const double *values)
{
    td_tensor *t = td_step_new(shape, dtype, TD_ROW_MAJOR, TD_CPU, TD_HERE);
    td_write(t, values, TD_F64);
    return t;
}
#define OF(shape, dtype, ...) of(shape, dtype, (const double[]){ __VA_ARGS__ })

static void check_values(const td_tensor *t, td_shape shape, td_dtype dtype, const double *want)
{
    double got[64];
    assert_true(td_shape_equal(td_shape_of(t), shape));
    assert_int_equal(t->dtype, dtype);
    td_read(t, got, TD_F64);
    for (int64_t i = 0; i < td_numel(t); i++) {
        assert_true(got[i] == want[i] || (isnan(got[i]) && isnan(want[i])));
    }
}
#define IS(t, shape, dtype, ...) check_values(t, shape, dtype, (const double[]){ __VA_ARGS__ })

static void test_order(void **state)
{
    (void)state;
    td_tensor *index, *x = OF(TD_SHAPE(6), TD_F32, 2, NAN, 1, 2, -INFINITY, 3);
    IS(td_sort(x, 0, false, &index), TD_SHAPE(6), TD_F32, -INFINITY, 1, 2, 2, 3, NAN);
    IS(index, TD_SHAPE(6), TD_I64, 4, 2, 0, 3, 5, 1);
    IS(td_sort(x, 0, true, &index), TD_SHAPE(6), TD_F32, NAN, 3, 2, 2, 1, -INFINITY);
    IS(index, TD_SHAPE(6), TD_I64, 1, 5, 0, 3, 2, 4);
    td_tensor *w = OF(TD_SHAPE(3, 2), TD_I64, 5, 1, 7, 1, 6, 1);
    IS(td_topk(w, 2, 0, &index), TD_SHAPE(2, 2), TD_I64, 7, 1, 6, 1);
    IS(index, TD_SHAPE(2, 2), TD_I64, 1, 0, 2, 1);
    IS(td_argmax_last(OF(TD_SHAPE(2, 3), TD_F32, 4, 9, 9, 2, 2, 1), 1, true), TD_SHAPE(2, 1),
       TD_I64, 2, 1);
    expect_fatal("topk: k is 4 along dimension 0 of x[3,2]", td_topk(w, 4, 0, NULL));
}

static void test_indices(void **state)
{
    (void)state;
    td_tensor *x = OF(TD_SHAPE(2, 3), TD_I32, 1, 2, 3, 4, 5, 6);
    IS(td_gather_dim(x, 1, OF(TD_SHAPE(2, 2), TD_I64, 2, 0, 1, 1)), TD_SHAPE(2, 2), TD_I32, 3, 1, 5,
       5);
    IS(td_index_select(x, 0, OF(TD_SHAPE(3), TD_I64, 1, 1, 0)), TD_SHAPE(3, 3), TD_I32, 4, 5, 6, 4,
       5, 6, 1, 2, 3);
    td_tensor *sum =
        td_scatter_add(OF(TD_SHAPE(3), TD_F32, 1, 1, 1), 0, OF(TD_SHAPE(4), TD_I64, 2, 0, 2, 2),
                       OF(TD_SHAPE(4), TD_F32, 1, 2, 3, 4));
    IS(sum, TD_SHAPE(3), TD_F32, 3, 1, 9);
    IS(td_one_hot(OF(TD_SHAPE(2), TD_I64, 2, 0), 3), TD_SHAPE(2, 3), TD_I64, 0, 0, 1, 1, 0, 0);
    expect_fatal("gather_dim: index 3 is out of range: it must be 0 to 2",
                 td_gather_dim(x, 1, OF(TD_SHAPE(1, 1), TD_I64, 3)));
    expect_fatal("index_select: index -1", td_index_select(x, 0, OF(TD_SHAPE(1), TD_I64, -1)));
    expect_fatal("one_hot: index 3 is out of range: it must be 0 to 2",
                 td_one_hot(OF(TD_SHAPE(1), TD_I64, 3), 3));
    expect_fatal("gather_dim: index[3,1] does not fit x[2,3]",
                 td_gather_dim(x, 1, OF(TD_SHAPE(3, 1), TD_I64, 0, 0, 0)));
}

static void test_sums_and_parts(void **state)
{
    (void)state;
    td_tensor *x = OF(TD_SHAPE(2, 3), TD_I64, 1, 2, 3, 4, 5, 6), *part[3];
    IS(td_cumsum(x, 0), TD_SHAPE(2, 3), TD_I64, 1, 2, 3, 5, 7, 9);
    IS(td_prod_dim(OF(TD_SHAPE(2, 0), TD_F32, 0), 1, false), TD_SHAPE(2), TD_F32, 1, 1);
    IS(td_tril(x, 0), TD_SHAPE(2, 3), TD_I64, 1, 0, 0, 4, 5, 0);
    IS(td_triu(x, 1), TD_SHAPE(2, 3), TD_I64, 0, 2, 3, 0, 0, 6);
    IS(td_flip(x, 1), TD_SHAPE(2, 3), TD_I64, 3, 2, 1, 6, 5, 4);
    IS(td_slice(x, 1, -1, -4, -2), TD_SHAPE(2, 2), TD_I64, 3, 1, 6, 4);
    IS(td_slice(x, 1, 0, 1, -1), TD_SHAPE(2, 0), TD_I64, 0);
    IS(td_tile(x, TD_SHAPE(1, 2)), TD_SHAPE(2, 6), TD_I64, 1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6);
    td_chunk(x, 2, 1, part);
    IS(part[0], TD_SHAPE(2, 2), TD_I64, 1, 2, 4, 5);
    IS(part[1], TD_SHAPE(2, 1), TD_I64, 3, 6);
    td_split_dim(x, ((const int64_t[]){ 1, 0, 2 }), 3, 1, part);
    IS(part[2], TD_SHAPE(2, 2), TD_I64, 2, 3, 5, 6);
    IS(td_pad(x, .before = { 0, 1 }, .value = 7), TD_SHAPE(2, 4), TD_I64, 7, 1, 2, 3, 7, 4, 5, 6);
    IS(td_pad(x, .after = { 0, 2 }, .mode = TD_PAD_REFLECT), TD_SHAPE(2, 5), TD_I64, 1, 2, 3, 2, 1,
       4, 5, 6, 5, 4);
    IS(td_norm(OF(TD_SHAPE(2, 2), TD_F32, 3, 4, 0, 0), TD_DIMS(1), false), TD_SHAPE(2), TD_F32, 5,
       0);
    expect_fatal("split: the parts have 2 elements",
                 td_split_dim(x, (&(const int64_t){ 2 }), 1, 1, part));
    expect_fatal("pad: 3 reflected along dimension 1 of x[2,3]: at most 2",
                 td_pad(x, .before = { 0, 3 }, .mode = TD_PAD_REFLECT));
    expect_fatal("squeeze: dimension 1 of x[2,3] has not size 1", td_squeeze(x, 1));
}

/* A loss that is not chosen, however large, takes no part. */
static void test_loss_by_sign(void **state)
{
    (void)state;
    td_tensor *x = OF(TD_SHAPE(4), TD_F32, INFINITY, -INFINITY, 1e-9, -1);
    td_tensor *y = OF(TD_SHAPE(4), TD_F32, -1, 1, 1, -1);
    IS(td_hinge_embedding_loss(x, y, .reduction = TD_LOSS_NONE), TD_SHAPE(4), TD_F32, 0, -INFINITY,
       (double)1e-9f, 2);
}

/* Where all values are equal the deviation and the length have no slope of their own: 0, as
 * PyTorch's. */
static void test_gradient_of_no_deviation(void **state)
{
    (void)state;
    td_tensor *x = td_full(TD_SHAPE(3, 4), 2.0, TD_F32, TD_CPU);
    td_requires_grad(x, true);
    td_backward(td_sum(td_std(x, TD_DIMS(1), 1.0, false)));
    for (int64_t i = 0; i < 12; i++) {
        assert_true(td_get(td_grad(x), (int64_t[]){ i / 4, i % 4 }) == 0.0);
    }
    td_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_unary, begin, end),
        cmocka_unit_test_setup_teardown(test_activations, begin, end),
        cmocka_unit_test_setup_teardown(test_with_a_number, begin, end),
        cmocka_unit_test_setup_teardown(test_extreme_values, begin, end),
        cmocka_unit_test_setup_teardown(test_binary, begin, end),
        cmocka_unit_test_setup_teardown(test_reductions, begin, end),
        cmocka_unit_test_setup_teardown(test_shapes, begin, end),
        cmocka_unit_test_setup_teardown(test_views_share_memory, begin, end),
        cmocka_unit_test_setup_teardown(test_cast, begin, end),
        cmocka_unit_test_setup_teardown(test_order, begin, end),
        cmocka_unit_test_setup_teardown(test_indices, begin, end),
        cmocka_unit_test_setup_teardown(test_sums_and_parts, begin, end),
        cmocka_unit_test_setup_teardown(test_loss_by_sign, begin, end),
        cmocka_unit_test_setup_teardown(test_gradient_of_no_deviation, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
