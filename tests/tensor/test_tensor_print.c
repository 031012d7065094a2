/* Tensors as text. */
#include "tensor/storage.h"
#include "tensor/tensor.h"
#include "tensor/extend.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Prints t, frees it, and compares. */
static void assert_prints(td_tensor *t, const char *expected)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    td_print(t, out);
    fclose(out);
    assert_string_equal(text, expected);
    free(text);
    td_free(t);
}

static void test_describe(void **state)
{
    (void)state;
    td_tensor *t = td_zeros(TD_SHAPE(32, 3, 8, 8), TD_BF16, TD_CPU_N(1));
    assert_string_equal(td_describe(t), "bf16[32,3,8,8] cpu:1");
    assert_string_equal(td_label(t), "a tensor bf16[32,3,8,8] cpu:1");
    t->name = "x";
    assert_string_equal(td_label(t), "'x' bf16[32,3,8,8] cpu:1");
    assert_string_equal(td_describe_shape(TD_SCALAR), "[]");
    assert_string_equal(td_describe(NULL), "NULL tensor");
    td_free(t);

    /* Eight results live side by side; the longest shape fits. */
    const char *first = td_describe_shape(TD_SHAPE(1));
    for (int64_t i = 2; i <= 8; i++) {
        td_describe_shape(TD_SHAPE(i));
    }
    assert_string_equal(first, "[1]");
    const int64_t n = INT64_MIN;
    assert_int_equal(strlen(td_describe_shape(TD_SHAPE(n, n, n, n, n, n, n, n))), 8 * 20 + 9);
}

static void test_describe_bytes(void **state)
{
    (void)state;
    assert_string_equal(td_describe_bytes(1000), "1000 bytes");
    assert_string_equal(td_describe_bytes(1536), "1.5 KiB");
    assert_string_equal(td_describe_bytes((size_t)3 << 40), "3.0 TiB");
    assert_string_equal(td_describe_bytes((size_t)5 << 50), "5120.0 TiB");
}

static void test_floats_are_aligned(void **state)
{
    (void)state;
    const float values[] = { 1, -2.5f, 0, 100.12345f, NAN, -INFINITY };
    assert_prints(td_from(values, TD_SHAPE(2, 3), TD_F32, TD_CPU),
                  "[[  1.0000,  -2.5000,   0.0000],\n"
                  " [100.1235,      nan,     -inf]]\n"
                  "f32[2,3] cpu:0\n");
}

static void test_wide_ranges_are_scientific(void **state)
{
    (void)state;
    const double small[] = { 1.0, 1e-6 };
    assert_prints(td_from(small, TD_SHAPE(2), TD_F64, TD_CPU),
                  "[1.0000e+00, 1.0000e-06]\nf64[2] cpu:0\n");
    const double large[] = { -2.5e7, 0.0 };
    assert_prints(td_from(large, TD_SHAPE(2), TD_F64, TD_CPU),
                  "[-2.5000e+07,  0.0000e+00]\nf64[2] cpu:0\n");
    const float no_finite[] = { INFINITY, NAN };
    assert_prints(td_from(no_finite, TD_SHAPE(2), TD_F32, TD_CPU), "[inf, nan]\nf32[2] cpu:0\n");
}

static void test_integers_are_plain(void **state)
{
    (void)state;
    const int64_t values[] = { 5, -12, INT64_MAX };
    assert_prints(td_from(values, TD_SHAPE(3, 1), TD_I64, TD_CPU), "[[                  5],\n"
                                                                   " [                -12],\n"
                                                                   " [9223372036854775807]]\n"
                                                                   "i64[3,1] cpu:0\n");
    const uint8_t bytes[] = { 0, 255 };
    assert_prints(td_from(bytes, TD_SHAPE(2), TD_U8, TD_CPU), "[  0, 255]\nu8[2] cpu:0\n");
}

static void test_scalars_and_empty_tensors(void **state)
{
    (void)state;
    assert_prints(td_full(TD_SCALAR, 0.5, TD_F16, TD_CPU), "0.5000\nf16[] cpu:0\n");
    assert_prints(td_zeros(TD_SHAPE(0), TD_F32, TD_CPU), "[]\nf32[0] cpu:0\n");
    assert_prints(td_zeros(TD_SHAPE(2, 0), TD_F32, TD_CPU), "[]\nf32[2,0] cpu:0\n");
}

static void test_matrices_have_a_line_between(void **state)
{
    (void)state;
    td_tensor *flat = td_arange(8, TD_I32, TD_CPU);
    td_tensor *cube = td_slice_of_storage(flat, 0, TD_SHAPE(2, 2, 2), (int64_t[]){ 1, 4, 2 });
    td_free(flat);
    assert_prints(cube, "[[[0, 2],\n"
                        "  [4, 6]],\n"
                        "\n"
                        " [[1, 3],\n"
                        "  [5, 7]]]\n"
                        "i32[2,2,2] cpu:0\n");
}

static void test_long_dimensions_are_abbreviated(void **state)
{
    (void)state;
    assert_prints(td_arange(1001, TD_I64, TD_CPU),
                  "[   0,    1,    2, ...,  998,  999, 1000]\ni64[1001] cpu:0\n");
    assert_prints(td_full(TD_SHAPE(7, 150), 1, TD_U8, TD_CPU), "[[1, 1, 1, ..., 1, 1, 1],\n"
                                                               " [1, 1, 1, ..., 1, 1, 1],\n"
                                                               " [1, 1, 1, ..., 1, 1, 1],\n"
                                                               " ...,\n"
                                                               " [1, 1, 1, ..., 1, 1, 1],\n"
                                                               " [1, 1, 1, ..., 1, 1, 1],\n"
                                                               " [1, 1, 1, ..., 1, 1, 1]]\n"
                                                               "u8[7,150] cpu:0\n");
    /* Six are shown in full. */
    assert_prints(td_full(TD_SHAPE(2, 1000), 1, TD_U8, TD_CPU), "[[1, 1, 1, ..., 1, 1, 1],\n"
                                                                " [1, 1, 1, ..., 1, 1, 1]]\n"
                                                                "u8[2,1000] cpu:0\n");
}

static void test_long_rows_are_continued(void **state)
{
    (void)state;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    td_tensor *t = td_arange(1000, TD_I64, TD_CPU);
    td_print(t, out);
    fclose(out);
    int64_t expected = 0;
    for (char *line = strtok(text, "\n"); line[0] != 'i'; line = strtok(NULL, "\n")) {
        assert_true(strlen(line) <= 100);
        assert_int_equal(line[0], expected == 0 ? '[' : ' ');
        for (char *number = line + 1; *number != '\0' && *number != ']'; expected++) {
            assert_int_equal(strtoll(number, &number, 10), expected);
            number += *number == ',';
            number += *number == ' ';
        }
    }
    assert_int_equal(expected, 1000);
    free(text);
    td_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_describe),
        cmocka_unit_test(test_describe_bytes),
        cmocka_unit_test(test_floats_are_aligned),
        cmocka_unit_test(test_wide_ranges_are_scientific),
        cmocka_unit_test(test_integers_are_plain),
        cmocka_unit_test(test_scalars_and_empty_tensors),
        cmocka_unit_test(test_matrices_have_a_line_between),
        cmocka_unit_test(test_long_dimensions_are_abbreviated),
        cmocka_unit_test(test_long_rows_are_continued),
    };
    return cmocka_run_group_tests_name("tensor printing", tests, NULL, NULL);
}
