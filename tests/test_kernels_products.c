/* Matrix products and convolutions through the kernel table: any strides, batches and layouts. What
 * lies behind (gemm.h, conv.h) has tests of its own. */
#include "tests/reference.h"

#include "tensor/kernels.h"

#include <math.h>
#include <stdlib.h>

static const td_kernels *k(void)
{
    return td_cpu_kernels();
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

/* c = or += a b (+ bias); frees all. */
static void check_matmul(td_tensor *c, td_tensor *a, td_tensor *b, td_tensor *bias, bool accumulate)
{
    int64_t m = c->shape[c->ndim - 2], n = c->shape[c->ndim - 1], depth = a->shape[a->ndim - 1];
    int64_t count = td_numel(c);
    double *left = ref_values(a), *right = ref_values(b), *terms = ref_zeros(count);
    double *shift = bias ? ref_values(bias) : NULL;
    double *want = accumulate ? ref_values(c) : ref_zeros(count);
    product(count > 0 ? count / (m * n) : 0, m, n, depth, left, right, shift, want, terms);
    k()->matmul(c, a, b, bias, accumulate);
    ref_close(c, want, terms, ref_tolerance(c->dtype), "matmul");
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

/* The transposed view of a [rows, columns] matrix in other memory: [columns, rows]. */
static td_tensor *transposed(int64_t columns, int64_t rows, td_dtype dtype, uint64_t seed)
{
    td_tensor *base = ref_tensor(TD_SHAPE(rows, columns), dtype, TD_ROW_MAJOR, seed);
    td_tensor *t = td_slice_of_storage(base, 0, TD_SHAPE(columns, rows), (int64_t[]){ 1, columns });
    td_free(base);
    return t;
}

/* [batch, rows, columns] that is the same matrix for all. */
static td_tensor *shared(int64_t batch, int64_t rows, int64_t columns, td_dtype dtype)
{
    td_tensor *base = ref_tensor(TD_SHAPE(rows, columns), dtype, TD_ROW_MAJOR, 6);
    td_tensor *t =
        td_slice_of_storage(base, 0, TD_SHAPE(batch, rows, columns), (int64_t[]){ 0, columns, 1 });
    td_free(base);
    return t;
}

static td_tensor *matrix(td_shape shape, td_dtype dtype, uint64_t seed)
{
    return ref_tensor(shape, dtype, TD_ROW_MAJOR, seed);
}

static void plain_products(td_dtype t)
{
    static const int64_t sizes[][3] = { { 1, 1, 1 },   { 32, 64, 13 }, { 7, 3, 65 },
                                        { 0, 3, 2 },   { 3, 0, 2 },    { 3, 4, 0 },
                                        { 1, 100, 9 }, { 33, 1, 20 },  { 70, 90, 50 } };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t m = sizes[i][0], n = sizes[i][1], d = sizes[i][2];
        check_matmul(matrix(TD_SHAPE(m, n), t, 1), matrix(TD_SHAPE(m, d), t, 2),
                     matrix(TD_SHAPE(d, n), t, 3), NULL, false);
        check_matmul(matrix(TD_SHAPE(m, n), t, 1), matrix(TD_SHAPE(m, d), t, 2),
                     transposed(d, n, t, 3), matrix(TD_SHAPE(n), t, 4), true);
        check_matmul(transposed(m, n, t, 1), transposed(m, d, t, 2), transposed(d, n, t, 3),
                     ref_expanded(TD_SHAPE(n), t, 0.5), true);
        check_matmul(ref_scattered(matrix(TD_SHAPE(m, n), t, 1)),
                     ref_scattered(matrix(TD_SHAPE(m, d), t, 2)),
                     ref_scattered(matrix(TD_SHAPE(d, n), t, 3)), NULL, false);
    }
}

static void test_matmul(void **state)
{
    (void)state;
    ref_run(plain_products);
}

static void batched_products(td_dtype t)
{
    check_matmul(matrix(TD_SHAPE(3, 5, 7), t, 1), matrix(TD_SHAPE(3, 5, 9), t, 2),
                 matrix(TD_SHAPE(3, 9, 7), t, 3), NULL, false);
    check_matmul(matrix(TD_SHAPE(3, 5, 7), t, 1), matrix(TD_SHAPE(3, 5, 9), t, 2),
                 shared(3, 9, 7, t), matrix(TD_SHAPE(7), t, 4), true);
    check_matmul(matrix(TD_SHAPE(3, 5, 7), t, 1), ref_scattered(matrix(TD_SHAPE(3, 5, 9), t, 2)),
                 shared(3, 9, 7, t), NULL, false);
    check_matmul(matrix(TD_SHAPE(3, 5, 7), t, 1), shared(3, 5, 9, t), shared(3, 9, 7, t), NULL,
                 false);
    check_matmul(matrix(TD_SHAPE(3, 5, 7), t, 1), shared(3, 5, 9, t),
                 matrix(TD_SHAPE(3, 9, 7), t, 3), NULL, false);
    check_matmul(matrix(TD_SHAPE(2, 3, 4, 6), t, 1),
                 ref_scattered(matrix(TD_SHAPE(2, 3, 4, 5), t, 2)),
                 ref_tensor(TD_SHAPE(2, 3, 5, 6), t, TD_IMAGE, 3), NULL, true);
    check_matmul(ref_tensor(TD_SHAPE(2, 3, 4, 6), t, TD_IMAGE, 1),
                 matrix(TD_SHAPE(2, 3, 4, 5), t, 2), matrix(TD_SHAPE(2, 3, 5, 6), t, 3), NULL,
                 true);
    check_matmul(matrix(TD_SHAPE(0, 4, 6), t, 1), matrix(TD_SHAPE(0, 4, 5), t, 2),
                 matrix(TD_SHAPE(0, 5, 6), t, 3), NULL, false);
}

static void test_batched_matmul(void **state)
{
    (void)state;
    ref_run(batched_products);
}

/* ---- convolutions ---- */

typedef struct conv_case {
    int64_t n, ic, ih, iw, oc;
    int kh, kw;
    td_conv2d_params params;
} conv_case;

static const conv_case conv_cases[] = {
    { 3, 3, 8, 9, 5, 3, 3, { { 1, 1 }, { 1, 1 }, { 1, 1 }, 1 } },
    { 2, 4, 7, 6, 6, 3, 2, { { 2, 1 }, { 1, 0 }, { 1, 2 }, 2 } },
    { 2, 5, 4, 4, 3, 1, 1, { { 2, 2 }, { 0, 0 }, { 1, 1 }, 1 } },
    { 1, 2, 2, 2, 4, 3, 3, { { 1, 1 }, { 1, 1 }, { 1, 1 }, 1 } },
};

typedef struct conv_tensors {
    td_tensor *x, *w, *y;
    double *xv, *wv, *yv; /* their values, row-major */
    double *to, *terms;   /* the result: as large as the target */
    int target;           /* 0: y, 1: x, 2: w */
} conv_tensors;

/* The three passes are the same sum of products; `target` tells which of the three is wanted. */
static void conv_reference(const conv_case *c, conv_tensors *t)
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

static void make_tensors(const conv_case *c, td_dtype dtype, conv_tensors *t, td_layout image,
                         td_layout filter)
{
    const td_conv2d_params *p = &c->params;
    int64_t oh = (c->ih + 2 * p->pad[0] - p->dilation[0] * (c->kh - 1) - 1) / p->stride[0] + 1;
    int64_t ow = (c->iw + 2 * p->pad[1] - p->dilation[1] * (c->kw - 1) - 1) / p->stride[1] + 1;
    t->x = ref_tensor(TD_SHAPE(c->n, c->ic, c->ih, c->iw), dtype, image, 1);
    t->w = ref_tensor(TD_SHAPE(c->oc, c->ic / p->groups, c->kh, c->kw), dtype, filter, 2);
    t->y = ref_tensor(TD_SHAPE(c->n, c->oc, oh, ow), dtype, image, 3);
    t->xv = ref_values(t->x);
    t->wv = ref_values(t->w);
    t->yv = ref_values(t->y);
}

/* Computes what `target` names, into `to`, and compares. */
static void check_pass(const conv_case *c, conv_tensors *t, int target, td_tensor *to,
                       bool accumulate, td_tensor *bias)
{
    int64_t count = td_numel(to), per = to->shape[2] * to->shape[3];
    t->target = target;
    t->to = accumulate ? ref_values(to) : ref_zeros(count);
    t->terms = ref_zeros(count);
    for (int64_t i = 0; i < count; i++) {
        t->to[i] += bias ? td_get(bias, (int64_t[]){ i / per % to->shape[1] }) : 0.0;
        t->terms[i] += fabs(t->to[i]);
    }
    conv_reference(c, t);
    if (target == 0) {
        k()->conv2d(to, t->x, t->w, bias, &c->params);
    } else if (target == 1) {
        k()->conv2d_grad_input(to, t->y, t->w, &c->params, accumulate);
    } else {
        k()->conv2d_grad_weight(to, t->y, t->x, &c->params, accumulate);
    }
    ref_close(to, t->to, t->terms, ref_tolerance(to->dtype), "convolution");
    free(t->to);
    free(t->terms);
    td_free(to);
}

static void conv_layouts(td_dtype dtype)
{
    static const td_layout layouts[][2] = { { TD_IMAGE, TD_FILTER },
                                            { TD_ROW_MAJOR, TD_ROW_MAJOR } };
    for (size_t i = 0; i < sizeof conv_cases / sizeof conv_cases[0]; i++) {
        for (int l = 0; l < 2; l++) {
            const conv_case *c = &conv_cases[i];
            td_layout image = layouts[l][0], filter = layouts[l][1];
            conv_tensors t;
            make_tensors(c, dtype, &t, image, filter);
            td_tensor *bias = ref_tensor(TD_SHAPE(c->oc), dtype, TD_ROW_MAJOR, 4);
            td_shape x = td_shape_of(t.x), w = td_shape_of(t.w), y = td_shape_of(t.y);
            check_pass(c, &t, 0, ref_tensor(y, dtype, image, 5), false, NULL);
            check_pass(c, &t, 0, ref_tensor(y, dtype, image, 5), false, bias);
            check_pass(c, &t, 0, ref_scattered(ref_tensor(y, dtype, image, 5)), false, bias);
            check_pass(c, &t, 1, ref_tensor(x, dtype, image, 6), false, NULL);
            check_pass(c, &t, 1, ref_tensor(x, dtype, image, 6), true, NULL);
            check_pass(c, &t, 2, ref_tensor(w, dtype, filter, 7), false, NULL);
            check_pass(c, &t, 2, ref_tensor(w, dtype, filter, 7), true, NULL);
            td_free(bias);
            td_free(t.x);
            td_free(t.w);
            td_free(t.y);
            free(t.xv);
            free(t.wv);
            free(t.yv);
        }
    }
}

static void test_convolution(void **state)
{
    (void)state;
    ref_run(conv_layouts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_batched_matmul),
        cmocka_unit_test(test_convolution),
    };
    return cmocka_run_group_tests_name("kernels: products", tests, NULL, NULL);
}
