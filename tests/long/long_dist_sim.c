/* The simulator at its size: 10,000 ranks of td_ddp in 30 s and 2.5 GB. */
#include "tensor/clock.h"
#include "tests/dist/sim_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/resource.h>

#include <cmocka.h>

static void test_ten_thousand_ranks(void **state)
{
    (void)state;
    sim_case c = { .steps = 5, .failed_step = -1 };
    td_sim_result result;
    struct rusage used;
    double begin = td_clock();
    td_sim_options options = { .ranks = 10000, .latency = 5e-6, .bandwidth = 25e9, .killed = -1 };
    assert_int_equal(td_sim_run(&options, sim_rank, &c, &result), TD_OK);
    double took = td_clock() - begin;
    getrusage(RUSAGE_SELF, &used);
    printf("# 10,000 ranks, 5 steps: %.1f s, %.2f GB; a step of %.1f us\n", took,
           (double)used.ru_maxrss / 1e6, 1e6 * result.step.clock);
    assert_int_equal(result.steps, 5);
    assert_true(c.hash != 0);
    assert_true(took < 30.0);
    assert_true(used.ru_maxrss < 2500000);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_ten_thousand_ranks) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
