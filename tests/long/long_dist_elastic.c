/* A long storm: eight processes, of which 1,000 are killed one after the other and replaced. KILLS
 * and SEED set other numbers; with STAGE=1, 2 or 3 ranks divide the model (td_zero). */
#include "tests/dist/elastic_run.h"
#include "tests/help/dist_procs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static int storm_number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? atoi(text) : otherwise;
}

static void test_long_storm(void **state)
{
    (void)state;
    int kills = storm_number("KILLS", 1000);
    elastic_case c = { .ranks = 8,
                       .leaves = 8,
                       .steps = 40 * kills,
                       .stage = storm_number("STAGE", 0),
                       .backend = procs_are_over("gloo") ? "gloo" : NULL,
                       .kills = kills,
                       .seed = (unsigned)storm_number("SEED", 1),
                       .least = 0.02,
                       .most = 0.3,
                       .paced = true,
                       .replaced = true,
                       .pause = 0.01 };
    elastic_result r = elastic_require_storm(c, 60 + 3 * kills);
    assert_int_equal(r.started, c.ranks + kills);
    assert_true(r.first_killed > kills / 40);
    assert_true(r.joining_killed > 0 || kills < 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_storm),
    };
    return _cmocka_run_group_tests("long elastic storm", tests, 1, NULL, NULL);
}
