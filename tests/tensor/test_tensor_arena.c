/* The arena, and a step's small memory. */
#include "tests/help/expect_fatal.h"
#include "tests/help/sanitized.h"

#include "tensor/arena.h"
#include "tensor/extend.h"
#include "tensor/step.h"
#include "tensor/storage.h"
#include "tensor/extend.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#ifndef __has_feature
#define __has_feature(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#define ADDRESS_SANITIZED 1
#else
#define ADDRESS_SANITIZED 0
#endif
enum { MIB = 1 << 20 };

static td_arena *new_arena(size_t limit)
{
    td_arena *arena = td_arena_new(TD_CPU, limit);
    assert_non_null(arena);
    return arena;
}

static char *take(td_arena *arena, size_t bytes)
{
    char *block = td_arena_take(arena, bytes);
    assert_non_null(block);
    assert_int_equal((uintptr_t)block % TD_ALIGNMENT, 0);
    memset(block, 0x5a, bytes);
    return block;
}

static void test_blocks_are_behind_each_other(void **state)
{
    (void)state;
    td_arena *arena = new_arena(0);
    char *a = take(arena, 100), *b = take(arena, 1), *c = take(arena, 0);
    assert_true(b >= a + 128 && c >= b + 64);
    assert_true(td_arena_owns(arena, a) && td_arena_owns(arena, c));
    assert_false(td_arena_owns(arena, &arena));
    assert_true(td_arena_stats(arena).in_use >= 128 + 64 + 64);
    td_arena_give(arena, b);
    td_arena_give(arena, a);
    td_arena_give(arena, c);
    assert_int_equal(td_arena_stats(arena).in_use, 0);
    td_arena_free(arena);
    td_arena_free(NULL);
}

static void test_the_smallest_hole_that_fits_is_taken(void **state)
{
    (void)state;
    td_arena *arena = new_arena(0);
    char *large = take(arena, 4096);
    char *wall1 = take(arena, 64);
    char *small = take(arena, 1024);
    char *wall2 = take(arena, 64);
    char *equal = take(arena, 1024);
    char *wall3 = take(arena, 64);
    td_arena_give(arena, equal);
    td_arena_give(arena, large);
    td_arena_give(arena, small);
    assert_ptr_equal(take(arena, 1000), small); /* the lower of two equals */
    assert_ptr_equal(take(arena, 1000), equal);
    assert_ptr_equal(take(arena, 1000), large); /* the rest of it stays a hole */
    char *rest = take(arena, 1000);
    assert_true(rest > large && rest < wall1);
    assert_true(take(arena, 4096) > wall3); /* fits nowhere: behind the last */
    (void)wall2;
    td_arena_free(arena);
}

static void test_neighbouring_holes_are_joined(void **state)
{
    (void)state;
    /* The middle block of five given back last, first, or in between. */
    const int orders[][3] = { { 1, 2, 3 }, { 3, 2, 1 }, { 1, 3, 2 }, { 2, 1, 3 }, { 2, 3, 1 } };
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        td_arena *arena = new_arena(0);
        char *block[5];
        for (int b = 0; b < 5; b++) {
            block[b] = take(arena, 1024);
        }
        for (int b = 0; b < 3; b++) {
            td_arena_give(arena, block[orders[i][b]]);
        }
        assert_ptr_equal(take(arena, 3 * 1024), block[1]);
        td_arena_free(arena);
    }
}

static void test_the_end_moves_back(void **state)
{
    (void)state;
    td_arena *arena = new_arena(0);
    char *a = take(arena, 1 << 20), *b = take(arena, 1 << 20), *c = take(arena, 1 << 20);
    td_arena_give(arena, b);
    td_arena_give(arena, c); /* joins b's hole and the end */
    assert_ptr_equal(take(arena, 4 << 20), b);
    (void)a;
    td_arena_free(arena);
}

/* Small blocks lie by themselves while there is room, and cut no large hole in two. */
static void test_small_blocks_lie_apart(void **state)
{
    (void)state;
    enum { LARGE = 1 << 20, SMALL = 15 << 10, COUNT = 40 };
    td_arena *arena = new_arena(0);
    char *large = take(arena, LARGE), *loss = take(arena, 4), *next = take(arena, LARGE);
    char *small[COUNT];
    for (int i = 0; i < COUNT; i++) {
        small[i] = take(arena, SMALL);
    }
    assert_true(loss < large && small[0] < large);
    assert_in_range(next - large, LARGE, LARGE + 128); /* sanitizers have guards between */
    assert_true(small[COUNT - 1] > next);              /* no room was left with the others */
    td_arena_give(arena, large);
    td_arena_give(arena, next);
    assert_ptr_equal(take(arena, 2 * LARGE), large);
    for (int i = 0; i < COUNT; i++) {
        td_arena_give(arena, small[i]);
    }
    assert_true(take(arena, 200 << 10) > large); /* though there is room among the small ones */
    assert_in_range(take(arena, 64) - loss, 64, 128);
    td_arena_free(arena);
}

/* A pseudo-random sequence of takes and gives. Every block keeps its own pattern meanwhile. */
static uint64_t random_round(td_arena *arena, uint64_t seed)
{
    enum { BLOCKS = 64, ROUNDS = 4000 };
    struct {
        unsigned char *data;
        size_t bytes;
    } block[BLOCKS] = { { NULL, 0 } };
    td_arena_begin_step(arena);
    td_generator g;
    td_generator_seed(&g, seed);
    for (int i = 0; i < ROUNDS; i++) {
        int b = (int)td_random_int(&g, 0, BLOCKS);
        if (block[b].data == NULL) {
            block[b].bytes = (size_t)td_random_int(&g, 0, 20000);
            block[b].data = (unsigned char *)take(arena, block[b].bytes);
            memset(block[b].data, b, block[b].bytes);
        } else {
            for (size_t k = 0; k < block[b].bytes; k++) {
                assert_int_equal(block[b].data[k], b);
            }
            td_arena_give(arena, block[b].data);
            block[b].data = NULL;
        }
    }
    uint64_t hash = td_arena_stats(arena).address_hash;
    for (int b = 0; b < BLOCKS; b++) {
        if (block[b].data != NULL) {
            td_arena_give(arena, block[b].data);
        }
    }
    assert_int_equal(td_arena_stats(arena).in_use, 0);
    return hash;
}

static void test_equal_rounds_get_equal_addresses(void **state)
{
    (void)state;
    td_arena *arena = new_arena(0);
    uint64_t first = random_round(arena, 1);
    td_memory_stats grown = td_arena_stats(arena);
    assert_true(grown.growths > 0);
    assert_true(random_round(arena, 2) != first);
    grown = td_arena_stats(arena);
    for (int i = 0; i < 3; i++) {
        assert_true(random_round(arena, 1) == first);
        td_memory_stats now = td_arena_stats(arena);
        assert_int_equal(now.growths, grown.growths);
        assert_int_equal(now.reserved, grown.reserved);
    }
    td_arena_free(arena);
}

static void test_figures(void **state)
{
    (void)state;
    td_arena *arena = new_arena(0);
    char *a = take(arena, MIB), *b = take(arena, MIB);
    td_arena_give(arena, a);
    td_memory_stats stats = td_arena_stats(arena);
    assert_in_range(stats.in_use, MIB, MIB + 128);
    assert_in_range(stats.peak, 2 * MIB, 2 * MIB + 256);
    assert_int_equal(stats.allocations, 2);
    assert_int_equal(stats.reserved % (2 * MIB), 0);
    assert_true(stats.reserved >= stats.peak);
    td_arena_give(arena, b);
    td_arena_begin_step(arena);
    stats = td_arena_stats(arena);
    assert_int_equal(stats.peak, 0);
    assert_int_equal(stats.allocations, 0);
    assert_true(stats.reserved > 0);
    td_arena_free(arena);
}

static void test_the_limit_is_kept(void **state)
{
    (void)state;
    td_arena *arena = new_arena(4 * MIB);
    assert_int_equal(td_arena_limit(arena), 4 * MIB);
    char *a = take(arena, 3 * MIB);
    assert_null(td_arena_take(arena, 2 * MIB));
    assert_null(td_arena_take(arena, SIZE_MAX));
    assert_null(td_arena_take(arena, SIZE_MAX - 32));
    td_arena_give(arena, a); /* and a refusal changes nothing */
    assert_int_equal(td_arena_stats(arena).in_use, 0);
    assert_ptr_equal(take(arena, 2 * MIB), a);
    td_arena_free(arena);
}

static void test_reset_gives_all_back(void **state)
{
    (void)state;
    td_arena *arena = new_arena(0);
    char *a = take(arena, 1000);
    take(arena, 5000);
    assert_true(td_arena_reset(arena) >= 6000);
    assert_int_equal(td_arena_stats(arena).in_use, 0);
    assert_int_equal(td_arena_reset(arena), 0);
    assert_ptr_equal(take(arena, 9000), a);
    td_arena_free(arena);
}

static void test_wrong_gives_are_mistakes(void **state)
{
    (void)state;
    td_arena *arena = new_arena(0);
    char *a = take(arena, 100), *b = take(arena, 100);
    td_arena_give(arena, a);
    expect_fatal("given back twice?", td_arena_give(arena, a));
    expect_fatal("is not taken", td_arena_give(arena, b + 64));
    expect_fatal("is not taken", td_arena_give(arena, &arena));
    td_arena_free(arena);
}

/* Under a limit on addresses the arena takes fewer. */
static void test_few_addresses(void **state)
{
    (void)state;
    if (TD_SANITIZED) { /* sanitizers need all addresses for themselves */
        skip();
    }
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    struct rlimit tight = { .rlim_cur = (rlim_t)512 * MIB, .rlim_max = before.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_AS, &tight), 0);
    td_arena *arena = td_arena_new(TD_CPU, (size_t)1 << 40);
    bool made = arena != NULL;
    size_t limit = made ? td_arena_limit(arena) : 0;
    char *block = made ? td_arena_take(arena, MIB) : NULL;
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_true(made);
    assert_in_range(limit, 64 * MIB, 512 * MIB);
    assert_non_null(block);
    td_arena_free(arena);
}

static void test_new_and_given_memory_is_poisoned(void **state)
{
    (void)state;
#if ADDRESS_SANITIZED
    td_arena *arena = new_arena(0);
    char *a = take(arena, 100), *b = take(arena, 64);
    assert_int_equal(__asan_address_is_poisoned(a + 99), 0);
    assert_int_equal(__asan_address_is_poisoned(a + 128), 1); /* between the blocks */
    td_arena_give(arena, a);
    assert_int_equal(__asan_address_is_poisoned(a), 1);
    assert_int_equal(__asan_address_is_poisoned(b), 0);
    assert_ptr_equal(take(arena, 100), a);
    td_arena_free(arena);
#elif defined(TD_DEBUG)
    td_arena *arena = new_arena(0);
    unsigned char *block = td_arena_take(arena, 100);
    take(arena, 64);
    assert_int_equal(block[0], 0xff);
    assert_int_equal(block[99], 0xff);
    memset(block, 1, 100);
    td_arena_give(arena, block);
    assert_int_equal(block[0], 0xff);
    assert_int_equal(block[99], 0xff);
    td_arena_free(arena);
#else
    skip(); /* only in builds with TD_DEBUG */
#endif
}

static void test_small_memory_of_steps(void **state)
{
    enum { STEPS = 9, TAKES = 300, ROTATION = 3 }; /* three sets of chunks take turns */
    (void)state;
    unsigned char *first[ROTATION][TAKES];
    for (int step = 0; step < STEPS; step++) {
        td_step_begin();
        unsigned char **mine = first[step % ROTATION];
        for (int i = 0; i < TAKES; i++) {
            size_t bytes = i == 150 ? 200000 : (size_t)(i * 7);
            unsigned char *memory = td_step_bytes(bytes);
            assert_non_null(memory);
            assert_int_equal((uintptr_t)memory % 16, 0);
            for (size_t k = 0; k < bytes; k++) {
                assert_int_equal(memory[k], 0);
            }
            memset(memory, 0xee, bytes);
            if (step < ROTATION) {
                mine[i] = memory;
            }
            assert_ptr_equal(memory, mine[i]);
        }
        for (int i = 1; i < TAKES; i++) { /* nobody else's take has overwritten it */
            assert_int_equal(mine[i][0], 0xee);
        }
        td_step_end();
    }
    td_step_release_memory();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_are_behind_each_other),
        cmocka_unit_test(test_the_smallest_hole_that_fits_is_taken),
        cmocka_unit_test(test_neighbouring_holes_are_joined),
        cmocka_unit_test(test_the_end_moves_back),
        cmocka_unit_test(test_small_blocks_lie_apart),
        cmocka_unit_test(test_equal_rounds_get_equal_addresses),
        cmocka_unit_test(test_figures),
        cmocka_unit_test(test_the_limit_is_kept),
        cmocka_unit_test(test_reset_gives_all_back),
        cmocka_unit_test(test_wrong_gives_are_mistakes),
        cmocka_unit_test(test_few_addresses),
        cmocka_unit_test(test_new_and_given_memory_is_poisoned),
        cmocka_unit_test(test_small_memory_of_steps),
    };
    return cmocka_run_group_tests_name("step memory's arena", tests, NULL, NULL);
}
