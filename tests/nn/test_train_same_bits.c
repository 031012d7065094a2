/* The same bits, always: forward, backward and six training steps (two under sanitizers) of a
 * ResNet-18 with 1, 2, 3 and 8 threads, and from run to run. */
#include "tests/help/sanitized.h"
#include "tests/nn/train_job.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

enum { STEPS = TD_SANITIZED ? 2 : 6 };

typedef struct outcome {
    double losses[STEPS];
    uint64_t first_step, last_step; /* hashes of parameters, gradients, statistics */
} outcome;

static outcome train(int threads, int64_t batch)
{
    outcome o = { 0 };
    train_job job;
    assert_int_equal(td_set_threads(TD_CPU, threads), TD_OK);
    train_job_open(&job, batch, 32);
    for (int i = 0; i < STEPS; i++) {
        o.losses[i] = train_job_step(&job);
        if (i == 0) {
            o.first_step = train_job_hash(&job);
        }
    }
    o.last_step = train_job_hash(&job);
    train_job_close(&job);
    return o;
}

static void check_threads(int64_t batch)
{
    static const int threads[] = { 3, 8, 2, 1 };
    outcome one = train(1, batch);
    assert_true(one.losses[0] > 1.0 && one.losses[0] < 5.0);
    for (size_t i = 0; i < (checks_part() ? 2 : sizeof threads / sizeof *threads); i++) {
        outcome other = train(threads[i], batch);
        assert_memory_equal(one.losses, other.losses, sizeof one.losses);
        assert_true(one.first_step == other.first_step);
        assert_true(one.last_step == other.last_step);
    }
}

static void test_batch_of_sixteen(void **state)
{
    (void)state;
    check_threads(16);
}

static void test_odd_batch(void **state)
{
    (void)state;
    check_threads(7);
}

/* Different input must give a different hash, or the tests above could not fail. */
static void test_hash_sees_differences(void **state)
{
    (void)state;
    train_job job;
    train_job_open(&job, 4, 32);
    train_job_step(&job);
    uint64_t before = train_job_hash(&job);
    td_tensor *bias = td_params_get(td_parameters(job.net), 1)->tensor;
    int64_t first = 0;
    td_set(bias, &first, td_get(bias, &first) * (1 + 1e-7));
    assert_true(train_job_hash(&job) != before);
    train_job_close(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_of_sixteen),
        cmocka_unit_test(test_odd_batch),
        cmocka_unit_test(test_hash_sees_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
