/* Choices by timing on several ranks: rank 0's are everyone's, whatever the others would have
 * chosen, and nobody waits for choices that rank 0 has not. */
#include "tests/tensor/choices.h"
#include "tests/help/dist_procs.h"
#include "tests/help/temp_folder.h"
#include "dist/graph/captured.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static const double limit = 60.0; /* seconds */

/* A folder of a rank's own, with the opposite of its neighbour's choices. */
static void own_choices(int rank)
{
    char folder[256];
    snprintf(folder, sizeof folder, "%s/rank%d", temp_folder(), rank);
    REQUIRE(mkdir(folder, 0777) == 0);
    choices_force(folder, rank % 2 == 0 ? "second" : "first");
}

static bool same_everywhere(uint64_t bits)
{
    double halves[2] = { (double)(bits >> 32), (double)(bits & UINT32_MAX) };
    double sums[2] = { halves[0], halves[1] };
    REQUIRE_OK(td_all_reduce_numbers(NULL, sums, 2));
    return sums[0] == halves[0] * td_dist_world_size() &&
           sums[1] == halves[1] * td_dist_world_size();
}

static int run_agree(int rank, int size, void *arg)
{
    (void)arg;
    td_autotune_stats figures;
    procs_init(rank, size, 20.0);
    REQUIRE_OK(td_set_threads(TD_CPU, 1)); /* which the file is for */
    own_choices(rank);
    td_set_autotune(true);
    REQUIRE(same_everywhere(choices_step()));
    REQUIRE_OK(td_autotune_agree(NULL, &figures));
    REQUIRE(figures.chosen == (rank == 0 ? 3 : 0) && figures.timed == 0);
    uint64_t agreed = choices_step();
    REQUIRE(same_everywhere(agreed));
    /* Alone, each would have done as its own file says. */
    td_set_autotune(true);
    (void)choices_step();
    REQUIRE_OK(td_autotune_choose(NULL));
    REQUIRE((choices_step() == agreed) == (rank % 2 == 0));
    td_dist_destroy();
    return 0;
}

static int run_without(int rank, int size, void *arg)
{
    (void)arg;
    setenv("TANDEM_CACHE", "off", 1);
    procs_init(rank, size, 20.0);
    uint64_t rules = choices_step();
    td_set_autotune(rank > 0);
    (void)choices_step();
    REQUIRE_OK(td_autotune_agree(NULL, NULL)); /* rank 0 has none */
    REQUIRE(choices_step() == rules);
    td_set_autotune(true); /* and now none are met */
    REQUIRE_OK(td_autotune_agree(NULL, NULL));
    REQUIRE(choices_step() == rules);
    td_dist_destroy();
    return 0;
}

static void test_rank_0_chooses(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_agree, NULL);
}

static void test_three_ranks(void **state)
{
    (void)state;
    procs_succeed(3, limit, run_agree, NULL);
}

static void test_rank_0_has_none(void **state)
{
    (void)state;
    procs_succeed(2, limit, run_without, NULL);
}

static void test_alone(void **state)
{
    (void)state;
    td_autotune_stats figures;
    setenv("TANDEM_CACHE", "off", 1);
    td_set_autotune(true);
    (void)choices_step();
    assert_int_equal(td_autotune_agree(NULL, &figures), TD_OK);
    assert_int_equal(figures.timed, 3);
    td_set_autotune(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_rank_0_chooses, temp_folder_setup,
                                        temp_folder_teardown),
        cmocka_unit_test_setup_teardown(test_three_ranks, temp_folder_setup, temp_folder_teardown),
        cmocka_unit_test(test_rank_0_has_none),
        cmocka_unit_test(test_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
