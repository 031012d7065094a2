/* Attention as an operation: a row has the same bits from a cache as in the whole sequence; packed
 * and three tensors give the same bits; what does not fit is refused. */
#include "tests/help/expect_fatal.h"
#include "tests/tensor/reference.h"

#include "autograd/autograd.h"
#include "tensor/cpu/isa.h"
#include "tensor/extend.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, HEADS = 4, KV_HEADS = 2, WIDTH = 9, LENGTH = 150, ALL = HEADS + 2 * KV_HEADS };

static td_tensor *rows(td_tensor *x, int64_t begin, int64_t end)
{
    return td_contiguous(td_slice(x, 1, begin, end, 1));
}

/* Bits of the elements of a row-major step tensor. */
static void expect_same(const td_tensor *a, const td_tensor *b, const char *what)
{
    assert_int_equal(td_numel(a), td_numel(b));
    double *of_a = ref_values(a), *of_b = ref_values(b);
    if (memcmp(of_a, of_b, (size_t)td_numel(a) * sizeof *of_a) != 0) {
        fail_msg("%s: other bits", what);
    }
    free(of_a);
    free(of_b);
}

/* The sequence in pieces that end where `ends` says. */
static void check_cuts(td_tensor *qkv, const int64_t *ends, td_dtype dtype)
{
    td_shape shape = TD_SHAPE(BATCH, LENGTH + 3, KV_HEADS, WIDTH);
    td_tensor *k_cache = ref_filled(shape, dtype, TD_ROW_MAJOR, NAN);
    td_tensor *v_cache = ref_filled(shape, dtype, TD_ROW_MAJOR, NAN);
    td_step_begin();
    td_no_grad_begin();
    td_tensor *whole = td_attention(qkv, .heads = HEADS, .kv_heads = KV_HEADS);
    for (int64_t begin = 0; begin < LENGTH; begin = *ends++) {
        td_tensor *part =
            td_attention(rows(qkv, begin, *ends), .heads = HEADS, .kv_heads = KV_HEADS,
                         .k_cache = k_cache, .v_cache = v_cache, .past = begin);
        expect_same(part, rows(whole, begin, *ends), "a row from the cache");
    }
    ref_digest(td_data(whole), (size_t)td_numel(whole) * td_dtype_size(dtype));
    td_no_grad_end();
    td_step_end();
    td_free(k_cache);
    td_free(v_cache);
}

static void cuts(td_dtype dtype)
{
    static const int64_t ends[][8] = {
        { LENGTH },
        { 1, 2, 3, LENGTH },
        { 64, 128, LENGTH },
        { 37, 38, 101, 102, 149, LENGTH },
        { 63, 65, 66, 130, 131, LENGTH },
    };
    td_tensor *qkv = ref_tensor(TD_SHAPE(BATCH, LENGTH, ALL * WIDTH), dtype, TD_ROW_MAJOR, 1);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        check_cuts(qkv, ends[i], dtype);
    }
    int64_t single[LENGTH];
    for (int64_t i = 0; i < LENGTH; i++) {
        single[i] = i + 1;
    }
    check_cuts(qkv, single, dtype);
    td_free(qkv);
}

static void test_a_row_from_a_cache_has_the_bits_of_the_whole(void **state)
{
    (void)state;
    if (ref_device().type != TD_DEVICE_CPU) {
        skip(); /* composed */
    }
    ref_run(cuts);
    ref_run_half(cuts);
}

/* Packed, and as three views of the same memory: values and gradients. */
static void test_packed_and_three(void **state)
{
    (void)state;
    td_tensor *qkv = ref_tensor(TD_SHAPE(BATCH, 70, ALL * WIDTH), TD_F32, TD_ROW_MAJOR, 1);
    td_tensor *dy = ref_tensor(TD_SHAPE(BATCH, 70, HEADS * WIDTH), TD_F32, TD_ROW_MAJOR, 2);
    td_tensor *again = td_clone(qkv);
    td_requires_grad(qkv, true);
    td_requires_grad(again, true);
    td_step_begin();
    td_tensor *y = td_attention(qkv, .heads = HEADS, .kv_heads = KV_HEADS);
    td_tensor *parts[3];
    for (int i = 0; i < 3; i++) {
        int64_t first = i == 0 ? 0 : HEADS + (i - 1) * KV_HEADS, n = i == 0 ? HEADS : KV_HEADS;
        parts[i] = td_reshape(td_slice(again, 2, first * WIDTH, (first + n) * WIDTH, 1),
                              TD_SHAPE(BATCH, 70, n, WIDTH));
    }
    td_tensor *z = td_attention(.q = parts[0], .k = parts[1], .v = parts[2]);
    expect_same(y, z, "three tensors");
    td_backward(y, .gradient = dy);
    td_backward(z, .gradient = dy);
    expect_same(td_grad(qkv), td_grad(again), "gradients of three tensors");
    td_step_end();
    td_free(qkv);
    td_free(dy);
    td_free(again);
}

/* A NaN stays in its head, and before its row. */
static void test_nan_stays_in_its_head(void **state)
{
    (void)state;
    td_tensor *qkv = ref_tensor(TD_SHAPE(1, 5, 2 * 3 * 4), TD_F32, TD_ROW_MAJOR, 1);
    td_set(qkv, (int64_t[]){ 0, 2, 0 }, NAN); /* the query of head 0, row 2 */
    td_step_begin();
    td_tensor *y = td_attention(qkv, .heads = 2);
    for (int64_t t = 0; t < 5; t++) {
        for (int64_t i = 0; i < 8; i++) {
            assert_int_equal(isnan(td_get(y, (int64_t[]){ 0, t, i })) != 0, t == 2 && i < 4);
        }
    }
    td_step_end();
    td_free(qkv);
}

static void test_refusals(void **state)
{
    (void)state;
    td_tensor *x = td_zeros(TD_SHAPE(1, 4, 18), TD_F32, TD_CPU);
    td_tensor *q = td_zeros(TD_SHAPE(1, 4, 3, 2), TD_F32, TD_CPU);
    td_tensor *k = td_zeros(TD_SHAPE(1, 3, 1, 2), TD_F32, TD_CPU);
    td_tensor *wide = td_zeros(TD_SHAPE(1, 4, 2, 2), TD_F32, TD_CPU);
    td_tensor *cache = td_zeros(TD_SHAPE(1, 6, 3, 2), TD_F32, TD_CPU);
    td_step_begin();
    expect_fatal("attention: qkv", td_attention(.heads = 2));
    expect_fatal("there are 4 heads", td_attention(x, .heads = 4));
    expect_fatal("must divide the heads", td_attention(x, .heads = 3, .kv_heads = 2));
    expect_fatal("must be [B,T,heads,width]", td_attention(.q = q, .k = wide, .v = wide));
    expect_fatal("4 queries and 3 keys", td_attention(.q = q, .k = k, .v = k));
    expect_fatal("the scale is -1", td_attention(x, .heads = 3, .scale = -1.0));
    expect_fatal("needs k_cache and v_cache", td_attention(x, .heads = 3, .k_cache = cache));
    expect_fatal("takes no 4 rows",
                 td_attention(x, .heads = 3, .k_cache = cache, .v_cache = cache, .past = 3));
    td_requires_grad(x, true);
    expect_fatal("there is no gradient",
                 td_attention(x, .heads = 3, .k_cache = cache, .v_cache = cache));
    expect_fatal("with an even width", td_rope(x));
    td_step_abandon();
    td_free(x);
    td_free(q);
    td_free(k);
    td_free(wide);
    td_free(cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_row_from_a_cache_has_the_bits_of_the_whole),
        cmocka_unit_test(test_packed_and_three),
        cmocka_unit_test(test_nan_stays_in_its_head),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("attention", tests, NULL, NULL);
}
