/* Step memory: equal steps, no growth, shortage, threads. */
#include "tests/help/expect_fatal.h"
#include "tests/help/sanitized.h"

#include "tensor/storage.h"
#include "tensor/tensor.h"
#include "tensor/extend.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static atomic_int allocations;
#if TD_SANITIZED
enum { COUNTS_ALLOCATIONS = 0 }; /* the sanitizers' own allocator must stay */
#else
enum { COUNTS_ALLOCATIONS = 1 };

/* glibc's allocator under other names; ours count and pass on. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

void *malloc(size_t bytes)
{
    allocations++;
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    allocations++;
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    allocations++;
    return __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    allocations++;
    return __libc_memalign(alignment, bytes);
}
#endif

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

static void test_step_bytes(void **state)
{
    (void)state;
    td_step_begin();
    unsigned char *first = td_step_bytes(100);
    assert_int_equal((uintptr_t)first % 16, 0);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(first[i], 0);
    }
    memset(first, 1, 100);
    unsigned char *large = td_step_bytes(1 << 20);
    assert_int_equal(large[(1 << 20) - 1], 0);
    assert_int_equal(first[99], 1);
    td_step_end();
}

static void test_scratch(void **state)
{
    (void)state;
    void *outside = td_scratch(TD_CPU, 1000);
    assert_int_equal((uintptr_t)outside % 64, 0);
    memset(outside, 1, 1000);
    td_step_begin();
    void *inside = td_scratch(TD_CPU, 1000);
    assert_int_equal((uintptr_t)inside % 64, 0);
    memset(inside, 1, 1000);
    assert_true(in_use() >= 1000);
    td_scratch_free(TD_CPU, inside);
    td_scratch_free(TD_CPU, NULL);
    td_scratch_free(TD_CPU, outside); /* wherever it came from */
    assert_int_equal(in_use(), 0);
    td_step_end();
}

static void run_like_a_model(void)
{
    td_step_begin();
    td_tensor *x = step_tensor(5000, "x");
    for (int layer = 0; layer < 20; layer++) {
        int64_t scope = td_scope_begin();
        td_tensor *hidden = step_tensor(3000 + 100 * layer, "hidden");
        td_step_view(hidden, 0, TD_SHAPE(10), (int64_t[]){ 1 }, TD_HERE);
        void *scratch = td_scratch(TD_CPU, 777);
        x = td_step_new_like(x, TD_HERE);
        td_scratch_free(TD_CPU, scratch);
        td_scope_end(scope, x);
        td_step_bytes(200);
    }
    td_step_end();
}

static void test_equal_steps_are_equal(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) { /* all rotating parts grow once */
        run_like_a_model();
    }
    td_memory_stats first = td_step_memory(TD_CPU);
    assert_true(first.allocations == 61 && first.peak > 0 && first.reserved >= first.peak);
    int before = allocations;
    for (int i = 0; i < 100; i++) {
        run_like_a_model();
        td_memory_stats now = td_step_memory(TD_CPU);
        assert_memory_equal(&now, &first, sizeof first);
    }
    int calls = allocations - before;
    assert_int_equal(calls, 0);
    if (COUNTS_ALLOCATIONS) {               /* the counter counts */
        void *volatile counted = malloc(1); /* volatile: a compiler may leave out malloc and free */
        free(counted);
        assert_int_equal(allocations, before + 1);
    }
}

static void test_memory_can_be_given_back(void **state)
{
    (void)state;
    run_like_a_model();
    assert_true(td_step_memory(TD_CPU).reserved > 0);
    td_step_release_memory();
    assert_int_equal(td_step_memory(TD_CPU).reserved, 0);
    run_like_a_model();
    assert_true(td_step_memory(TD_CPU).reserved > 0);
}

static void test_short_of_memory(void **state)
{
    (void)state;
    td_step_begin();
    step_tensor(1 << 20, "x");
    /* 2^50 bytes; the part of it that this machine has is at least one 2^20th. */
    td_shape batch = TD_SHAPE(INT64_C(1) << 20, INT64_C(1) << 28);
    expect_fatal("out of step memory for a tensor f32[1048576,268435456] cpu:0 (1024.0 TiB): the "
                 "step holds 4.0 MiB",
                 td_step_new(batch, TD_F32, TD_ROW_MAJOR, TD_CPU, TD_HERE));
    assert_non_null(strstr(fatal_message(), "if 1048576 is the batch, one of at most about "));
    assert_non_null(strstr(fatal_message(), "test_tensor_step_memory.c:"));
    expect_fatal("use a smaller batch or model",
                 td_step_new(TD_SHAPE(1, INT64_C(1) << 50), TD_U8, TD_ROW_MAJOR, TD_CPU, TD_HERE));
    expect_fatal("more bytes than can be counted",
                 td_step_new(TD_SHAPE(INT64_C(1) << 62), TD_F32, TD_ROW_MAJOR, TD_CPU, TD_HERE));
    expect_fatal("out of step memory for a kernel's scratch memory",
                 td_scratch(TD_CPU, (size_t)1 << 50));
    step_tensor(1, "after"); /* the step goes on */
    td_step_end();
}

/* ---- threads ---- */

static void *other_thread(void *outcome)
{
    /* Its own steps, counted from 1; the last one is left open, and ends with the thread. */
    for (int i = 0; i < 3; i++) {
        run_like_a_model();
    }
    td_step_begin();
    td_tensor *t = step_tensor(100, "t");
    *(bool *)outcome = td_step_number() == 4 && td_get(t, (int64_t[]){ 99 }) == 1.0;
    td_scope_begin();
    return NULL;
}

static void test_threads_have_steps_of_their_own(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    pthread_t thread[THREADS];
    bool outcome[THREADS] = { false };
    td_step_begin();
    td_tensor *mine = step_tensor(10, "mine");
    uint64_t number = td_step_number();
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, other_thread, &outcome[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(thread[i], NULL), 0);
        assert_true(outcome[i]);
    }
    assert_int_equal(td_step_number(), number);
    assert_true(td_get(mine, (int64_t[]){ 9 }) == 1.0);
    mine->step = number + 1000;
    expect_fatal("of another thread", td_data(mine));
    mine->step = number;
    td_step_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_step_bytes, end_steps),
        cmocka_unit_test_teardown(test_scratch, end_steps),
        cmocka_unit_test_teardown(test_equal_steps_are_equal, end_steps),
        cmocka_unit_test_teardown(test_memory_can_be_given_back, end_steps),
        cmocka_unit_test_teardown(test_short_of_memory, end_steps),
        cmocka_unit_test_teardown(test_threads_have_steps_of_their_own, end_steps),
    };
    return cmocka_run_group_tests_name("step memory", tests, NULL, NULL);
}
