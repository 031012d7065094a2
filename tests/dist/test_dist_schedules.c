/* The generator of pipeline schedules, without any rank: every plan comes to its end, has each
 * action once, keeps as many micro-batches as its formula says, and has the bubble of theory. */
#include "dist/pipeline/pipeline.h"
#include "dist/pipeline/schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 8 };

/* ---- what every plan must be ---- */

static void check_each_once(const td_plan *plan, int rank)
{
    int count = td_plan_count(plan), kinds = plan->kind == TD_PLAN_ZB ? 3 : 2;
    td_action list[3 * MOST * MOST * MOST];
    int seen[3][MOST][3 * MOST * MOST] = { 0 };
    td_plan_actions(plan, rank, list);
    for (int i = 0; i < count; i++) {
        int kind = list[i].kind == 'F' ? 0 : list[i].kind == 'W' ? 2 : 1;
        assert_true(kind != 2 || seen[1][list[i].chunk][list[i].micro] == 1);
        assert_true(list[i].kind != (plan->kind == TD_PLAN_ZB ? 'B' : 'I'));
        assert_int_equal(seen[kind][list[i].chunk][list[i].micro]++, 0);
    }
    assert_int_equal(count, kinds * plan->micro * plan->chunks);
}

static int less(int a, int b)
{
    return a < b ? a : b;
}

static int formula(const td_plan *plan, int rank)
{
    int p = plan->ranks, m = plan->micro, v = plan->chunks;
    switch (plan->kind) {
    case TD_PLAN_GPIPE:
        return m;
    case TD_PLAN_ZB:
        return less(m, p);
    default:
        return v == 1 ? less(m, p - rank) : less(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1);
    }
}

static void check_plan(const char *text, int p, int m)
{
    td_plan plan;
    assert_int_equal(td_plan_read(text, p, m, &plan), TD_OK);
    td_action *list = td_plan_all(&plan);
    double all = td_plan_play(&plan, list);
    free(list);
    if (all <= 0) {
        fail_msg("%s of %d ranks, %d micro-batches: a deadlock", text, p, m);
    }
    for (int r = 0; r < p; r++) {
        check_each_once(&plan, r);
        if (td_plan_held(&plan, r, -1) != formula(&plan, r)) {
            fail_msg("%s of %d ranks, %d micro-batches: rank %d keeps %d, not %d", text, p, m, r,
                     td_plan_held(&plan, r, -1), formula(&plan, r));
        }
    }
}

static void test_every_plan(void **state)
{
    (void)state;
    for (int p = 1; p <= MOST; p++) {
        for (int m = 1; m <= 3 * MOST; m++) {
            check_plan("gpipe", p, m);
            check_plan("1f1b", p, m);
            check_plan("zb", p, m);
            for (int v = 2; v <= MOST && m % p == 0; v++) {
                char text[32];
                snprintf(text, sizeof text, "interleaved:%d", v);
                check_plan(text, p, m);
            }
        }
    }
}

/* ---- bubbles ---- */

static double bubble_of(const char *text, int p, int m)
{
    td_plan plan;
    assert_int_equal(td_plan_read(text, p, m, &plan), TD_OK);
    td_action *list = td_plan_all(&plan);
    double all = td_plan_play(&plan, list);
    free(list);
    return 1.0 - 3.0 * m * plan.chunks / all;
}

static void check_bubble(const char *text, int p, int m, double theory)
{
    double is = bubble_of(text, p, m);
    if (fabs(is - theory) > 5e-4) {
        fail_msg("%s of %d ranks, %d micro-batches: bubble %.4f, theory %.4f", text, p, m, is,
                 theory);
    }
}

static void test_bubbles(void **state)
{
    (void)state;
    for (int p = 2; p <= MOST; p++) {
        for (int m = p; m <= 16; m += p) {
            double wait = p - 1;
            check_bubble("gpipe", p, m, wait / (m + wait));
            check_bubble("1f1b", p, m, wait / (m + wait));
            check_bubble("zb", p, m, wait / (3 * m + wait));
            check_bubble("interleaved:2", p, m, wait / 2 / (m + wait / 2));
            check_bubble("interleaved:4", p, m, wait / 4 / (m + wait / 4));
        }
    }
}

/* ---- texts ---- */

static void test_text(void **state)
{
    (void)state;
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_int_equal(td_schedule_text("1f1b", 4, 8, out), TD_OK);
    assert_int_equal(td_schedule_text("zb", 4, 8, out), TD_OK);
    fclose(out);
    assert_string_equal(text, "rank 0   0123......aa4bb5cc6dd7ee.ff.gg.hh\n"
                              "rank 1   .012....aa3bb4cc5dd6ee7ff.gg.hh..\n"
                              "rank 2   ..01..aa2bb3cc4dd5ee6ff7gg.hh....\n"
                              "rank 3   ...0aa1bb2cc3dd4ee5ff6gg7hh......\n"
                              "bubble   0.273\n"
                              "rank 0   0123...aA4bB5cC6dD7eEfFgGhH\n"
                              "rank 1   .012..a3bA4cB5dC6eD7fEgFhGH\n"
                              "rank 2   ..01.a2b3cA4dB5eC6fD7gEhFGH\n"
                              "rank 3   ...0a1b2c3dA4eB5fC6gD7hEFGH\n"
                              "bubble   0.111\n");
    free(text);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int ranks, micro;
        const char *says;
    } cases[] = {
        { "2f2b", 2, 4, "there is no schedule '2f2b'" },
        { "interleaved:", 2, 4, "there is no schedule" },
        { "interleaved:0", 2, 4, "there is no schedule" },
        { "interleaved:2x", 2, 4, "there is no schedule" },
        { "interleaved:2", 4, 6, "6 micro-batches are no multiple of 4 ranks; take 8, or" },
        { "gpipe", 2, 0, "0 micro-batches" },
        { "gpipe", 0, 2, "0 ranks" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(td_schedule_text(cases[i].text, cases[i].ranks, cases[i].micro, stdout),
                         TD_E_ARG);
        assert_non_null(strstr(td_last_error(), cases[i].says));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_plan),
        cmocka_unit_test(test_bubbles),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
