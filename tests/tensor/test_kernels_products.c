/* Matrix products and convolutions through the kernel table: any strides, batches and layouts. What
 * lies behind (gemm.h, conv.h) has tests of its own. */
#include "tests/tensor/reference_products.h"
#include "tensor/extend.h"

/* ---- matrix products ---- */

static void check_matmul(td_tensor *c, td_tensor *a, td_tensor *b, td_tensor *bias, bool accumulate)
{
    ref_check_matmul(c, a, b, bias, accumulate, (td_math){ 0 }, 0);
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

/* Sums so long, and results so few, that devices cut the sums. */
static void long_sums(td_dtype t)
{
    check_matmul(matrix(TD_SHAPE(9, 7), t, 1), matrix(TD_SHAPE(9, 3001), t, 2),
                 matrix(TD_SHAPE(3001, 7), t, 3), matrix(TD_SHAPE(7), t, 4), true);
    check_matmul(ref_scattered(matrix(TD_SHAPE(2, 5, 3), t, 1)), matrix(TD_SHAPE(2, 5, 1200), t, 2),
                 shared(2, 1200, 3, t), NULL, false);
}

static void test_matmul(void **state)
{
    (void)state;
    ref_run(plain_products);
    ref_run(long_sums);
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

static const ref_conv conv_cases[] = {
    { 3, 3, 8, 9, 5, 3, 3, { { 1, 1 }, { 1, 1 }, { 1, 1 }, 1, { 0 } } },
    { 2, 4, 7, 6, 6, 3, 2, { { 2, 1 }, { 1, 0 }, { 1, 2 }, 2, { 0 } } },
    { 2, 5, 4, 4, 3, 1, 1, { { 2, 2 }, { 0, 0 }, { 1, 1 }, 1, { 0 } } },
    { 1, 2, 2, 2, 4, 3, 3, { { 1, 1 }, { 1, 1 }, { 1, 1 }, 1, { 0 } } },
    { 4, 3, 20, 21, 5, 3, 3, { { 1, 1 }, { 1, 1 }, { 1, 1 }, 1, { 0 } } },  /* many pixels */
    { 2, 12, 9, 7, 12, 3, 3, { { 1, 1 }, { 1, 1 }, { 1, 1 }, 12, { 0 } } }, /* depthwise */
    { 3, 35, 6, 5, 70, 5, 5, { { 2, 2 }, { 2, 2 }, { 1, 1 }, 35, { 0 } } },
    { 6, 8, 16, 17, 16, 3, 3, { { 1, 1 }, { 1, 1 }, { 1, 1 }, 4, { 0 } } },
    { 2, 40, 6, 5, 66, 3, 1, { { 1, 1 }, { 1, 0 }, { 1, 1 }, 2, { 0 } } },
    { 2, 3, 11, 12, 4, 3, 5, { { 2, 3 }, { 3, 4 }, { 2, 2 }, 1, { 0 } } },
};

static void conv_layouts(td_dtype dtype)
{
    for (size_t i = 0; i < sizeof conv_cases / sizeof conv_cases[0]; i++) {
        ref_conv_types types = { dtype, dtype, dtype, TD_IMAGE, TD_FILTER, 0 };
        ref_check_conv(&conv_cases[i], &types);
        types.image = types.filter = TD_ROW_MAJOR;
        ref_check_conv(&conv_cases[i], &types);
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
