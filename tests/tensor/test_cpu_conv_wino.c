/* Winograd's transform against plain double-precision loops, at every instruction set of the
 * machine: also where conv.c would not take it, since its rules may change. */
#include "tensor/cpu/conv_wino_internal.h"
#include "tests/tensor/conv_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static size_t workspace_of(const td_conv2d_desc *d, td_conv2d_pass pass)
{
    td_conv_space space = { 0 };
    td_wino_run(NULL, &(td_conv2d_call){ .desc = d, .pass = pass }, &space);
    return (size_t)space.used;
}

static void run(td_pool *pool, const td_conv2d_desc *d, td_conv2d_pass pass, const conv_operands *o,
                void *workspace)
{
    td_conv2d_call call = conv_call(d, pass, o);
    td_wino_run(pool, &call, &(td_conv_space){ .base = workspace });
}

/* The transform's own error is about 2e-6 for many channels, and smaller for few. */
static const conv_method method = { workspace_of, run, .relative = 3e-6 };

static td_conv2d_desc shape(int n, int ic, int h, int w, int oc, int pad)
{
    td_conv2d_desc d = { .dtype = TD_F32,
                         .n = n,
                         .ic = ic,
                         .ih = h,
                         .iw = w,
                         .oc = oc,
                         .kh = 3,
                         .kw = 3,
                         .stride_h = 1,
                         .stride_w = 1,
                         .pad_h = pad,
                         .pad_w = pad,
                         .dil_h = 1,
                         .dil_w = 1,
                         .groups = 1 };
    assert_true(conv_finish(&d));
    assert_true(td_wino_possible(&d));
    return d;
}

static void all_shapes(td_isa isa)
{
    static const int channels[] = { 1, 3, 5, 16, 17, 33, 64, 65, 100 };
    if (td_isa_force(isa) != isa) {
        return;
    }
    conv_seed(7);
    td_conv2d_desc known[] = {
        shape(40, 64, 4, 4, 64, 1),  /* one tile in a picture */
        shape(3, 64, 8, 8, 130, 1),  /* more than two panels, the last one narrow */
        shape(2, 160, 7, 7, 20, 1),  /* longer sums than one partial sum; tails */
        shape(130, 20, 5, 3, 9, 0),  /* rounds that begin in the middle of a tile's pictures */
        shape(300, 16, 8, 9, 16, 2), /* several rounds of backward-weights */
        shape(1, 1, 3, 3, 1, 0),     /* one number */
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        conv_check(&method, &known[i]);
    }
    for (uint64_t i = conv_shapes(24, 6); i > 0; i--) {
        int ic = channels[conv_random() % 9], oc = channels[conv_random() % 9];
        int n = 1 + (int)(conv_random() % 6), pad = (int)(conv_random() % 3);
        int h = 3 + (int)(conv_random() % 9), w = 3 + (int)(conv_random() % 9);
        td_conv2d_desc d = shape(n, ic, h, w, oc, pad);
        conv_check(&method, &d);
    }
    td_isa_force(td_isa_detect());
}

/* Rounds that all threads share: of a deep layer in all passes, otherwise in backward-weights. */
static void test_rounds(void **state)
{
    (void)state;
    conv_seed(8);
    td_conv2d_desc deep = shape(22, 364, 5, 5, 324, 1), half = shape(60, 144, 6, 5, 130, 1);
    for (int pass = TD_CONV2D_FORWARD; pass <= TD_CONV2D_BACKWARD_WEIGHTS; pass++) {
        assert_true(td_wino_shares_rounds(&deep, (td_conv2d_pass)pass));
        assert_int_equal(pass == TD_CONV2D_BACKWARD_WEIGHTS,
                         td_wino_shares_rounds(&half, (td_conv2d_pass)pass));
    }
    conv_check(&method, &deep);
    conv_check(&method, &half);
    td_conv2d_desc one = shape(3, 364, 4, 3, 324, 1); /* a round that is not full */
    conv_check(&method, &one);
}

static void test_each_isa(void **state)
{
    (void)state;
    for (int isa = TD_ISA_PORTABLE; isa <= TD_ISA_VECTORS; isa++) {
        all_shapes((td_isa)isa);
    }
}

static void test_what_it_can_do(void **state)
{
    (void)state;
    td_conv2d_desc d = shape(4, 64, 8, 8, 64, 1), other = d;
    other.stride_h = other.stride_w = 2;
    assert_false(td_wino_possible(&other));
    other = d;
    other.dtype = TD_F64;
    assert_false(td_wino_possible(&other));
    other = d;
    other.groups = 2;
    assert_false(td_wino_possible(&other));
    other = d;
    other.pad_h = other.pad_w = 3;
    assert_false(td_wino_possible(&other));
    other = d;
    other.n = 0;
    assert_false(td_wino_possible(&other));
}

/* The convolution takes the transform only where it is allowed, and then where it wins. */
static void test_only_where_allowed(void **state)
{
    (void)state;
    td_conv2d_desc d = shape(256, 64, 8, 8, 64, 1);
    for (int pass = TD_CONV2D_FORWARD; pass <= TD_CONV2D_BACKWARD_WEIGHTS; pass++) {
        d.winograd = false;
        size_t direct = td_conv2d_workspace(&d, (td_conv2d_pass)pass);
        d.winograd = true;
        size_t allowed = td_conv2d_workspace(&d, (td_conv2d_pass)pass);
        assert_true(td_wino_wins(&d, (td_conv2d_pass)pass));
        assert_int_equal(allowed, workspace_of(&d, (td_conv2d_pass)pass));
        assert_int_not_equal(allowed, direct);
    }
    td_conv2d_desc tiny = shape(64, 512, 1, 1, 512, 1);
    assert_false(td_wino_wins(&tiny, TD_CONV2D_FORWARD)); /* one tap of nine meets anything */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_isa),
        cmocka_unit_test(test_rounds),
        cmocka_unit_test(test_what_it_can_do),
        cmocka_unit_test(test_only_where_allowed),
    };
    return cmocka_run_group_tests(tests, conv_make_pools, conv_free_pools);
}
