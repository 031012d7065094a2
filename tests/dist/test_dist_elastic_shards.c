/* Elastic runs whose ranks have divided the model: processes are killed at each moment of a step,
 * and while the next world divides the model again. */
#include "tests/dist/elastic_run.h"
#include "tests/help/dist_procs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const elastic_case base = { .ranks = 4, .leaves = 4, .steps = 10, .at = 5 };

/* Of one process that has all. */
static uint64_t whole_hash(elastic_case c)
{
    elastic_result r =
        elastic_run(&(elastic_case){ .ranks = 1, .leaves = c.leaves, .steps = c.steps }, 60);
    assert_int_equal(r.failed, 0);
    assert_true(r.hash != 0);
    return r.hash;
}

static elastic_result require_same(elastic_case c, uint64_t hash)
{
    c.backend = procs_are_over("gloo") ? "gloo" : NULL;
    elastic_result r = elastic_run(&c, 90);
    if (r.failed > 0 || r.hash != hash) {
        fail_msg("stage %d, moment %d, rank %d, then %d: %d processes failed (%s); %016llx, and "
                 "not %016llx",
                 c.stage, (int)c.when, c.victim, (int)c.then, r.failed, r.message,
                 (unsigned long long)r.hash, (unsigned long long)hash);
    }
    return r;
}

/* What ranks divide: the stages, and values that are gathered. */
enum { KINDS = 4 };
static elastic_case kind(elastic_case c, int k)
{
    c.stage = k < 3 ? k + 1 : 3;
    c.gathers = k == 3;
    return c;
}

static void test_undisturbed(void **state)
{
    (void)state;
    uint64_t hash = whole_hash(base);
    for (int k = 0; k < KINDS; k++) {
        for (int ranks = 1; ranks <= 4; ranks++) {
            elastic_case c = kind(base, k);
            c.ranks = ranks;
            require_same(c, hash);
        }
    }
}

static void test_a_rank_dies(void **state)
{
    (void)state;
    uint64_t hash = whole_hash(base);
    int kills = 0;
    for (int k = 0; k < KINDS; k++) {
        for (elastic_when when = ELASTIC_BEFORE_STEP; when <= ELASTIC_EXCHANGED; when++) {
            elastic_case c = kind(base, k);
            c.when = when, c.victim = (k + (int)when) % c.ranks;
            elastic_result r = require_same(c, hash);
            assert_int_equal(r.started, c.ranks);
            kills++;
        }
    }
    print_message("# %d kills, each with the bits of one process: %016llx\n", kills,
                  (unsigned long long)hash);
}

/* Down to one process, which has all then, and up again. */
static void test_newcomers(void **state)
{
    (void)state;
    elastic_case c = base;
    c.steps = 60, c.replaced = true, c.when = ELASTIC_UPDATED;
    uint64_t hash = whole_hash(c);
    for (int k = 0; k < KINDS; k++) {
        elastic_case one = kind(c, k);
        one.ranks = 2, one.victim = k % 2;
        require_same(one, hash);
    }
}

/* Who is rank 3 when another rank dies dies while the others divide the model again. */
static void test_a_death_while_dividing(void **state)
{
    (void)state;
    uint64_t hash = whole_hash(base);
    for (int k = 0; k < KINDS; k++) {
        for (elastic_when then = ELASTIC_JOINING; then <= ELASTIC_BROUGHT; then++) {
            elastic_case c = kind(base, k);
            c.when = ELASTIC_SENT, c.victim = 1, c.then = then, c.second = 2;
            elastic_result r = require_same(c, hash);
            assert_int_equal(r.worlds, 4 + 2); /* a world of three was not made */
        }
    }
}

static void test_two_that_are_no_neighbours(void **state)
{
    (void)state;
    elastic_case c = base;
    c.when = ELASTIC_UPDATED, c.victim = 0, c.friend = 2;
    uint64_t hash = whole_hash(c);
    for (int k = 0; k < KINDS; k++) {
        require_same(kind(c, k), hash);
    }
}

/* ---- what cannot go on ---- */

static void require_lost(elastic_case c)
{
    elastic_result r = elastic_run(&c, 60);
    assert_int_equal(r.failed, c.ranks - 2);
    assert_true(r.hash == 0);
    assert_non_null(strstr(r.message, "and its copy have both died"));
    assert_non_null(strstr(r.message, "start the run again from its latest checkpoint"));
}

static void test_two_neighbours(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        elastic_case c = kind(base, k);
        c.when = ELASTIC_UPDATED, c.victim = 1, c.friend = 2;
        require_lost(c);
    }
    elastic_case c = kind(base, 0); /* the second while the others divide again */
    c.when = ELASTIC_SENT, c.victim = 1, c.then = ELASTIC_JOINED, c.second = 1;
    require_lost(c);
}

/* ---- storms ---- */

static void test_storm(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        elastic_case c = { .ranks = 4,
                           .leaves = 8,
                           .steps = 1000,
                           .kills = 6,
                           .seed = 1 + (unsigned)k,
                           .least = 0.05,
                           .most = 0.2,
                           .paced = true,
                           .replaced = true,
                           .pause = 0.001 };
        c.backend = procs_are_over("gloo") ? "gloo" : NULL;
        elastic_require_storm(kind(c, k), 120);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_undisturbed),
        cmocka_unit_test(test_a_rank_dies),
        cmocka_unit_test(test_newcomers),
        cmocka_unit_test(test_a_death_while_dividing),
        cmocka_unit_test(test_two_that_are_no_neighbours),
        cmocka_unit_test(test_two_neighbours),
        cmocka_unit_test(test_storm),
    };
    return _cmocka_run_group_tests("elastic shards", tests, sizeof tests / sizeof *tests, NULL,
                                   NULL);
}
