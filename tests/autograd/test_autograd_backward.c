/* The tape and backward: accumulation, branches, what needs no gradient, memory. */
#include "tests/help/expect_fatal.h"

#include "autograd/attention.h"
#include "autograd/autograd.h"
#include "autograd/tape.h"
#include "autograd/hooks.h"
#include "tensor/extend.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

/* A leaf [n] of f64 with the values first, first+1, ... */
static td_tensor *leaf(int64_t n, double first)
{
    td_tensor *t = td_new(TD_SHAPE(n), TD_F64, TD_CPU);
    assert_non_null(t);
    for (int64_t i = 0; i < n; i++) {
        td_set(t, &i, first + (double)i);
    }
    td_requires_grad(t, true);
    return t;
}

static double at(const td_tensor *t, int64_t i)
{
    assert_non_null(t);
    return td_get(t, &i);
}

static void expect_grad(const td_tensor *t, double g0, double g1)
{
    assert_true(at(td_grad(t), 0) == g0);
    assert_true(at(td_grad(t), 1) == g1);
}

/* ---- leaves ---- */

static void test_leaves(void **state)
{
    (void)state;
    td_tensor *x = leaf(2, 1.0);
    assert_true(td_is_leaf(x) && td_needs_grad(x));
    assert_null(td_grad(x));
    td_tensor *buffer = td_grad_buffer(x);
    assert_true(td_same_order(buffer, x));
    assert_null(td_grad(x)); /* memory is there, a gradient is not */
    td_fill_(buffer, 3.0);
    td_mark_grad(x);
    assert_ptr_equal(td_grad(x), buffer);
    td_zero_grad_of(x);
    assert_null(td_grad(x));
    td_requires_grad(x, true); /* twice is fine */
    assert_ptr_equal(td_grad_buffer(x), buffer);
    td_requires_grad(x, false);
    assert_false(td_is_leaf(x) || td_needs_grad(x));
    td_free(x);
}

/* A leaf's gradient lies in memory as the leaf does, also in memory that is given. */
static void test_gradient_memory(void **state)
{
    (void)state;
    td_tensor *w = td_new_layout(TD_SHAPE(3, 5), TD_F32, TD_FILTER, TD_CPU);
    td_requires_grad(w, true);
    assert_true(td_is_layout(td_grad_buffer(w), TD_FILTER));
    td_tensor *flat = td_zeros(TD_SHAPE(40), TD_F32, TD_CPU);
    td_tensor *slice = td_slice_of_storage(flat, 20, td_shape_of(w), w->stride);
    td_set_grad_storage(w, slice);
    assert_null(td_grad(w));
    td_step_begin();
    td_backward(td_sum(w));
    td_step_end();
    assert_ptr_equal(td_grad(w), slice);
    for (int64_t i = 0; i < 40; i++) {
        assert_true(at(flat, i) == (i >= 20 && i < 35 ? 1.0 : 0.0));
    }
    td_free(w);
    td_free(slice);
    td_free(flat);
}

/* ---- accumulation ---- */

static void test_two_backwards_add_up(void **state)
{
    (void)state;
    td_tensor *x = leaf(2, 1.0);
    for (int i = 1; i <= 2; i++) {
        td_step_begin();
        td_backward(td_sum(td_mul(x, x)));
        td_step_end();
        expect_grad(x, 2.0 * i, 4.0 * i);
    }
    td_zero_grad_of(x);
    td_step_begin();
    td_backward(td_sum(td_mul(x, x)));
    td_step_end();
    expect_grad(x, 2.0, 4.0); /* overwritten, not added to */
    td_free(x);
}

static void test_two_losses_on_one_tape(void **state)
{
    (void)state;
    td_tensor *x = leaf(2, 1.0);
    td_step_begin();
    td_tensor *first = td_sum(td_mul(x, x)), *second = td_sum(x);
    td_backward(first);
    td_backward(second);
    td_step_end();
    expect_grad(x, 3.0, 5.0);
    td_free(x);
}

/* x^3 + 2x by three uses of x, one of them of an inner result. */
static void test_branches(void **state)
{
    (void)state;
    td_tensor *x = leaf(2, 1.0);
    td_step_begin();
    td_tensor *square = td_mul(x, x);
    td_tensor *y = td_add(td_mul(square, x), td_mul_scalar(x, 2.0));
    td_backward(td_sum(y));
    td_step_end();
    expect_grad(x, 5.0, 14.0);
    td_free(x);
}

/* An inner result whose gradient is first shared with a neighbour's and then added to: the
 * neighbour's must not change. */
static void test_shared_gradients_are_copied_before_writing(void **state)
{
    (void)state;
    td_tensor *x = leaf(2, 1.0), *z = leaf(2, 10.0);
    td_step_begin();
    td_tensor *a = td_mul_scalar(x, 3.0), *b = td_mul_scalar(z, 5.0);
    td_retain_grad(a);
    td_retain_grad(b);
    td_tensor *square = td_mul(a, a); /* a's second contribution: 2a */
    td_tensor *sum = td_add(a, b);    /* dy is shared by a and b; recorded last, so run first */
    td_retain_grad(sum);
    td_backward(td_sum(td_add(sum, square)));
    expect_grad(a, 7.0, 13.0);
    expect_grad(b, 1.0, 1.0);
    expect_grad(sum, 1.0, 1.0);
    td_step_end();
    expect_grad(x, 21.0, 39.0);
    expect_grad(z, 5.0, 5.0);
    td_free(x);
    td_free(z);
}

static void test_backward_from_a_gradient(void **state)
{
    (void)state;
    td_tensor *x = leaf(2, 1.0);
    td_tensor *g = td_from((double[]){ 10.0, 100.0 }, TD_SHAPE(2), TD_F64, TD_CPU);
    td_step_begin();
    td_tensor *y = td_mul(x, x);
    td_backward(td_add(y, y), .gradient = g);
    td_step_end();
    expect_grad(x, 40.0, 800.0);
    assert_true(at(g, 0) == 10.0 && at(g, 1) == 100.0); /* only read */
    assert_int_equal(g->storage->refs, 1);
    td_free(g);
    td_free(x);
}

static void test_deep_chain(void **state)
{
    (void)state;
    td_tensor *x = leaf(2, 1.0);
    td_step_begin();
    td_tensor *y = x;
    for (int i = 0; i < 2000; i++) {
        y = i % 2 == 0 ? td_mul_scalar(y, 2.0) : td_mul_scalar(y, 0.5);
    }
    td_backward(td_sum(y));
    td_step_end();
    expect_grad(x, 1.0, 1.0);
    td_free(x);
}

/* The gradient of one dtype arrives in another. */
static void test_cast_carries_gradients(void **state)
{
    (void)state;
    td_tensor *x = td_from((float[]){ 1.0f, 2.0f }, TD_SHAPE(2), TD_F32, TD_CPU);
    td_requires_grad(x, true);
    td_step_begin();
    td_tensor *wide = td_cast(td_cast(td_cast(x, TD_BF16), TD_F32), TD_F64);
    td_backward(td_sum(td_mul(wide, wide)));
    assert_false(td_needs_grad(td_cast(x, TD_I64)));
    td_step_end();
    assert_int_equal(td_grad(x)->dtype, TD_F32);
    expect_grad(x, 2.0, 4.0);
    td_free(x);
}

/* ---- what takes no part ---- */

static void test_no_grad(void **state)
{
    (void)state;
    td_tensor *x = leaf(2, 1.0);
    td_step_begin();
    assert_true(td_grad_enabled());
    td_no_grad_begin();
    td_no_grad_begin();
    td_no_grad_end();
    assert_false(td_grad_enabled());
    td_tensor *constant = td_mul(x, x);
    td_no_grad_end();
    assert_true(td_grad_enabled());
    assert_false(td_needs_grad(constant));
    td_backward(td_sum(td_mul(constant, x)));
    td_step_end();
    expect_grad(x, 1.0, 4.0);
    expect_fatal("td_no_grad_end", td_no_grad_end());
    td_free(x);
}

static void test_detach_and_constants(void **state)
{
    (void)state;
    td_tensor *x = leaf(2, 1.0), *constant = td_clone(x), *unused = leaf(2, 5.0);
    td_step_begin();
    td_tensor *square = td_mul(x, x), *detached = td_detach(square);
    assert_ptr_equal(detached->storage, square->storage);
    assert_false(td_needs_grad(detached));
    td_tensor *apart = td_mul(unused, unused); /* recorded, but the loss does not depend on it */
    td_backward(td_sum(td_mul(td_mul(detached, x), constant)));
    assert_true(td_needs_grad(apart));
    td_step_end();
    expect_grad(x, 1.0, 8.0);
    assert_null(td_grad(unused));
    assert_null(td_grad(constant));
    td_free(x);
    td_free(constant);
    td_free(unused);
}

static void test_retain_grad(void **state)
{
    (void)state;
    td_tensor *x = leaf(2, 1.0);
    td_step_begin();
    td_tensor *y = td_mul(x, x), *z = td_mul_scalar(y, 3.0), *loss = td_sum(z);
    td_retain_grad(y);
    td_retain_grad(loss);
    assert_null(td_grad(y));
    td_backward(loss);
    expect_grad(y, 3.0, 3.0);
    assert_null(td_grad(z));
    assert_true(td_item(td_grad(loss)) == 1.0);
    assert_null(td_grad(td_detach(y)));
    td_step_end();
    expect_grad(x, 6.0, 12.0);
    td_free(x);
}

/* ---- memory ---- */

static size_t in_use(void)
{
    return td_step_memory(TD_CPU).in_use;
}

/* A module's scope gives back what backward does not need; what it needs goes on the way. */
static void test_memory_is_given_back_on_the_way(void **state)
{
    (void)state;
    enum { N = 4096, LAYERS = 10 };
    const size_t unit = N * sizeof(double);
    td_tensor *x = leaf(N, 0.0);
    td_step_begin();
    td_tensor *y = td_mul_scalar(x, 1e-4);
    for (int i = 0; i < LAYERS; i++) {
        int64_t scope = td_scope_begin();
        td_tensor *saved = td_tanh(y);                       /* saves its result */
        td_tensor *next = td_add_scalar(td_neg(saved), 0.1); /* save nothing */
        td_scope_end(scope, next);
        y = next;
    }
    td_tensor *loss = td_sum(y);
    size_t before = in_use();
    /* LAYERS saved results and LAYERS + 1 kept ones, no temporaries. */
    assert_true(before >= (2 * LAYERS + 1) * unit && before < (2 * LAYERS + 2) * unit);
    td_grad_buffer(x);
    td_backward(loss);
    assert_true(td_step_memory(TD_CPU).peak <= before + 3 * unit);
    /* What is left belongs to the step's own scope. */
    assert_true(in_use() >= (LAYERS + 1) * unit && in_use() < (LAYERS + 2) * unit);
    td_step_end();
    assert_non_null(td_grad(x));
    td_free(x);
}

/* Scopes that end before backward change nothing. */
static void test_scopes_do_not_touch_gradients(void **state)
{
    (void)state;
    td_tensor *x = leaf(2, 1.0);
    td_step_begin();
    int64_t outer = td_scope_begin();
    td_tensor *a = td_exp(x), *b = td_mul(a, a);
    td_scope_end(outer, b);
    int64_t around_backward = td_scope_begin();
    td_tensor *c = td_mul(b, b);
    td_retain_grad(b);
    td_backward(td_sum(c));
    td_scope_end(around_backward, NULL);
    assert_true(fabs(at(td_grad(b), 0) - 2.0 * exp(2.0)) < 1e-12);
    td_step_end();
    assert_true(fabs(at(td_grad(x), 0) - 4.0 * exp(4.0)) < 1e-9);
    td_free(x);
}

/* Steps that are equal get equal addresses; forward alone leaves nothing held. */
static void test_steps_repeat(void **state)
{
    (void)state;
    td_tensor *x = leaf(100, 0.01);
    uint64_t hash[3];
    for (int i = 0; i < 3; i++) {
        td_step_begin();
        td_tensor *y = td_softmax(td_mul(td_tanh(x), x), 0);
        td_backward(td_sum(td_mul(y, td_exp(y))));
        td_step_end();
        hash[i] = td_step_memory(TD_CPU).address_hash;
    }
    assert_true(hash[0] == hash[1] && hash[1] == hash[2]);
    td_step_begin();
    td_mul(td_tanh(x), x);
    td_step_end();
    assert_int_equal(x->storage->refs, 1);
    td_free(x);
}

/* A leaf may go while the tape still knows it; backward then leaves it out. */
static void test_leaf_freed_before_backward(void **state)
{
    (void)state;
    td_tensor *x = leaf(2, 1.0), *gone = leaf(2, 7.0);
    td_step_begin();
    td_tensor *loss = td_sum(td_add(td_mul(x, x), td_mul_scalar(gone, 2.0)));
    td_free(gone);
    td_backward(loss);
    td_step_end();
    expect_grad(x, 2.0, 4.0);
    td_free(x);
}

/* Operations with one input take its gradient for granted: without the input they do not run. */
static void test_the_only_input_freed_before_backward(void **state)
{
    (void)state;
    td_tensor *x = leaf(2, 1.0);
    td_tensor *table = td_full(TD_SHAPE(3, 2), 1.0, TD_F64, TD_CPU);
    td_tensor *turning = td_full(TD_SHAPE(1, 2, 1, 4), 1.0, TD_F64, TD_CPU);
    td_tensor *index = td_from((int64_t[]){ 2, 0 }, TD_SHAPE(2), TD_I64, TD_CPU);
    td_requires_grad(table, true);
    td_requires_grad(turning, true);
    td_step_begin();
    td_tensor *rows = td_embedding(index, table, .has_padding = true, .padding_idx = 2);
    td_tensor *turned = td_rope(turning, .past = 3);
    td_tensor *loss = td_add(td_sum(td_mul(x, x)), td_add(td_sum(rows), td_sum(turned)));
    td_free(table);
    td_free(turning);
    td_backward(loss);
    td_step_end();
    expect_grad(x, 2.0, 4.0);
    td_free(index);
    td_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leaves),
        cmocka_unit_test(test_gradient_memory),
        cmocka_unit_test(test_two_backwards_add_up),
        cmocka_unit_test(test_two_losses_on_one_tape),
        cmocka_unit_test(test_branches),
        cmocka_unit_test(test_shared_gradients_are_copied_before_writing),
        cmocka_unit_test(test_backward_from_a_gradient),
        cmocka_unit_test(test_deep_chain),
        cmocka_unit_test(test_cast_carries_gradients),
        cmocka_unit_test(test_no_grad),
        cmocka_unit_test(test_detach_and_constants),
        cmocka_unit_test(test_retain_grad),
        cmocka_unit_test(test_memory_is_given_back_on_the_way),
        cmocka_unit_test(test_scopes_do_not_touch_gradients),
        cmocka_unit_test(test_steps_repeat),
        cmocka_unit_test(test_leaf_freed_before_backward),
        cmocka_unit_test(test_the_only_input_freed_before_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
