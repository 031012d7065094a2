/* What a captured step must keep to, checked on the CPU, where nothing is captured: equal memory in
 * each step, nothing that the host reads; and results that come later. */
#include "tests/tensor/captured_job.h"
#include "tests/help/expect_fatal.h"
#include "nn/extra/inspect.h"
#include "nn/optim/optim_internal.h"
#include "tensor/extend.h"

#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 12 };

static void expect_why(const td_captured *captured, const char *part)
{
    const char *why = td_captured_now(captured).why;
    if (strstr(why, part) == NULL) {
        fail_msg("'%s' is not in '%s'", part, why);
    }
}

/* Steps [from, to), each followed by its results. */
static void run_steps(captured_job *job, td_captured *captured, int count)
{
    double values[2];
    for (int i = 0; i < count; i++) {
        assert_int_equal(captured_job_captured_step(job, captured, false), TD_OK);
        assert_int_equal(td_captured_next(captured, values), TD_OK);
    }
}

static void test_same_bits_as_ever(void **state)
{
    (void)state;
    const captured_kind kinds[] = { { .optim = CAPTURED_ADAM, .ema = true },
                                    { .optim = CAPTURED_SGD, .pictures = true },
                                    { .optim = CAPTURED_SGD, .accumulate = 3 },
                                    { .optim = CAPTURED_SGD, .loader = true },
                                    { .optim = CAPTURED_ADAM, .scaler = true, .ema = true },
                                    { .optim = CAPTURED_SGD, .scaler = true, .accumulate = 2 } };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        captured_job plain, job;
        captured_job_open(&plain, kinds[k]);
        captured_job_open(&job, kinds[k]);
        td_captured *captured = captured_job_capture(&job);
        for (int i = 0; i < STEPS; i++) {
            double here[2], there[2];
            bool tail = i % 5 == 4;
            captured_job_step(&plain, tail, here);
            assert_int_equal(captured_job_captured_step(&job, captured, tail), TD_OK);
            assert_int_equal(td_captured_next(captured, there), TD_OK);
            assert_memory_equal(here, there, sizeof here);
        }
        assert_true(captured_job_hash(&plain) == captured_job_hash(&job));
        if (kinds[k].scaler) {
            assert_true(td_scaler_now(job.scaler).skipped > 0);
        }
        td_captured_stats figures = td_captured_now(captured);
        assert_int_equal(figures.eager, STEPS);
        assert_int_equal(figures.recorded + figures.replayed, 0);
        assert_string_equal(figures.why, "");
        td_captured_free(captured);
        captured_job_close(&job);
        captured_job_close(&plain);
    }
}

/* Steps that the scaler has skipped are not those of an optimizer that comes later, nor of an
 * average; counts stay right when another scaler takes over; and nobody asks a scaler that is gone.
 */
static void test_new_optimizer_after_skipped_steps(void **state)
{
    (void)state;
    enum { FIRST, OTHER_OPTIM, OTHER_SCALER, NO_SCALER, LAST };
    captured_job jobs[2]; /* eager, and captured */
    captured_kind kind = { .optim = CAPTURED_ADAM, .scaler = true, .ema = true };
    for (int k = 0; k < 2; k++) {
        captured_job *job = &jobs[k];
        captured_job_open(job, kind);
        for (int part = FIRST; part < LAST; part++) {
            if (part == OTHER_OPTIM) {
                assert_true(td_scaler_now(job->scaler).skipped > 0);
                td_optim_free(job->optim);
                job->optim = td_adam(td_parameters(job->net));
                td_ema_free(job->ema);
                job->ema = td_ema_new(job->net, .decay = 0.9, .warmup = true);
                assert_true(job->optim != NULL && job->ema != NULL);
            } else if (part == OTHER_SCALER) {
                td_scaler_free(job->scaler);
                job->scaler = td_scaler_new(.scale = 0x1p24, .patience = 2);
                assert_non_null(job->scaler);
            } else if (part == NO_SCALER) {
                assert_true(td_scaler_now(job->scaler).skipped > 0);
                td_scaler_free(job->scaler);
                job->scaler = NULL;
                job->kind.scaler = false;
            }
            td_captured *captured = k == 1 ? captured_job_capture(job) : NULL;
            for (int i = 0; i < STEPS; i++) {
                double values[2];
                if (k == 0) {
                    captured_job_step(job, false, values);
                } else {
                    assert_int_equal(captured_job_captured_step(job, captured, false), TD_OK);
                    assert_int_equal(td_captured_next(captured, values), TD_OK);
                }
            }
            td_captured_free(captured);
        }
    }
    assert_true(captured_job_hash(&jobs[0]) == captured_job_hash(&jobs[1]));
    captured_job_close(&jobs[0]);
    captured_job_close(&jobs[1]);
}

/* Those that are made before the skipped steps, and take part only after them. */
static void test_late_optimizer_after_skipped_steps(void **state)
{
    (void)state;
    captured_job job;
    captured_job_open(&job, (captured_kind){ .optim = CAPTURED_ADAM, .scaler = true });
    td_optim *late = td_adam(td_parameters(job.net), .lr = 1e-3);
    td_ema *ema = td_ema_new(job.net, .decay = 0.99, .warmup = true);
    td_captured *captured = captured_job_capture(&job);
    for (int i = 0; i < 8; i++) {
        double results[2];
        assert_int_equal(captured_job_captured_step(&job, captured, false), TD_OK);
        assert_int_equal(td_captured_next(captured, results), TD_OK);
    }
    assert_true(td_scaler_now(job.scaler).skipped > 0);
    assert_int_equal(td_ema_updates(ema), 0);
    td_ema_update(ema);
    assert_int_equal(td_ema_updates(ema), 1);
    td_optim_step(late);
    td_optim_settle(late);
    assert_int_equal(late->steps[0], 1);
    td_captured_forget(captured);
    job.ema = td_ema_new(job.net, .decay = 0.99, .warmup = true);
    int64_t before = td_scaler_now(job.scaler).skipped, taken = 0;
    enum { MORE = 12 };
    for (int i = 0; i < MORE; i++) {
        double results[2];
        assert_int_equal(captured_job_captured_step(&job, captured, false), TD_OK);
        assert_int_equal(td_captured_next(captured, results), TD_OK);
    }
    taken = MORE - (td_scaler_now(job.scaler).skipped - before);
    assert_in_range(taken, 1, MORE - 1);
    assert_int_equal(td_ema_updates(job.ema), taken);
    td_captured_free(captured);
    td_ema_free(ema);
    td_optim_free(late);
    captured_job_close(&job);
}

static void test_other_memory_is_named(void **state)
{
    (void)state;
    captured_job job;
    captured_job_open(&job, (captured_kind){ .optim = CAPTURED_SGD, .pictures = true });
    td_captured *captured = captured_job_capture(&job);
    job.more_at = 6;
    job.more = 5000;
    run_steps(&job, captured, 6);
    assert_string_equal(td_captured_now(captured).why, "");
    run_steps(&job, captured, 1);
    expect_why(captured, "a step with input[6,3,4,4]: block ");
    expect_why(captured, " of its memory is 19.6 KiB at ");
    td_captured_forget(captured);
    assert_string_equal(td_captured_now(captured).why, "");
    run_steps(&job, captured, 5);
    assert_string_equal(td_captured_now(captured).why, "");
    td_captured_free(captured);
    captured_job_close(&job);
}

static td_status last_block(void *user, td_tensor *const *inputs, td_tensor **results)
{
    (void)inputs, (void)results;
    int *steps = user;
    int blocks = ++*steps == 4 ? 2 : 1;
    td_context_push("lonely (Module)");
    for (int i = 0; i < blocks; i++) {
        (void)td_step_new(TD_SHAPE(100), TD_F32, TD_ROW_MAJOR, TD_CPU, TD_HERE);
    }
    td_context_pop();
    return TD_OK;
}

static void test_missing_and_new_memory(void **state)
{
    (void)state;
    int steps = 0;
    td_captured *captured =
        td_captured_new(&(td_captured_options){ .step = last_block, .user = &steps });
    assert_non_null(captured);
    for (int i = 1; i <= 5; i++) {
        assert_int_equal(td_captured_run(captured, NULL, 0), TD_OK);
        assert_int_equal(td_captured_next(captured, NULL), TD_OK);
        if (i == 4) {
            expect_why(captured, "it took 2 blocks of memory, and 1 the step before: ");
            expect_why(captured, " in lonely (Module) is new");
        } else if (i == 5) {
            expect_why(captured, "it took 1 blocks of memory, and 2 the step before: ");
            expect_why(captured, " in lonely (Module) is missing");
        } else {
            assert_string_equal(td_captured_now(captured).why, "");
        }
    }
    td_captured_free(captured);
}

static td_status many_blocks(void *user, td_tensor *const *inputs, td_tensor **results)
{
    (void)user, (void)inputs, (void)results;
    for (int i = 0; i < 20; i++) {
        (void)td_step_new(TD_SHAPE(100), TD_F32, TD_ROW_MAJOR, TD_CPU, TD_HERE);
    }
    return TD_OK;
}

enum { MANY_STEPS = 50000 };

/* Counts the steps whose memory was as in the step before. */
static void *run_many(void *same)
{
    td_captured *captured = td_captured_new(&(td_captured_options){ .step = many_blocks });
    for (int i = 0; i < MANY_STEPS && captured != NULL; i++) {
        if (td_captured_run(captured, NULL, 0) != TD_OK ||
            td_captured_next(captured, NULL) != TD_OK) {
            break;
        }
        *(int *)same += td_captured_now(captured).why[0] == '\0';
    }
    td_captured_free(captured);
    return NULL;
}

/* What one thread's warm-ups are told of memory is its own, whatever others begin and end
 * meanwhile. */
static void test_threads(void **state)
{
    (void)state;
    enum { THREADS = 2 };
    pthread_t threads[THREADS];
    int same[THREADS] = { 0 };
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, run_many, &same[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(same[i], MANY_STEPS);
    }
}

static void test_what_the_host_does_is_named(void **state)
{
    (void)state;
    captured_job job;
    captured_job_open(&job, (captured_kind){ .optim = CAPTURED_SGD });
    td_captured *captured = captured_job_capture(&job);
    job.reads = true;
    run_steps(&job, captured, 2);
    assert_string_equal(td_captured_now(captured).why, ""); /* a first step may do more */
    run_steps(&job, captured, 1);
    expect_why(captured, "a step with input[6,9]: td_item reads a value");
    td_captured_free(captured);
    captured_job_close(&job);
}

static void test_results_wait(void **state)
{
    (void)state;
    captured_job plain, job;
    captured_kind kind = { .optim = CAPTURED_SGD };
    captured_job_open(&plain, kind);
    captured_job_open(&job, kind);
    td_captured *captured = captured_job_capture(&job);
    double here[3][2], there[2];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(td_captured_waiting(captured), i);
        captured_job_step(&plain, i == 1, here[i]);
        assert_int_equal(captured_job_captured_step(&job, captured, i == 1), TD_OK);
    }
    assert_true(td_captured_full(captured));
    expect_fatal("the results of 3 steps are waiting",
                 td_captured_run(captured, (td_tensor *[]){ job.x[0], job.y[0] }, 2));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(td_captured_next(captured, there), TD_OK);
        assert_memory_equal(here[i], there, sizeof there);
    }
    expect_fatal("no step's results are waiting", td_captured_next(captured, there));
    td_captured_free(captured);
    captured_job_close(&job);
    captured_job_close(&plain);
}

static td_status fails_once(void *user, td_tensor *const *inputs, td_tensor **results)
{
    (void)inputs, (void)results;
    int *steps = user;
    TD_REQUIRE((*steps)++ > 0, TD_HERE, "the first step is a mistake");
    (void)td_step_new(TD_SHAPE(100), TD_F32, TD_ROW_MAJOR, TD_CPU, TD_HERE);
    return TD_OK;
}

static void test_abandoned_warm_up(void **state)
{
    (void)state;
    int steps = 0;
    td_captured *captured =
        td_captured_new(&(td_captured_options){ .step = fails_once, .user = &steps });
    assert_non_null(captured);
    expect_fatal("the first step is a mistake", td_captured_run(captured, NULL, 0));
    td_step_abandon();
    assert_int_equal(td_captured_run(captured, NULL, 0), TD_OK);
    assert_int_equal(td_captured_next(captured, NULL), TD_OK);
    steps = 0;
    expect_fatal("the first step is a mistake", td_captured_run(captured, NULL, 0));
    td_captured_free(captured); /* before the step is abandoned */
    td_step_abandon();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_as_ever),
        cmocka_unit_test(test_new_optimizer_after_skipped_steps),
        cmocka_unit_test(test_late_optimizer_after_skipped_steps),
        cmocka_unit_test(test_other_memory_is_named),
        cmocka_unit_test(test_missing_and_new_memory),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_what_the_host_does_is_named),
        cmocka_unit_test(test_results_wait),
        cmocka_unit_test(test_abandoned_warm_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
