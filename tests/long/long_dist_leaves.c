/* One hash over hundreds of layouts: every number of ranks up to 8, every way to divide a model,
 * engines, threads. */
#include "tests/dist/leaf_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const char *const engines[] = { "shm", "gloo" };

/* Runs of a case on 1 to 8 ranks; returns their number. */
static int require_all(leaf_case c, int threads, const char *engine, uint64_t hash)
{
    char text[8];
    snprintf(text, sizeof text, "%d", threads);
    setenv("OMP_NUM_THREADS", text, 1);
    setenv("TANDEM_BACKEND", engine, 1);
    int runs = 0;
    for (int ranks = 1; ranks <= 8; ranks++) {
        for (c.way = TD_SHARD_NONE; c.way < LEAF_WAYS; c.way++, runs++) {
            if (leaf_hash(&c, ranks) != hash) {
                fail_msg("%d ranks over %s, %d threads, way %d: another hash", ranks, engine,
                         threads, c.way);
            }
        }
    }
    return runs;
}

static void test_one_hash(void **state)
{
    (void)state;
    const leaf_case cases[] = {
        { .leaves = 8, .steps = 4 },
        { .leaves = 12, .steps = 3, .adam = true, .clips = true, .averages = true },
        { .leaves = 9, .steps = 5, .loads = true, .dtype = TD_F64 },
        { .leaves = 8, .steps = 1, .model = LEAF_RESNET },
    };
    int runs = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("TANDEM_BACKEND", "shm", 1);
        uint64_t hash = leaf_hash(&cases[i], 1);
        for (int threads = 1; threads <= 2; threads++) {
            for (int e = 0; e < 2 - (cases[i].model == LEAF_RESNET && threads == 2); e++) {
                runs += require_all(cases[i], threads, engines[e], hash);
            }
        }
    }
    printf("%d layouts, %zu hashes\n", runs, sizeof cases / sizeof *cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
