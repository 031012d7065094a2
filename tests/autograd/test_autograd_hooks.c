/* Readiness: hooks fire once, in order, when the last contribution is in, and at the end; hooks of
 * leaves that got no gradient do not. */
#include "tests/help/expect_fatal.h"

#include "autograd/autograd.h"
#include "autograd/tape.h"
#include "autograd/hooks.h"
#include "tensor/extend.h"

#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { N = 2 };

/* What happened, as text: names of leaves as they get ready, and "end". */
static char events[1024];

static void note(const char *text)
{
    strncat(events, text, sizeof events - strlen(events) - 1);
}

static void note_ready(td_tensor *leaf, void *user)
{
    assert_non_null(td_grad(leaf)); /* it is there, and complete */
    note(leaf->name);
    note(user != NULL ? (const char *)user : "");
    note(" ");
}

static void note_end(void *user)
{
    (void)user;
    note("end ");
}

static td_tensor *leaf(const char *name)
{
    td_tensor *t = td_full(TD_SHAPE(N, N), 2.0, TD_F64, TD_CPU);
    assert_non_null(t);
    t->name = name;
    td_requires_grad(t, true);
    return t;
}

static td_tensor *a, *b, *c;
static int ready_hooks[3], end_hook;

static int begin(void **state)
{
    (void)state;
    events[0] = '\0';
    a = leaf("a");
    b = leaf("b");
    c = leaf("c");
    td_tensor *all[] = { a, b, c };
    for (int i = 0; i < 3; i++) {
        ready_hooks[i] = td_on_grad_ready(all[i], note_ready, NULL);
        assert_true(ready_hooks[i] > 0);
    }
    end_hook = td_on_backward_end(note_end, NULL);
    assert_true(end_hook > 0);
    td_step_begin();
    return 0;
}

static int end(void **state)
{
    (void)state;
    td_step_end();
    td_remove_backward_end_hook(end_hook);
    td_free(a);
    td_free(b);
    td_free(c);
    return 0;
}

/* The last layer's weight is ready first. */
static void test_order(void **state)
{
    (void)state;
    td_backward(td_sum(td_matmul(td_matmul(td_matmul(a, a), b), c)));
    assert_string_equal(events, "c b a end ");
}

/* A weight that is used several times is ready once, after its first use's backward; what one
 * operation makes ready comes in the order of its inputs. */
static void test_shared_weights(void **state)
{
    (void)state;
    td_backward(td_sum(td_matmul(td_matmul(td_matmul(a, b), c), a)));
    assert_string_equal(events, "c a b end ");
    events[0] = '\0';
    td_backward(td_sum(td_mul(b, b)));
    assert_string_equal(events, "b end ");
}

static void test_unused_leaves(void **state)
{
    (void)state;
    td_tensor *apart = td_matmul(c, c);
    td_backward(td_sum(td_mul(a, a)));
    assert_string_equal(events, "a end ");
    events[0] = '\0';
    td_backward(td_sum(apart)); /* the hooks follow each backward, not the step */
    assert_string_equal(events, "c end ");
    assert_null(td_grad(b));
}

/* A leaf is ready although an earlier backward left a gradient in it; and accumulates. */
static void test_every_backward(void **state)
{
    (void)state;
    td_backward(td_sum(a));
    td_backward(td_sum(td_mul(a, b)));
    assert_string_equal(events, "a end a b end ");
    assert_true(td_get(td_grad(a), (int64_t[]){ 0, 0 }) == 3.0);
}

static void test_several_hooks_and_removal(void **state)
{
    (void)state;
    int second = td_on_grad_ready(a, note_ready, "2");
    int third = td_on_grad_ready(a, note_ready, "3");
    assert_true(second > 0 && third > second);
    td_backward(td_sum(a));
    td_remove_grad_hook(a, second);
    td_remove_grad_hook(a, 12345);
    td_backward(td_sum(a));
    assert_string_equal(events, "a a2 a3 end a a3 end ");
    events[0] = '\0';
    td_remove_grad_hook(b, ready_hooks[1]);
    td_backward(td_sum(td_add(a, b)));
    assert_string_equal(events, "a a3 end ");
    td_tensor *product = td_sum(td_mul(a, c));
    td_requires_grad(c, false); /* no leaf any more: its gradient goes nowhere */
    td_backward(product);
    assert_string_equal(events, "a a3 end a a3 end ");
}

/* Hooks may remove themselves and add others while they run. */
static int once_id;

static void add_another(td_tensor *leaf_, void *user)
{
    note("+");
    td_remove_grad_hook(leaf_, once_id);
    for (int i = 0; i < 20; i++) {
        assert_true(td_on_grad_ready(leaf_, note_ready, user) > 0);
    }
}

static void test_hooks_change_hooks(void **state)
{
    (void)state;
    once_id = td_on_grad_ready(b, add_another, "x");
    td_backward(td_sum(b));
    assert_string_equal(events, "b +end ");
    events[0] = '\0';
    td_backward(td_sum(b));
    assert_string_equal(events, "b bx bx bx bx bx bx bx bx bx bx bx bx bx bx bx bx bx bx bx bx "
                                "end ");
}

/* An id is never another hook's, also where a leaf has begun anew. */
static void test_ids_are_not_used_again(void **state)
{
    (void)state;
    int former = td_on_grad_ready(b, add_another, "x");
    td_requires_grad(b, false);
    td_requires_grad(b, true);
    int now = td_on_grad_ready(b, add_another, "x");
    assert_int_not_equal(former, now);
    td_remove_grad_hook(b, now);
}

/* In the hook the gradient can be changed, as dist does. */
static void halve(td_tensor *leaf_, void *user)
{
    (void)user;
    td_mul_scalar_(td_grad(leaf_), 0.5);
}

static void test_hook_changes_the_gradient(void **state)
{
    (void)state;
    td_on_grad_ready(a, halve, NULL);
    td_backward(td_sum(td_add(a, a)));
    assert_true(td_get(td_grad(a), (int64_t[]){ 1, 1 }) == 1.0);
}

/* An operation that passes nothing on. */
static void silent_backward(td_node *node, const td_tensor *dy)
{
    (void)node;
    (void)dy;
}

static td_tensor *silent(td_tensor *x)
{
    td_tensor *y = td_step_view(x, x->offset, td_shape_of(x), x->stride, TD_HERE);
    return TD_RECORD(TD_HERE, .op = "silent", .backward = silent_backward, .out = y,
                     .inputs = { x });
}

/* A use that no gradient reaches is done all the same: a leaf is ready once, or never. */
static void test_uses_without_gradient(void **state)
{
    (void)state;
    td_tensor *unreached = td_mul(td_mul(a, b), b);
    td_backward(td_sum(td_add(silent(unreached), a)));
    assert_string_equal(events, "a end ");
    assert_null(td_grad(b));
    events[0] = '\0';
    td_backward(td_sum(td_add(td_mul(a, a), td_mul(silent(td_mul(a, b)), c))));
    assert_string_equal(events, "c a end ");
}

static void *other_thread(void *result)
{
    td_tensor *x = leaf("x");
    int hook = td_on_grad_ready(x, note_ready, NULL);
    td_step_begin();
    td_backward(td_sum(x)); /* no end hook of the main thread */
    td_step_end();
    *(bool *)result = hook > 0 && strcmp(events, "x ") == 0;
    td_free(x);
    return NULL;
}

static void test_threads_are_apart(void **state)
{
    (void)state;
    pthread_t thread;
    bool good = false;
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &good), 0);
    pthread_join(thread, NULL);
    assert_true(good);
    td_backward(td_sum(a));
    assert_string_equal(events, "x a end ");
}

static void backward_again(td_tensor *leaf_, void *user)
{
    (void)user;
    td_backward(td_sum(leaf_));
}

static void test_backward_in_a_hook_is_refused(void **state)
{
    (void)state;
    int id = td_on_grad_ready(a, backward_again, NULL);
    expect_fatal("inside a backward", td_backward(td_sum(td_mul(a, a))));
    td_step_abandon();
    td_remove_grad_hook(a, id);
    events[0] = '\0';
    td_step_begin();
    td_backward(td_sum(td_mul(a, a)));
    assert_string_equal(events, "a end ");
}

static void note_result(const td_tensor *t, const char *op, const char *module, int input,
                        void *user)
{
    char text[64];
    snprintf(text, sizeof text, "%s%s%d ", op, (const char *)user, input);
    assert_true(td_numel(t) > 0 && module == NULL);
    note(text);
}

/* Forward's results and backward's gradients, in the order of the operations, until it ends. */
static void test_results_are_observed(void **state)
{
    (void)state;
    td_observe_results(note_result, ":");
    td_tensor *loss = td_sum(td_mul(a, b));
    assert_string_equal(events, "mul:-1 sum:-1 ");
    td_backward(loss);
    assert_string_equal(events, "mul:-1 sum:-1 sum:0 mul:0 mul:1 a b end ");
    td_observe_results(NULL, NULL);
    td_backward(td_sum(a));
    assert_string_equal(events, "mul:-1 sum:-1 sum:0 mul:0 mul:1 a b end a end ");
}

static void test_mistakes(void **state)
{
    (void)state;
    td_tensor *plain = td_zeros(TD_SHAPE(1), TD_F32, TD_CPU);
    expect_fatal("not a leaf", td_on_grad_ready(plain, note_ready, NULL));
    expect_fatal("is NULL", td_on_grad_ready(a, NULL, NULL));
    expect_fatal("is NULL", td_on_backward_end(NULL, NULL));
    td_free(plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_order, begin, end),
        cmocka_unit_test_setup_teardown(test_shared_weights, begin, end),
        cmocka_unit_test_setup_teardown(test_unused_leaves, begin, end),
        cmocka_unit_test_setup_teardown(test_every_backward, begin, end),
        cmocka_unit_test_setup_teardown(test_several_hooks_and_removal, begin, end),
        cmocka_unit_test_setup_teardown(test_hooks_change_hooks, begin, end),
        cmocka_unit_test_setup_teardown(test_ids_are_not_used_again, begin, end),
        cmocka_unit_test_setup_teardown(test_hook_changes_the_gradient, begin, end),
        cmocka_unit_test_setup_teardown(test_uses_without_gradient, begin, end),
        cmocka_unit_test_setup_teardown(test_threads_are_apart, begin, end),
        cmocka_unit_test_setup_teardown(test_backward_in_a_hook_is_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_results_are_observed, begin, end),
        cmocka_unit_test_setup_teardown(test_mistakes, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
