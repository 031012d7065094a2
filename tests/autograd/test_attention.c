/* The operations of transformers. Attention: a row has the same bits from a cache as in the whole
 * sequence; packed and three tensors give the same bits; what does not fit is refused. Rotary
 * positions; the loss of a large vocabulary in chunks. */
#include "tests/help/expect_fatal.h"
#include "tests/autograd/ops_cases.h"
#include "tests/tensor/reference.h"

#include "autograd/autograd.h"
#include "tensor/cpu/isa.h"
#include "tensor/extend.h"

#include <math.h>
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

/* Angles, against the formula in double; bf16 rounds once. */
static void check_rope(td_dtype dtype, bool interleaved)
{
    enum { TOKENS = 5, PAIRS = 33, PAST = 1000 };
    td_tensor *x = ref_tensor(TD_SHAPE(2, TOKENS, 3, 2 * PAIRS), dtype, TD_ROW_MAJOR, 1);
    double *of = ref_values(x), *want = ref_zeros(td_numel(x)), *terms = ref_zeros(td_numel(x));
    for (int64_t i = 0; i < 2 * TOKENS * 3 * PAIRS; i++) {
        int64_t row = i / PAIRS, j = i % PAIRS, first = row * 2 * PAIRS;
        double angle = (double)(PAST + row / 3 % TOKENS) * 0.5 * pow(500.0, -(double)j / PAIRS);
        int64_t p = first + (interleaved ? 2 * j : j), q = interleaved ? p + 1 : p + PAIRS;
        want[p] = of[p] * cos(angle) - of[q] * sin(angle);
        want[q] = of[q] * cos(angle) + of[p] * sin(angle);
        terms[p] = terms[q] = fabs(of[p]) + fabs(of[q]);
    }
    td_step_begin();
    td_tensor *y =
        td_rope(x, .past = PAST, .base = 500.0, .scale = 0.5, .interleaved = interleaved);
    double angles = ref_device().type == TD_DEVICE_CPU ? 0.0 : 1e-3; /* others': in f32 */
    ref_close(y, want, terms, ref_tolerance(dtype) + angles, "rope");
    td_step_end();
    free(of);
    free(want);
    free(terms);
    td_free(x);
}

static void rope_cases(td_dtype dtype)
{
    check_rope(dtype, false);
    check_rope(dtype, true);
}

static void test_rope(void **state)
{
    (void)state;
    ref_run(rope_cases);
    ref_run_half(rope_cases);
}

/* ---- the loss of a large vocabulary ---- */

enum { WORDS = 9001, ROWS = 70, FEATURES = 17 };

typedef struct loss_outcome {
    double loss, *dx, *dw;
} loss_outcome;

/* The values are those of `dtype`; wide: computed in f64, by the two operations. */
static loss_outcome run_loss(td_dtype dtype, int64_t chunk, bool wide)
{
    td_tensor *labels = ref_indices(TD_SHAPE(ROWS), WORDS, 3);
    td_tensor *x = ref_tensor(TD_SHAPE(ROWS, FEATURES), dtype, TD_ROW_MAJOR, 1);
    td_tensor *w = ref_tensor(TD_SHAPE(WORDS, FEATURES), dtype, TD_ROW_MAJOR, 2);
    td_dtype to = dtype == TD_BF16 ? TD_F32 : dtype; /* of the weight */
    td_tensor *in[2] = { td_clone_as(x, wide ? TD_F64 : dtype, ref_device()),
                         td_clone_as(w, wide ? TD_F64 : to, ref_device()) };
    td_set(labels, (int64_t[]){ 9 }, 5.0);
    td_requires_grad(in[0], true);
    td_requires_grad(in[1], true);
    td_step_begin();
    td_tensor *loss =
        wide ? td_cross_entropy(td_linear(in[0], in[1], NULL), labels, .ignore_index = 5)
             : td_linear_cross_entropy(in[0], in[1], labels, .chunk = chunk, .ignore_index = 5);
    td_backward(loss);
    loss_outcome o = { td_item(loss), ref_values(td_grad(in[0])), ref_values(td_grad(in[1])) };
    td_step_end();
    ref_digest(&o.loss, sizeof o.loss);
    ref_digest(o.dx, ROWS * FEATURES * sizeof *o.dx);
    ref_digest(o.dw, WORDS * FEATURES * sizeof *o.dw);
    td_tensor *all[] = { labels, x, w, in[0], in[1] };
    for (int i = 0; i < 5; i++) {
        td_free(all[i]);
    }
    return o;
}

static void end_loss(loss_outcome *o)
{
    free(o->dx);
    free(o->dw);
}

/* In chunks, next to the two operations in double; chunks of whole steps do not change the loss. */
static void losses(td_dtype dtype)
{
    static const int64_t chunks[] = { 0, 1024, 4096, 3000 };
    double tolerance = dtype == TD_BF16 ? 1e-2 : 10.0 * ref_tolerance(dtype), first = 0.0;
    loss_outcome want = run_loss(dtype, 0, true);
    for (int i = 0; i < 4; i++) {
        loss_outcome o = run_loss(dtype, chunks[i], false);
        first = i == 0 ? o.loss : first;
        assert_true(fabs(o.loss - want.loss) <= tolerance * want.loss);
        assert_true(i == 3 || o.loss == first || ref_device().type != TD_DEVICE_CPU);
        assert_true(relative_l2(o.dx, want.dx, ROWS * FEATURES) <= tolerance);
        assert_true(relative_l2(o.dw, want.dw, WORDS * FEATURES) <= tolerance);
        end_loss(&o);
    }
    end_loss(&want);
}

static void test_linear_cross_entropy(void **state)
{
    (void)state;
    ref_run(losses);
    ref_run_half(losses);
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
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_linear_cross_entropy),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("attention", tests, NULL, NULL);
}
