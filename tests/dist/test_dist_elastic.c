/* Elastic runs: processes are killed, and the run ends with the bits of an undisturbed one. */
#include "tests/help/sanitized.h"
#include "dist/comm/store.h"
#include "tensor/clock.h"
#include "tests/dist/elastic_run.h"
#include "tests/help/dist_procs.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *backend(void)
{
    return procs_are_over("gloo") ? "gloo" : NULL;
}

static const elastic_case base = { .ranks = 3, .leaves = 4, .steps = 12 };

/* Of a run of one process in which nothing happens. */
static uint64_t undisturbed(elastic_case c)
{
    elastic_result r = elastic_run(
        &(elastic_case){ .ranks = 1, .leaves = c.leaves, .steps = c.steps, .loads = c.loads }, 60);
    assert_int_equal(r.failed, 0);
    assert_true(r.hash != 0);
    return r.hash;
}

static elastic_result require_same(elastic_case c, uint64_t hash)
{
    c.backend = backend();
    elastic_result r = elastic_run(&c, 90);
    if (r.failed > 0 || r.hash != hash) {
        fail_msg("%d processes failed (%s); %016llx, and not %016llx", r.failed, r.message,
                 (unsigned long long)r.hash, (unsigned long long)hash);
    }
    return r;
}

static void test_undisturbed(void **state)
{
    (void)state;
    uint64_t hash = undisturbed(base);
    for (int ranks = 2; ranks <= 4; ranks++) {
        elastic_case c = base;
        c.ranks = ranks;
        elastic_result r = require_same(c, hash);
        assert_int_equal(r.worlds, ranks);
    }
}

/* Each rank at each place of a step, rank 0, which has the running statistics, too. Of those that
 * go on some may have committed the step. */
static void test_a_rank_dies(void **state)
{
    (void)state;
    uint64_t hash = undisturbed(base);
    for (elastic_when when = ELASTIC_BEFORE_STEP; when <= ELASTIC_FINISHED; when++) {
        for (int victim = 0; victim < 3; victim += 2) {
            elastic_case c = base;
            c.when = when, c.victim = victim, c.at = 5;
            elastic_result r = require_same(c, hash);
            assert_int_equal(r.started, 3);
        }
    }
}

/* All but one. */
static void test_one_goes_on(void **state)
{
    (void)state;
    elastic_case c = base;
    c.when = ELASTIC_BEFORE_COMMIT, c.victim = -1, c.at = 5;
    require_same(c, undisturbed(base));
}

static void test_newcomers(void **state)
{
    (void)state;
    elastic_case c = base;
    c.steps = 60, c.replaced = true, c.at = 5;
    uint64_t hash = undisturbed(c);
    for (c.victim = 0; c.victim < 3; c.victim += 2) {
        c.when = ELASTIC_BEFORE_COMMIT;
        elastic_result r = require_same(c, hash);
        assert_int_equal(r.started, 4);
    }
    c.victim = 1, c.loads = true;
    require_same(c, undisturbed(c));
    c.victim = -1, c.loads = false;
    require_same(c, hash);
}

/* Who gives its state dies when the first of those that need it has all of it. */
static void test_the_donor_dies(void **state)
{
    (void)state;
    elastic_case c = base;
    c.steps = 60, c.replaced = true, c.donor = true, c.when = ELASTIC_BEFORE_UPDATE, c.at = 5;
    c.victim = 0;
    require_same(c, undisturbed(c));
    c.ranks = 4, c.victim = -1;
    require_same(c, undisturbed(c));
}

/* Newcomers end while the world's groups, memory and gradients are made, each a bit later. */
static void test_newcomers_die_on_their_way(void **state)
{
    (void)state;
    elastic_case c = base;
    c.steps = 200, c.replaced = true, c.when = ELASTIC_BEFORE_COMMIT, c.victim = 1, c.at = 5;
    c.stillborn = 24, c.pause = 0.01;
    elastic_result r = require_same(c, undisturbed(c));
    assert_true(r.started > c.ranks + 1);
}

/* A member that ends after it was agreed on: nobody waits for the time-out. */
static void play_a_member_that_ends(td_store *store)
{
    int64_t id;
    char key[64], *list;
    REQUIRE_OK(td_store_add(store, "ids", 1, &id));
    snprintf(key, sizeof key, "gone/%lld", (long long)id - 1);
    REQUIRE_OK(td_store_will(store, key));
    snprintf(key, sizeof key, "1/alive/%lld", (long long)id - 1);
    REQUIRE_OK(td_store_set_text(store, key, "0"));
    REQUIRE_OK(td_store_get_text(store, "1/members", 20, &list));
    free(list);
}

static void test_a_member_dies_before_the_world_is_made(void **state)
{
    (void)state;
    elastic_case c = base;
    c.timeout = 60;
    elastic_play(play_a_member_that_ends);
    double begin = td_clock();
    elastic_result r = elastic_run(&c, 90);
    assert_int_equal(r.failed, 0);
    assert_true(td_clock() - begin < 50);
    assert_int_equal(r.worlds, 2); /* one world of two processes */
    assert_true(r.hash == undisturbed(base));
}

/* A process that stands still: the time-out decides, and it comes back as a newcomer. */
static void test_a_stopped_process(void **state)
{
    (void)state;
    elastic_case c = base;
    c.steps = 400, c.stops = true, c.when = ELASTIC_BEFORE_COMMIT, c.at = 5, c.timeout = 1.5;
    uint64_t hash = undisturbed(c);
    for (c.victim = 0; c.victim < 2; c.victim++) {
        elastic_result r = require_same(c, hash);
        assert_int_equal(r.started, 3);
    }
}

/* ---- what cannot go on ---- */

/* A last will wakes nobody: it is looked for. */
static void wait_for_the_end(td_store *store, int64_t id)
{
    char key[64];
    snprintf(key, sizeof key, "gone/%lld", (long long)id);
    for (bool gone = false; !gone; td_sleep(0.005)) {
        REQUIRE_OK(td_store_check(store, key, &gone));
    }
}

/* Takes a number when the first process has ended, and never says that it is alive. */
static void play_a_silent_process(td_store *store)
{
    int64_t ids;
    wait_for_the_end(store, 0);
    REQUIRE_OK(td_store_add(store, "ids", 1, &ids));
    REQUIRE(ids == 2);
    elastic_played();
    wait_for_the_end(store, 2); /* the newcomer, which has found this process's number */
}

/* Nobody has the state, and one of those that have come does not answer: the newcomer does not wait
 * longer than for any other process. */
static void test_a_newcomer_that_says_nothing(void **state)
{
    (void)state;
    elastic_case c = base;
    c.ranks = 2, c.replaced = true, c.when = ELASTIC_BEFORE_COMMIT, c.victim = 0, c.at = 5;
    c.timeout = 2;
    elastic_play(play_a_silent_process);
    elastic_result r = elastic_run(&c, 30);
    assert_int_equal(r.failed, 1);
    assert_true(r.hash == 0);
    assert_non_null(strstr(r.message, "start the run again from its latest checkpoint"));
}

static void test_newcomers_alone(void **state)
{
    (void)state;
    elastic_case c = base;
    c.ranks = 1, c.replaced = true, c.when = ELASTIC_BEFORE_COMMIT, c.victim = 0, c.at = 5;
    elastic_result r = elastic_run(&c, 60);
    assert_int_equal(r.failed, 1);
    assert_true(r.hash == 0);
    assert_non_null(strstr(r.message, "start the run again from its latest checkpoint"));
}

/* It would come again for ever. */
static void test_a_failure_of_the_program(void **state)
{
    (void)state;
    elastic_case c = base;
    c.differs = true, c.at = 5;
    elastic_result r = elastic_run(&c, 30);
    assert_int_equal(r.failed, c.ranks);
    assert_true(r.hash == 0);
    assert_non_null(strstr(r.message, "5 times after step 5, and no process has died"));
    assert_non_null(strstr(r.message, "all_reduce"));
}

/* ---- storms ---- */

static void test_storm(void **state)
{
    (void)state;
    elastic_case c = { .ranks = 4,
                       .leaves = 8,
                       .steps = checks_part() ? 1000 : 4000,
                       .kills = checks_part() ? 5 : 20,
                       .seed = 1,
                       .least = 0.05,
                       .most = 0.3,
                       .paced = true, /* otherwise all that have the state may be killed before the
                                         others have it: at once on a machine with other work */
                       .replaced = true,
                       .pause = 0.001 };
    c.backend = backend();
    elastic_require_storm(c, 120);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_undisturbed),
        cmocka_unit_test(test_a_rank_dies),
        cmocka_unit_test(test_one_goes_on),
        cmocka_unit_test(test_newcomers),
        cmocka_unit_test(test_the_donor_dies),
        cmocka_unit_test(test_newcomers_die_on_their_way),
        cmocka_unit_test(test_a_member_dies_before_the_world_is_made),
        cmocka_unit_test(test_a_stopped_process),
        cmocka_unit_test(test_newcomers_alone),
        cmocka_unit_test(test_a_newcomer_that_says_nothing),
        cmocka_unit_test(test_a_failure_of_the_program),
        cmocka_unit_test(test_storm),
    };
    size_t count = sizeof tests / sizeof *tests;
    return _cmocka_run_group_tests("elastic", tests, count, NULL, NULL);
}
