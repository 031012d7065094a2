/* Steps: life and death of step tensors, scopes, holds. */
#include "tests/help/expect_fatal.h"

#include "tensor/storage.h"
#include "tensor/tensor.h"
#include "tensor/extend.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static td_tensor *step_tensor(int64_t n, const char *name)
{
    td_tensor *t = td_step_new(TD_SHAPE(n), TD_F32, TD_ROW_MAJOR, TD_CPU, TD_HERE);
    t->name = name;
    td_fill_(t, 1.0);
    return t;
}

static size_t in_use(void)
{
    return td_step_memory(TD_CPU).in_use;
}

/* Every test begins and ends outside a step. */
static int end_steps(void **state)
{
    (void)state;
    td_step_abandon();
    return 0;
}

/* ---- beginning and end ---- */

static void test_steps_are_numbered(void **state)
{
    (void)state;
    assert_false(td_in_step());
    assert_int_equal(td_step_number(), 0);
    td_step_begin();
    uint64_t number = td_step_number();
    assert_true(td_in_step() && number > 0);
    td_step_end();
    assert_int_equal(td_step_number(), 0);
    td_step_begin();
    assert_int_equal(td_step_number(), number + 1);
    td_step_end();
}

static void test_unbalanced_steps_are_mistakes(void **state)
{
    (void)state;
    expect_fatal("td_step_end outside a step", td_step_end());
    expect_fatal("a tensor operation outside a step", step_tensor(1, NULL));
    assert_non_null(strstr(fatal_message(), "test_tensor_step.c:"));
    expect_fatal("td_scope_begin outside a step", td_scope_begin());
    expect_fatal("td_scope_end outside a step", td_scope_end(0, NULL));
    expect_fatal("td_step_bytes outside a step", td_step_bytes(8));
    td_step_begin();
    expect_fatal("the td_step_end before it is missing", td_step_begin());
    expect_fatal("td_step_release_memory inside step", td_step_release_memory());
    td_step_end();
}

static int return_from_step(void)
{
    TD_STEP {
        return 1;
    }
    return 0;
}

static void test_step_blocks(void **state)
{
    (void)state;
    uint64_t first = 0;
    int begun = 0, ended = 0;
    for (int i = 0; i < 4; i++)
        TD_STEP {
            first = i == 0 ? td_step_number() : first;
            assert_int_equal(td_step_number(), first + (uint64_t)i);
            begun++;
            if (i % 2 == 1) {
                continue; /* ends the step, not the loop */
            }
            ended++;
        }
    assert_int_equal(begun, 4);
    assert_int_equal(ended, 2);
    assert_false(td_in_step());
    assert_int_equal(return_from_step(), 1); /* a mistake, which the next step finds */
    expect_fatal("not by break, return or goto", td_step_begin());
}

/* ---- tensors ---- */

static void test_step_tensors(void **state)
{
    (void)state;
    td_step_begin();
    td_tensor *t = td_step_new(TD_SHAPE(2, 3, 4, 5), TD_F64, TD_IMAGE, TD_CPU_N(1), TD_HERE);
    assert_true(td_is_layout(t, TD_IMAGE));
    assert_int_equal(t->step, td_step_number());
    assert_string_equal(td_describe(t), "f64[2,3,4,5] cpu:1");
    assert_int_equal((uintptr_t)td_data(t) % 64, 0);
    td_tensor *like = td_step_new_like(t, TD_HERE);
    assert_true(td_same_order(t, like));
    assert_true(like->dtype == TD_F64 && td_device_of(like).index == 1);
    assert_ptr_not_equal(td_data(t), td_data(like));
    assert_true(td_step_memory(TD_CPU_N(1)).in_use >= 2 * 120 * sizeof(double));
    assert_int_equal(td_step_memory(TD_CPU_N(11)).in_use, 0);

    td_tensor *scalar = td_step_new(TD_SCALAR, TD_F32, TD_ROW_MAJOR, TD_CPU, TD_HERE);
    td_fill_(scalar, 3.0);
    assert_true(td_item(scalar) == 3.0);
    td_tensor *empty = td_step_new(TD_SHAPE(0, 7), TD_F32, TD_ROW_MAJOR, TD_CPU, TD_HERE);
    assert_non_null(td_data(empty));
    td_step_end();
    assert_int_equal(td_step_memory(TD_CPU_N(1)).in_use, 0);
}

static void test_clones_outlive_the_step(void **state)
{
    (void)state;
    td_step_begin();
    td_tensor *t = step_tensor(10, NULL);
    td_tensor *kept = td_clone(t);
    assert_int_equal(kept->step, 0);
    td_step_end();
    assert_true(td_get(kept, (int64_t[]){ 9 }) == 1.0);
    td_free(kept);
}

/* In a later step that has overwritten what it could. */
static void check_stale(td_tensor *t, td_tensor *view, const char *made)
{
    td_step_begin();
    for (int i = 0; i < 100; i++) {
        step_tensor(4, "other");
        memset(td_step_bytes(1000), 0xff, 1000);
    }
    expect_fatal(made, td_item(t));
    char now[64];
    snprintf(now, sizeof now, "step %llu runs now", (unsigned long long)td_step_number());
    assert_non_null(strstr(fatal_message(), now));
    expect_fatal("'part' f32[2] was made in step", td_fill_(view, 0.0));
    expect_fatal(made, td_step_view(t, 0, TD_SHAPE(1), (int64_t[]){ 1 }, TD_HERE));
    expect_fatal(made, td_clone(t));
    expect_fatal(made, td_copy_(step_tensor(4, "to"), t));
    td_step_end();
}

static void test_stale_tensors_are_named(void **state)
{
    (void)state;
    td_step_begin();
    char made[64];
    snprintf(made, sizeof made, "'hidden' f32[4] was made in step %llu",
             (unsigned long long)td_step_number());
    td_tensor *t = step_tensor(4, "hidden");
    td_tensor *view = td_step_view(t, 1, TD_SHAPE(2), (int64_t[]){ 1 }, TD_HERE);
    view->name = "part";
    td_step_end();

    expect_fatal(made, td_data(t));
    assert_non_null(strstr(fatal_message(), "td_clone it before td_step_end"));
    check_stale(t, view, made);
    check_stale(t, view, made);
}

/* Three steps later the header is another tensor's: the pointer's own step is not known. */
static void test_a_pointer_of_long_ago_does_not_get_a_wrong_step(void **state)
{
    (void)state;
    td_tensor *volatile loss = NULL;
    unsigned long long first = 0;
    for (int i = 0; i < 10; i++) {
        td_step_begin();
        td_tensor *t = step_tensor(1, "loss");
        loss = loss == NULL ? t : loss;
        first = first == 0 ? td_step_number() : first;
        td_step_end();
    }
    char part[128];
    snprintf(part, sizeof part,
             "was made in step %llu (or, if the pointer is older, in step %llu or before)",
             first + 9, first + 6);
    expect_fatal(part, td_item(loss));
}

static void test_step_tensors_are_not_freed(void **state)
{
    (void)state;
    td_step_begin();
    td_tensor *t = step_tensor(4, "loss");
    expect_fatal("td_free: 'loss' f32[4] cpu:0 belongs to step", td_free(t));
    expect_fatal("'loss' f32[4] cpu:0 belongs to a step",
                 td_slice_of_storage(t, 0, TD_SHAPE(1), (int64_t[]){ 1 }));
    td_step_end();
}

static void test_views_hold_their_storage(void **state)
{
    (void)state;
    td_tensor *kept = td_arange(6, TD_F32, TD_CPU);
    td_tensor *freed = td_arange(6, TD_F32, TD_CPU);
    td_step_begin();
    td_tensor *view = td_step_view(kept, 2, TD_SHAPE(2, 2), (int64_t[]){ 2, 1 }, TD_HERE);
    assert_true(td_get(view, (int64_t[]){ 1, 1 }) == 5.0);
    assert_int_equal(kept->storage->refs, 2);
    td_tensor *of_freed = td_step_view(freed, 5, TD_SHAPE(1), (int64_t[]){ 1 }, TD_HERE);
    td_free(freed);
    assert_true(td_item(of_freed) == 5.0);

    int64_t scope = td_scope_begin();
    td_tensor *base = step_tensor(8, NULL);
    td_tensor *of_base = td_step_view(base, 3, TD_SHAPE(1), (int64_t[]){ 1 }, TD_HERE);
    td_scope_end(scope, of_base);
    assert_true(td_item(of_base) == 1.0);
    expect_fatal("gone with it", td_data(base));

    expect_fatal("does not fit into its storage",
                 td_step_view(kept, 5, TD_SHAPE(2), (int64_t[]){ 1 }, TD_HERE));
    td_step_end();
    assert_int_equal(kept->storage->refs, 1);
    td_free(kept);
}

/* ---- scopes ---- */

static void test_scopes_let_go(void **state)
{
    (void)state;
    td_step_begin();
    td_tensor *before = step_tensor(1000, "before");
    size_t used = in_use();
    int64_t scope = td_scope_begin();
    td_tensor *inner = step_tensor(1000, "inner");
    td_tensor *result = step_tensor(10, "result");
    td_scope_end(scope, result);
    assert_true(in_use() < used + 1000);
    assert_true(td_get(before, (int64_t[]){ 0 }) == 1.0);
    assert_true(td_get(result, (int64_t[]){ 0 }) == 1.0);
    expect_fatal("'inner' f32[1000] cpu:0 was made inside a module or scope that has ended",
                 td_data(inner));
    td_tensor *reused = step_tensor(1000, "reused"); /* takes inner's memory */
    assert_true((const char *)td_data(reused) < (const char *)td_data(result));
    td_step_end();
}

/* One after the other in one scope: only the last one is held. */
static void test_scopes_that_go_on(void **state)
{
    (void)state;
    td_step_begin();
    int64_t scope = td_scope_begin();
    td_tensor *result = step_tensor(1000, "first");
    size_t used = in_use();
    for (int i = 0; i < 5; i++) {
        td_tensor *before = result;
        result = step_tensor(1000, "next");
        td_scope_keep(scope, result);
        assert_true(before->let_go && !result->let_go);
        assert_int_equal(in_use(), used);
    }
    int64_t inner = td_scope_begin();
    td_tensor *made = step_tensor(1, "made");
    td_scope_keep(inner, result); /* not the scope's own: nothing of it is left */
    assert_true(made->let_go && td_get(result, (int64_t[]){ 999 }) == 1.0);
    td_scope_end(inner, NULL);
    td_scope_end(scope, NULL);
    assert_true(result->let_go);
    assert_int_equal(in_use(), 0);
    td_step_end();
}

static void test_kept_tensors_belong_to_the_scope_around(void **state)
{
    (void)state;
    td_step_begin();
    int64_t outer = td_scope_begin();
    int64_t middle = td_scope_begin();
    int64_t innermost = td_scope_begin();
    td_tensor *a = step_tensor(1, "a"), *b = step_tensor(1, "b");
    td_scope_end(innermost, a);
    td_tensor *c = step_tensor(1, "c");
    td_scope_end(middle, a); /* a goes on */
    td_data(a);
    expect_fatal("'b'", td_data(b));
    expect_fatal("'c'", td_data(c));
    td_scope_end(outer, NULL); /* and ends here */
    expect_fatal("'a'", td_data(a));
    assert_int_equal(in_use(), 0);
    td_step_end();
}

static void test_keeping_what_is_not_the_scopes_own(void **state)
{
    (void)state;
    td_tensor *persistent = td_zeros(TD_SHAPE(2), TD_F32, TD_CPU);
    td_step_begin();
    td_tensor *before = step_tensor(1, "before");
    td_scope_end(td_scope_begin(), before);
    td_scope_end(td_scope_begin(), persistent);
    td_data(before);
    td_data(persistent);
    assert_int_equal(persistent->storage->refs, 1);
    td_step_end();
    td_free(persistent);
}

static void test_scopes_end_in_order(void **state)
{
    (void)state;
    td_step_begin();
    int64_t outer = td_scope_begin(), inner = td_scope_begin();
    expect_fatal("scopes end in the reverse order", td_scope_end(outer, NULL));
    expect_fatal("td_scope_keep of scope 0, but the innermost open one is 1",
                 td_scope_keep(outer, NULL));
    expect_fatal("2 scopes are still open", td_step_end());
    td_scope_end(inner, NULL);
    td_scope_end(outer, NULL);
    expect_fatal("scopes end in the reverse order", td_scope_end(outer, NULL));
    td_step_end();

    td_step_begin();
    for (int i = 0; i < 256; i++) {
        td_scope_begin();
    }
    expect_fatal("more than 256 scopes are open", td_scope_begin());
    td_step_abandon();
}

/* ---- holds ---- */

static void test_holds_keep_memory(void **state)
{
    (void)state;
    td_step_begin();
    int64_t scope = td_scope_begin();
    td_tensor *saved = step_tensor(1000, "saved");
    td_hold(saved->storage);
    td_scope_end(scope, NULL);
    assert_true(in_use() >= 4000);
    /* What has been let go can still be seen through a view: backward does so. */
    td_tensor *view = td_step_view(saved, 0, TD_SHAPE(1), (int64_t[]){ 1 }, TD_HERE);
    assert_true(td_item(view) == 1.0);
    td_unhold(saved->storage);
    assert_true(in_use() >= 4000); /* the view's */
    td_step_end();

    td_step_begin();
    td_tensor *used_up = step_tensor(1000, "used up");
    td_unhold(used_up->storage);
    assert_int_equal(in_use(), 0);
    expect_fatal("'used up' f32[1000] cpu:0 has no memory any more", td_data(used_up));
    expect_fatal("nobody holds this storage", td_unhold(used_up->storage));
    used_up->storage->refs = 1; /* what the header would give back */
    used_up->storage->released = false;
    used_up->storage->data = td_scratch(TD_CPU, 4000);
    td_step_end();
}

static void test_forgotten_holds_are_reported(void **state)
{
    (void)state;
    td_step_begin();
    td_hold(step_tensor(1000, NULL)->storage);
    expect_fatal("of step memory are still taken", td_step_end());
    td_step_begin(); /* the step has ended all the same */
    void *scratch = td_scratch(TD_CPU, 100);
    expect_fatal("a td_scratch without its td_scratch_free", td_step_end());
    (void)scratch;
    assert_int_equal(in_use(), 0);
}

/* ---- the tape's door ---- */

static int tape_ends;

static void end_tape(void *tape)
{
    assert_ptr_equal(tape, &tape_ends);
    assert_true(td_in_step());
    tape_ends++;
}

static void test_the_tape_ends_with_its_step(void **state)
{
    (void)state;
    assert_null(td_step_tape());
    tape_ends = 0;
    td_step_begin();
    assert_null(td_step_tape());
    td_step_set_tape(&tape_ends, end_tape);
    assert_ptr_equal(td_step_tape(), &tape_ends);
    td_step_end();
    assert_int_equal(tape_ends, 1);
    td_step_begin();
    assert_null(td_step_tape());
    td_step_set_tape(&tape_ends, end_tape);
    td_step_abandon();
    assert_int_equal(tape_ends, 2);
    td_step_begin();
    td_step_end();
    assert_int_equal(tape_ends, 2);
}

static void test_abandoning(void **state)
{
    (void)state;
    td_step_abandon(); /* nothing open */
    td_tensor *persistent = td_zeros(TD_SHAPE(2), TD_F32, TD_CPU);
    td_step_begin();
    td_scope_begin();
    td_scope_begin();
    td_tensor *t = step_tensor(10, "t");
    td_hold(t->storage);
    td_step_view(persistent, 0, TD_SHAPE(1), (int64_t[]){ 1 }, TD_HERE);
    td_scratch(TD_CPU, 1000);
    td_context_push("net");
    td_step_abandon();
    assert_null(td_context_top());
    assert_false(td_in_step());
    assert_int_equal(persistent->storage->refs, 1);
    assert_int_equal(in_use(), 0);
    expect_fatal("'t' f32[10] was made in step", td_data(t));
    td_step_begin();
    td_step_end();
    td_free(persistent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_steps_are_numbered, end_steps),
        cmocka_unit_test_teardown(test_unbalanced_steps_are_mistakes, end_steps),
        cmocka_unit_test_teardown(test_step_blocks, end_steps),
        cmocka_unit_test_teardown(test_step_tensors, end_steps),
        cmocka_unit_test_teardown(test_clones_outlive_the_step, end_steps),
        cmocka_unit_test_teardown(test_stale_tensors_are_named, end_steps),
        cmocka_unit_test_teardown(test_a_pointer_of_long_ago_does_not_get_a_wrong_step, end_steps),
        cmocka_unit_test_teardown(test_step_tensors_are_not_freed, end_steps),
        cmocka_unit_test_teardown(test_views_hold_their_storage, end_steps),
        cmocka_unit_test_teardown(test_scopes_let_go, end_steps),
        cmocka_unit_test_teardown(test_scopes_that_go_on, end_steps),
        cmocka_unit_test_teardown(test_kept_tensors_belong_to_the_scope_around, end_steps),
        cmocka_unit_test_teardown(test_keeping_what_is_not_the_scopes_own, end_steps),
        cmocka_unit_test_teardown(test_scopes_end_in_order, end_steps),
        cmocka_unit_test_teardown(test_holds_keep_memory, end_steps),
        cmocka_unit_test_teardown(test_forgotten_holds_are_reported, end_steps),
        cmocka_unit_test_teardown(test_the_tape_ends_with_its_step, end_steps),
        cmocka_unit_test_teardown(test_abandoning, end_steps),
    };
    return cmocka_run_group_tests_name("steps", tests, NULL, NULL);
}
