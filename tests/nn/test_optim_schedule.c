/* Learning-rate schedules against their closed forms. */
#include "nn/extra/schedules.h"
#include "tandem.h"
#include "tests/help/expect_fatal.h"

#include <math.h>
#include <stdarg.h>
#include <setjmp.h>

#include <cmocka.h>

static const double pi = 3.14159265358979323846;

static void check(const td_schedule *s, double position, double expected, double tolerance)
{
    double lr = td_schedule_lr(s, position);
    if (!(fabs(lr - expected) <= tolerance)) {
        fail_msg("at %g the rate is %.17g, should be %.17g", position, lr, expected);
    }
}

static void test_constant(void **state)
{
    (void)state;
    td_schedule s = { .base_lr = 0.3 };
    check(&s, 0, 0.3, 0);
    check(&s, 1e6, 0.3, 0);
}

static void test_step(void **state)
{
    (void)state;
    td_schedule s = { .kind = TD_SCHEDULE_STEP, .base_lr = 1.0, .step_size = 30, .gamma = 0.5 };
    check(&s, 0, 1.0, 0);
    check(&s, 29, 1.0, 0);
    check(&s, 30, 0.5, 0);
    check(&s, 89.5, 0.25, 0);
    check(&s, 90, 0.125, 0);
    s.gamma = 0.0; /* 0.1 */
    check(&s, 60, 0.01, 1e-15);
    s.step_size = 0.0;
    expect_fatal("length of a step", td_schedule_lr(&s, 1));
}

static void test_multi_step(void **state)
{
    (void)state;
    td_schedule s = { .kind = TD_SCHEDULE_MULTI_STEP,
                      .base_lr = 0.2,
                      .milestones = { 30, 60, 90 },
                      .milestone_count = 3 };
    check(&s, 29, 0.2, 0);
    check(&s, 30, 0.02, 1e-16);
    check(&s, 60, 0.002, 1e-16);
    check(&s, 1000, 0.0002, 1e-16);
    s.milestone_count = 17;
    expect_fatal("room for 16", td_schedule_lr(&s, 1));
}

static void test_cosine(void **state)
{
    (void)state;
    td_schedule s = { .kind = TD_SCHEDULE_COSINE, .base_lr = 0.2, .min_lr = 0.01, .total = 100 };
    check(&s, 0, 0.2, 1e-16);
    check(&s, 50, 0.105, 1e-15);
    check(&s, 100, 0.01, 1e-15);
    for (int t = 0; t <= 100; t += 7) {
        check(&s, t, 0.01 + 0.19 * (1 + cos(pi * t / 100)) / 2, 1e-15);
    }
    s.total = 0.0;
    expect_fatal("total is 0; give the position where the cosine or line ends",
                 td_schedule_lr(&s, 1));
}

/* The complete trainer's default: cosine over 100 epochs from 0.2, five epochs of warm-up from a
 * tenth. The numbers are the article's. */
static void test_warmup(void **state)
{
    (void)state;
    td_schedule s = {
        .kind = TD_SCHEDULE_COSINE, .base_lr = 0.2, .total = 100, .warmup = 5, .warmup_factor = 0.1
    };
    static const double expected[] = { 0.02, 0.055986, 0.091909, 0.127716, 0.163353, 0.198769 };
    for (int epoch = 0; epoch < 6; epoch++) {
        check(&s, epoch, expected[epoch], 5e-7);
    }
    s = (td_schedule){ .base_lr = 1.0, .warmup = 10, .warmup_factor = 0.5 }; /* of a constant */
    check(&s, 0, 0.5, 0);
    check(&s, 5, 0.75, 1e-16);
    check(&s, 10, 1.0, 0);
}

/* The triangle of the speed run: from 0.2 to 1 at 23 % of 400 steps, then to 0.07. */
static void test_linear(void **state)
{
    (void)state;
    td_schedule s = { .kind = TD_SCHEDULE_LINEAR,
                      .base_lr = 2.0,
                      .min_lr = 0.14,
                      .total = 400,
                      .warmup = 92,
                      .warmup_factor = 0.2 };
    check(&s, 0, 0.4, 1e-15);
    check(&s, 46, 1.2, 1e-15);
    check(&s, 92, 2.0, 1e-15);
    check(&s, 246, 1.07, 1e-15);
    check(&s, 400, 0.14, 1e-15);
    check(&s, 500, 0.14, 1e-15);
    s.total = 92;
    expect_fatal("than where it begins (92)", td_schedule_lr(&s, 1));
}

/* The schedule follows the warm-up: torch.optim.lr_scheduler.SequentialLR of LinearLR(0.01, 5
 * steps) and the schedule, from step 5 on. The numbers are PyTorch's (2.15). */
static void test_after_warmup(void **state)
{
    (void)state;
    static const struct {
        td_schedule s;
        double lr[12];
    } cases[] = {
        { { .kind = TD_SCHEDULE_COSINE, .min_lr = 0.001, .total = 12 },
          { 0.005, 0.104, 0.203, 0.302, 0.401, 0.5, 0.475291732542, 0.406060705564, 0.306018973022,
            0.194981026978, 0.0949392944362, 0.0257082674583 } },
        { { .kind = TD_SCHEDULE_STEP, .step_size = 3 },
          { 0.005, 0.104, 0.203, 0.302, 0.401, 0.5, 0.5, 0.5, 0.05, 0.05, 0.05, 0.005 } },
        { { .kind = TD_SCHEDULE_MULTI_STEP, .milestones = { 7, 11 }, .milestone_count = 2 },
          { 0.005, 0.104, 0.203, 0.302, 0.401, 0.5, 0.5, 0.05, 0.05, 0.05, 0.05, 0.005 } },
        { { .kind = TD_SCHEDULE_LINEAR, .min_lr = 0.001, .total = 12 },
          { 0.005, 0.104, 0.203, 0.302, 0.401, 0.5, 0.428714285714, 0.357428571429, 0.286142857143,
            0.214857142857, 0.143571428571, 0.0722857142857 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_schedule s = cases[i].s;
        s.base_lr = 0.5;
        s.warmup = 5;
        s.warmup_factor = 0.01;
        s.after_warmup = true;
        for (int t = 0; t < 12; t++) {
            check(&s, t, cases[i].lr[t], 1e-12);
        }
    }
    td_schedule s = { .kind = TD_SCHEDULE_COSINE, .base_lr = 1, .total = 5, .warmup = 5 };
    s.after_warmup = true;
    expect_fatal("than where it begins (5)", td_schedule_lr(&s, 6));
}

/* The numbers of the rest are PyTorch's (2.15), made by tests/nn/optim_torch.py. */
static void test_restarts_and_one_cycle(void **state)
{
    (void)state;
    static const struct {
        td_schedule s;
        double lr[12];
    } cases[] = {
        { { .kind = TD_SCHEDULE_RESTARTS, .min_lr = 0.001, .step_size = 4 },
          { 0.5, 0.426923141906, 0.2505, 0.074076858094, 0.5, 0.426923141906, 0.2505,
            0.074076858094, 0.5, 0.426923141906, 0.2505, 0.074076858094 } },
        { { .kind = TD_SCHEDULE_RESTARTS, .min_lr = 0.001, .step_size = 3, .growth = 2 },
          { 0.5, 0.37525, 0.12575, 0.5, 0.466573338244, 0.37525, 0.2505, 0.12575, 0.0344266617558,
            0.5, 0.491498493659, 0.466573338244 } },
        { { .kind = TD_SCHEDULE_ONE_CYCLE, .total = 12 },
          { 0.02, 0.17489482711, 0.439642579561, 0.497207717725, 0.466506484921, 0.405872826975,
            0.323689498848, 0.231318551333, 0.141530499104, 0.0667387650944, 0.0172834937127,
            2e-06 } },
        { { .kind = TD_SCHEDULE_ONE_CYCLE,
            .total = 12,
            .warmup = 6,
            .warmup_factor = 0.1,
            .min_lr = 5e-4 },
          { 0.05, 0.0929711762656, 0.205471176266, 0.344528823734, 0.457028823734, 0.5,
            0.466539844595, 0.375125, 0.25025, 0.125375, 0.0339601554048, 0.0005 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_schedule s = cases[i].s;
        s.base_lr = 0.5;
        for (int t = 0; t < 12; t++) {
            check(&s, t, cases[i].lr[t], 1e-12);
        }
    }
    td_schedule s = { .kind = TD_SCHEDULE_RESTARTS, .base_lr = 1 };
    expect_fatal("give the first cycle's length", td_schedule_lr(&s, 1));
    s.kind = TD_SCHEDULE_ONE_CYCLE;
    expect_fatal("give .total", td_schedule_lr(&s, 1));
}

static void test_sequence(void **state)
{
    (void)state;
    static const td_schedule three[] = {
        { .base_lr = 0.5 },
        { .kind = TD_SCHEDULE_STEP, .base_lr = 0.5, .step_size = 2, .gamma = 0.5 },
        { .kind = TD_SCHEDULE_COSINE, .base_lr = 0.5, .min_lr = 0.001, .total = 4 },
    };
    static const double lr[] = { 0.5,    0.5,           0.5,   0.5, 0.5,
                                 0.25,   0.25,          0.125, 0.5, 0.426923141906,
                                 0.2505, 0.074076858094 };
    for (int t = 0; t < 12; t++) {
        double got = td_schedules_lr(three, (double[]){ 3, 8 }, 3, t);
        assert_true(fabs(got - lr[t]) <= 1e-12);
    }
    expect_fatal("there is no schedule", td_schedules_lr(three, NULL, 0, 0));
}

static void test_plateau(void **state)
{
    (void)state;
    static const double metrics[] = { 1,   .9,  .95, .91, .92, .9,  .8,  .85,
                                      .85, .85, .85, .85, .85, .85, .85, .1 };
    enum { CALLS = sizeof metrics / sizeof *metrics };
    static const struct {
        td_plateau plateau;
        double lr[CALLS];
    } cases[] = {
        { { .factor = 0.5, .patience = 2 },
          { 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25, 0.125, 0.125, 0.125, 0.0625, 0.0625,
            0.0625, 0.0625 } },
        { { .patience = 1, .threshold = 0.05, .absolute = true, .cooldown = 2, .min_lr = 0.004 },
          { 0.5, 0.5, 0.5, 0.05, 0.05, 0.05, 0.05, 0.05, 0.005, 0.005, 0.005, 0.005, 0.004, 0.004,
            0.004, 0.004 } },
        { { .factor = 0.5, .patience = 2, .threshold = 0.1, .larger_is_better = true },
          { 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125, 0.125, 0.0625, 0.0625, 0.0625, 0.03125,
            0.03125, 0.03125, 0.015625 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_plateau plateau = cases[i].plateau;
        plateau.lr = 0.5;
        for (int t = 0; t < CALLS; t++) {
            double lr = td_plateau_step(&plateau, metrics[t]);
            if (!(fabs(lr - cases[i].lr[t]) <= 1e-12)) {
                fail_msg("case %d, call %d: %.17g, not %.17g", (int)i, t, lr, cases[i].lr[t]);
            }
        }
    }
    /* NaN is never better, also not as the first metric: the next ones are compared with numbers.
     */
    td_plateau plateau = { .lr = 0.5, .factor = 0.5, .patience = 2 };
    static const double after_nan[] = { NAN, 3, 2, NAN, 1, NAN, NAN };
    for (size_t t = 0; t < sizeof after_nan / sizeof *after_nan; t++) {
        assert_true(td_plateau_step(&plateau, after_nan[t]) == 0.5);
    }
    assert_true(td_plateau_step(&plateau, NAN) == 0.25);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constant),     cmocka_unit_test(test_step),
        cmocka_unit_test(test_multi_step),   cmocka_unit_test(test_cosine),
        cmocka_unit_test(test_warmup),       cmocka_unit_test(test_linear),
        cmocka_unit_test(test_after_warmup), cmocka_unit_test(test_restarts_and_one_cycle),
        cmocka_unit_test(test_sequence),     cmocka_unit_test(test_plateau),
    };
    return cmocka_run_group_tests_name("nn: schedules", tests, NULL, NULL);
}
