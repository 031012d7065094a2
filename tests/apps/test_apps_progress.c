/* The progress of a run: steps have their own time, and what lies between epochs is in what is
 * left. */
#include "apps/tools/common/progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { STEPS = 4, EPOCHS = 5, TEST_SECONDS = 600 };

static void test_time_between_epochs(void **state)
{
    (void)state;
    progress p;
    char left[32];
    progress_begin(&p, false, STEPS * EPOCHS);
    progress_eta(&p, left, sizeof left);
    assert_string_equal(left, "0:00:00");
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        progress_epoch(&p, STEPS);
        for (int i = 0; i < STEPS; i++) {
            progress_step(&p, &(progress_point){ .epoch = epoch + 1, .step = i + 1, .batch = 32 });
        }
        p.last -= TEST_SECONDS; /* as if it had been tested for so long */
    }
    assert_true(p.step_seconds < TEST_SECONDS / 100.0);
    assert_true(progress_rate(&p, 32) > 3200.0 / TEST_SECONDS);
    assert_true(p.between >= TEST_SECONDS && p.between < TEST_SECONDS + 60);
    assert_int_equal(p.steps_left, 0);
}

static void test_what_is_left(void **state)
{
    (void)state;
    progress p = { .steps = STEPS, .between = 1000, .step_seconds = 10 };
    char left[32];
    p.steps_left = STEPS + 1; /* the last of this epoch, and one more epoch: two tests */
    progress_eta(&p, left, sizeof left);
    assert_string_equal(left, "0:34:10");
    p.steps_left = 0;
    progress_eta(&p, left, sizeof left);
    assert_string_equal(left, "0:00:00");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_time_between_epochs),
        cmocka_unit_test(test_what_is_left),
    };
    return cmocka_run_group_tests_name("apps: progress", tests, NULL, NULL);
}
