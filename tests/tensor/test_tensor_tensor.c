/* Tensors: dtypes, creation, access, copies, ends. */
#include "tests/help/expect_fatal.h"
#include "tests/help/sanitized.h"

#include "tensor/kernels/element.h"
#include "tensor/storage.h"
#include "tensor/tensor.h"
#include "tensor/extend.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Under sanitizers, too, an allocation that is too large gives NULL. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

/* ---- dtypes ---- */

static void test_dtypes(void **state)
{
    (void)state;
    const char *const name[] = { "f32", "f64", "bf16", "f16", "i64", "i32", "u8" };
    const size_t size[] = { 4, 8, 2, 2, 8, 4, 1 };
    for (int d = 0; d < TD_DTYPE_COUNT; d++) {
        assert_string_equal(td_dtype_name((td_dtype)d), name[d]);
        assert_int_equal(td_dtype_size((td_dtype)d), size[d]);
        assert_int_equal(td_is_float((td_dtype)d), d < 4);
    }
}

/* The value of a half by its definition. */
static double f16_value(unsigned bits)
{
    int exponent = (int)((bits >> 10) & 31);
    double fraction = bits & 1023;
    double size = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    return bits & 0x8000 ? -size : size;
}

static void test_f16_values(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 0x10000; bits++) {
        float value = td_f16_to_f32((td_f16)bits);
        if ((bits & 0x7c00) != 0x7c00) {
            assert_true((double)value == f16_value(bits));
            assert_int_equal(signbit(value) != 0, bits >> 15);
        } else if ((bits & 0x3ff) == 0) {
            assert_true(isinf(value) && (value < 0) == (bits >> 15 != 0));
        } else {
            assert_true(isnan(value));
            assert_true(isnan(td_f16_to_f32(td_f32_to_f16(value))));
            continue;
        }
        assert_int_equal(td_f32_to_f16(value), bits);
    }
}

static void test_f16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 0x7c00; bits++) {
        /* 65536 takes infinity's place in the rounding of the largest values. */
        double low = f16_value(bits);
        double high = bits + 1 < 0x7c00 ? f16_value(bits + 1) : 65536.0;
        float middle = (float)((low + high) / 2); /* exact */
        unsigned even = bits % 2 == 0 ? bits : bits + 1;
        assert_int_equal(td_f32_to_f16(middle), even);
        assert_int_equal(td_f32_to_f16(nextafterf(middle, 0.0f)), bits);
        assert_int_equal(td_f32_to_f16(nextafterf(middle, INFINITY)), bits + 1);
        assert_int_equal(td_f32_to_f16(-middle), even | 0x8000);
    }
    assert_int_equal(td_f32_to_f16(FLT_MAX), 0x7c00);
    assert_int_equal(td_f32_to_f16(-FLT_TRUE_MIN), 0x8000);
}

static void test_bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    assert_int_equal(td_f32_to_bf16(1.0f), 0x3f80);
    assert_int_equal(td_f32_to_bf16(1.0f + 0x1p-8f), 0x3f80); /* a tie: even */
    assert_int_equal(td_f32_to_bf16(1.0f + 0x3p-8f), 0x3f82);
    assert_int_equal(td_f32_to_bf16(1.0f + 0x1.02p-8f), 0x3f81);
    assert_int_equal(td_f32_to_bf16(FLT_MAX), 0x7f80);
    assert_int_equal(td_f32_to_bf16(-INFINITY), 0xff80);
    assert_true(isnan(td_bf16_to_f32(td_f32_to_bf16(NAN))));
    for (unsigned bits = 0; bits < 0x7f80; bits += 7) {
        assert_int_equal(td_f32_to_bf16(td_bf16_to_f32((td_bf16)bits)), bits);
    }
}

static void test_elements_of_integers_are_clamped(void **state)
{
    (void)state;
    int64_t i64;
    int32_t i32;
    uint8_t u8;
    const double value[] = { 2.9, -2.9, 1e300, -1e300, NAN, 0x1p63, -0x1p63 };
    const int64_t as_i64[] = { 2, -2, INT64_MAX, INT64_MIN, 0, INT64_MAX, INT64_MIN };
    const int32_t as_i32[] = { 2, -2, INT32_MAX, INT32_MIN, 0, INT32_MAX, INT32_MIN };
    const uint8_t as_u8[] = { 2, 0, 255, 0, 0, 255, 0 };
    for (size_t i = 0; i < sizeof value / sizeof *value; i++) {
        td_store_element(&i64, TD_I64, 0, value[i]);
        td_store_element(&i32, TD_I32, 0, value[i]);
        td_store_element(&u8, TD_U8, 0, value[i]);
        assert_true(i64 == as_i64[i]);
        assert_true(i32 == as_i32[i]);
        assert_int_equal(u8, as_u8[i]);
    }
}

/* ---- creation ---- */

static void test_creation(void **state)
{
    (void)state;
    for (int d = 0; d < TD_DTYPE_COUNT; d++) {
        td_tensor *zeros = td_zeros(TD_SHAPE(2, 3), (td_dtype)d, TD_CPU);
        td_tensor *fives = td_full(TD_SHAPE(2, 3), 5, (td_dtype)d, TD_CPU_N(2));
        td_tensor *counted = td_arange(4, (td_dtype)d, TD_CPU);
        assert_int_equal((uintptr_t)td_data(zeros) % 64, 0);
        assert_int_equal(td_device_of(fives).index, 2);
        assert_int_equal(td_numel(zeros), 6);
        assert_int_equal(zeros->dtype, d);
        assert_true(td_get(zeros, (int64_t[]){ 1, 2 }) == 0.0);
        assert_true(td_get(fives, (int64_t[]){ 1, 2 }) == 5.0);
        assert_true(td_get(counted, (int64_t[]){ 3 }) == 3.0);
        td_free(zeros);
        td_free(fives);
        td_free(counted);
    }
    td_free(NULL);
}

static void test_scalars_and_empty_tensors(void **state)
{
    (void)state;
    td_tensor *scalar = td_full(TD_SCALAR, 2.5, TD_F32, TD_CPU);
    assert_int_equal(scalar->ndim, 0);
    assert_int_equal(td_numel(scalar), 1);
    assert_true(td_item(scalar) == 2.5);
    td_tensor *empty = td_zeros(TD_SHAPE(3, 0, 2), TD_F32, TD_CPU);
    assert_int_equal(td_numel(empty), 0);
    assert_non_null(td_data(empty));
    assert_true(td_is_contiguous(empty) && td_is_dense(empty));
    td_fill_(empty, 1.0);
    td_tensor *copy = td_clone(empty);
    assert_true(td_same_shape(copy, empty));
    expect_fatal("has 0 elements", td_item(empty));
    td_free(scalar);
    td_free(empty);
    td_free(copy);
}

static void test_values_go_in_and_out(void **state)
{
    (void)state;
    const float values[] = { 1, 2, 3, 4, 5, 6 };
    td_tensor *t = td_from(values, TD_SHAPE(2, 3), TD_F32, TD_CPU);
    assert_true(td_get(t, (int64_t[]){ 1, 0 }) == 4.0);
    td_set(t, (int64_t[]){ 1, 0 }, -4.0);
    double out[6];
    td_read(t, out, TD_F64);
    assert_true(out[3] == -4.0 && out[5] == 6.0);

    const uint8_t bytes[] = { 9, 8, 7, 6, 5, 4 };
    td_write(t, bytes, TD_U8);
    assert_true(td_get(t, (int64_t[]){ 0, 2 }) == 7.0);
    td_free(t);
}

static void test_read_is_row_major_for_any_layout(void **state)
{
    (void)state;
    td_tensor *image = td_new_layout(TD_SHAPE(2, 3, 4, 5), TD_F32, TD_IMAGE, TD_CPU);
    float values[120], out[120];
    for (int i = 0; i < 120; i++) {
        values[i] = (float)i;
    }
    td_write(image, values, TD_F32);
    td_read(image, out, TD_F32);
    assert_memory_equal(values, out, sizeof out);
    /* [1,2,3,4] lies at ((h*W + w)*N + n)*C + c. */
    assert_true(((const float *)td_data(image))[((3 * 5 + 4) * 2 + 1) * 3 + 2] == 119.0f);
    td_free(image);
}

static void test_borrowed_memory(void **state)
{
    (void)state;
    int32_t values[] = { 1, 2, 3, 4 };
    td_tensor *t = td_borrow(values, TD_SHAPE(2, 2), TD_I32, TD_CPU);
    assert_ptr_equal(td_data(t), values);
    td_set(t, (int64_t[]){ 1, 1 }, 40);
    assert_int_equal(values[3], 40);
    td_free(t);
    assert_int_equal(values[3], 40);
}

static void test_too_large_is_a_failure(void **state)
{
    (void)state;
    assert_null(td_new(TD_SHAPE(INT64_C(1) << 40, INT64_C(1) << 40), TD_F32, TD_CPU));
    assert_non_null(strstr(td_last_error(), "f32[1099511627776,1099511627776]"));
    assert_null(td_new(TD_SHAPE(INT64_C(1) << 61), TD_F64, TD_CPU));
    assert_null(td_zeros(TD_SHAPE(INT64_C(1) << 56), TD_F32, TD_CPU));
    assert_non_null(strstr(td_last_error(), "out of memory"));
    float value = 0;
    assert_null(td_from(&value, TD_SHAPE(INT64_C(1) << 56), TD_F32, TD_CPU));
    assert_null(td_arange(INT64_C(1) << 56, TD_F32, TD_CPU));
    assert_null(td_borrow(&value, TD_SHAPE(INT64_C(1) << 62), TD_F32, TD_CPU));
}

static void test_bad_shapes_are_mistakes(void **state)
{
    (void)state;
    expect_fatal("size -3 of dimension 1 is negative in shape [2,-3]",
                 td_new(TD_SHAPE(2, -3), TD_F32, TD_CPU));
    td_shape nine = { .ndim = 9 };
    expect_fatal("cannot have 9 dimensions", td_new(nine, TD_F32, TD_CPU));
}

/* ---- copies ---- */

static void test_clone_keeps_layout(void **state)
{
    (void)state;
    td_tensor *filter = td_new_layout(TD_SHAPE(4, 3, 2, 2), TD_F32, TD_FILTER, TD_CPU);
    td_generator g;
    td_generator_seed(&g, 1);
    td_uniform_(filter, -1, 1, &g);
    td_tensor *copy = td_clone(filter);
    assert_true(td_same_order(copy, filter));
    assert_memory_equal(td_data(copy), td_data(filter), 48 * sizeof(float));
    td_tensor *wide = td_clone_as(filter, TD_F64, TD_CPU_N(1));
    assert_int_equal(wide->dtype, TD_F64);
    assert_int_equal(td_device_of(wide).index, 1);
    const int64_t at[] = { 3, 1, 0, 1 };
    assert_true(td_get(wide, at) == td_get(filter, at));
    td_free(filter);
    td_free(copy);
    td_free(wide);
}

static void test_copy_converts(void **state)
{
    (void)state;
    const float values[] = { 1.5f, -2.25f, 3e4f, 0.1f };
    td_tensor *from = td_from(values, TD_SHAPE(2, 2), TD_F32, TD_CPU);
    for (int d = 0; d < TD_DTYPE_COUNT; d++) {
        td_tensor *to = td_zeros(TD_SHAPE(2, 2), (td_dtype)d, TD_CPU);
        td_copy_(to, from);
        for (int64_t i = 0; i < 4; i++) {
            double stored; /* what a single element becomes */
            td_store_element(&stored, (td_dtype)d, 0, values[i]);
            assert_true(td_get(to, (int64_t[]){ i / 2, i % 2 }) ==
                        td_load_element(&stored, (td_dtype)d, 0));
        }
        td_free(to);
    }
    td_tensor *other = td_zeros(TD_SHAPE(4), TD_F32, TD_CPU);
    expect_fatal("td_copy_: the shapes differ: a tensor f32[4] cpu:0 from a tensor f32[2,2] cpu:0",
                 td_copy_(other, from));
    td_free(from);
    td_free(other);
}

static void test_copy_between_overlapping_views(void **state)
{
    (void)state;
    const float values[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
    td_tensor *t = td_from(values, TD_SHAPE(3, 3), TD_F32, TD_CPU);
    td_tensor *transposed = td_slice_of_storage(t, 0, TD_SHAPE(3, 3), (int64_t[]){ 1, 3 });
    td_copy_(t, transposed);
    float out[9];
    td_read(t, out, TD_F32);
    const float expected[] = { 1, 4, 7, 2, 5, 8, 3, 6, 9 };
    assert_memory_equal(out, expected, sizeof out);
    td_free(t);
    td_free(transposed);
}

/* ---- mistakes ---- */

static void test_null_names_the_failure(void **state)
{
    (void)state;
    td_fail(TD_E_NOTFOUND, "no file 'w.bin'");
    expect_fatal("NULL tensor: an earlier call failed: no file 'w.bin'", td_data(NULL));
    expect_fatal("NULL tensor", td_data_rw(NULL));
    expect_fatal("NULL tensor", td_clone(NULL));
    expect_fatal("NULL tensor", td_fill_(NULL, 0.0));
}

/* By what free leaves of the header: a sanitizer stops before that. */
static void test_freed_tensors_are_named(void **state)
{
    (void)state;
#if TD_SANITIZED
    skip();
#endif
    td_tensor *t = td_zeros(TD_SHAPE(2, 3), TD_F32, TD_CPU);
    td_tensor *volatile again = t;
    td_free(t);
    expect_fatal("td_free: this tensor has been freed already", td_free(again));
    expect_fatal("this tensor has been freed (td_free)", td_data(again));
    expect_fatal("this tensor has been freed (td_free)", td_data_rw(again));
}

static void test_indices_are_checked(void **state)
{
    (void)state;
    td_tensor *t = td_zeros(TD_SHAPE(2, 3), TD_F32, TD_CPU);
    t->name = "weights";
    expect_fatal("index 3 of dimension 1 is out of range for 'weights' f32[2,3] cpu:0",
                 td_get(t, (int64_t[]){ 0, 3 }));
    expect_fatal("index -1 of dimension 0", td_set(t, (int64_t[]){ -1, 0 }, 1.0));
    expect_fatal("has 6 elements, not one", td_item(t));
    assert_int_equal(td_check_dim(t, -1, TD_HERE), 1);
    assert_int_equal(td_check_dim(t, 1, TD_HERE), 1);
    expect_fatal("dimension 2 is out of range", td_check_dim(t, 2, TD_HERE));
    expect_fatal("dimension -3 is out of range", td_check_dim(t, -3, TD_HERE));
    td_free(t);
}

static void test_writes_are_counted(void **state)
{
    (void)state;
    td_tensor *t = td_zeros(TD_SHAPE(2), TD_F32, TD_CPU);
    td_tensor *view = td_slice_of_storage(t, 1, TD_SHAPE(1), (int64_t[]){ 1 });
    const float values[] = { 1, 2 };
    uint32_t before = t->storage->version;
    td_data(t);
    td_item(view);
    assert_int_equal(t->storage->version, before);
    td_data_rw(t);
    td_set(t, (int64_t[]){ 0 }, 1.0);
    td_write(t, values, TD_F32);
    td_fill_(view, 3.0);
    td_copy_(view, view);
    assert_int_equal(t->storage->version, before + 5);
    td_free(view);
    td_free(t);
}

static void test_writes_into_expanded_tensors_are_refused(void **state)
{
    (void)state;
    td_tensor *base = td_zeros(TD_SHAPE(3), TD_F32, TD_CPU);
    td_tensor *t = td_slice_of_storage(base, 0, TD_SHAPE(4, 3), (int64_t[]){ 0, 1 });
    t->name = "bias";
    const float values[12] = { 0 };
    expect_fatal("'bias' f32[4,3] cpu:0 is expanded along dimension 0", td_data_rw(t));
    expect_fatal("td_fill_: 'bias'", td_fill_(t, 1.0));
    expect_fatal("td_copy_: 'bias'", td_copy_(t, t));
    expect_fatal("td_write: 'bias'", td_write(t, values, TD_F32));
    expect_fatal("td_set: 'bias'", td_set(t, (int64_t[]){ 0, 0 }, 1.0));
    expect_fatal("td_uniform_: 'bias'", td_uniform_(t, 0, 1, td_default_generator()));
    td_free(t);
    td_free(base);
}

static void *trim_heap(void *arg)
{
    (void)pthread_barrier_wait(arg);
    td_trim_heap();
    return NULL;
}

/* In a process that has not done it before. */
static void test_threads_trim_the_heap(void **state)
{
    (void)state;
    enum { THREADS = 16 };
    pthread_t threads[THREADS];
    pthread_barrier_t all;
    assert_int_equal(pthread_barrier_init(&all, NULL, THREADS), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, trim_heap, &all), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    pthread_barrier_destroy(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_trim_the_heap),
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_f16_values),
        cmocka_unit_test(test_f16_rounds_to_nearest_even),
        cmocka_unit_test(test_bf16_rounds_to_nearest_even),
        cmocka_unit_test(test_elements_of_integers_are_clamped),
        cmocka_unit_test(test_creation),
        cmocka_unit_test(test_scalars_and_empty_tensors),
        cmocka_unit_test(test_values_go_in_and_out),
        cmocka_unit_test(test_read_is_row_major_for_any_layout),
        cmocka_unit_test(test_borrowed_memory),
        cmocka_unit_test(test_too_large_is_a_failure),
        cmocka_unit_test(test_bad_shapes_are_mistakes),
        cmocka_unit_test(test_clone_keeps_layout),
        cmocka_unit_test(test_copy_converts),
        cmocka_unit_test(test_copy_between_overlapping_views),
        cmocka_unit_test(test_null_names_the_failure),
        cmocka_unit_test(test_freed_tensors_are_named),
        cmocka_unit_test(test_indices_are_checked),
        cmocka_unit_test(test_writes_are_counted),
        cmocka_unit_test(test_writes_into_expanded_tensors_are_refused),
    };
    return cmocka_run_group_tests_name("tensors", tests, NULL, NULL);
}
