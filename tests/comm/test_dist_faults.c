/* Whatever happens to one rank, the others end in bounded time with a message that names it and the
 * cause. */
// run: waits
#include "tensor/clock.h"
#include "dist/comm/collectives.h"
#include "dist/comm/group.h"
#include "tests/comm/dist_faults.h"
#include "tests/help/sanitized.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 3, LIMIT = 60 };

/* ---- a rank dies ---- */

typedef enum way {
    BY_SIGKILL,
    BY_EXIT,
    BY_ABORT,
    BY_SEGFAULT,
    BY_MISTAKE,
    BY_SUCCESS,
    BY_DESTROY,
    WAYS
} way;

static int die(way how)
{
    *fault_at = td_clock();
    switch (how) {
    case BY_SIGKILL:
        raise(SIGKILL);
        break;
    case BY_EXIT:
        exit(3);
    case BY_ABORT:
        abort();
    case BY_SEGFAULT:
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
        break;
    case BY_MISTAKE: /* an error in the user's code, which tandem finds */
        td_all_reduce(NULL, NULL, TD_SUM, NULL);
        break;
    case BY_SUCCESS:
        exit(0);
    default:
        td_dist_destroy();
        procs_await(2 * (RANKS - 1)); /* it lives, but is not there any more */
        break;
    }
    return 0;
}

/* Data is on its way when a rank that has got some of it dies. In a broadcast (arg NULL) the first
 * rank waits for nothing but the end of its sends. */
static int with_a_death_on_the_way(int rank, int size, void *arg)
{
    const int victim = size - 1;
    procs_init(rank, size, 60);
    REQUIRE_OK(td_barrier(NULL));
    td_tensor *t = td_zeros(TD_SHAPE(1 << 24), TD_F32, TD_CPU);
    td_work *work;
    uint64_t before = td_group_moved(td_dist_world());
    REQUIRE_OK(arg == NULL ? td_broadcast(NULL, t, 0, &work)
                           : td_all_reduce(NULL, t, TD_SUM, &work));
    while (rank == victim && td_group_moved(td_dist_world()) == before) {
        td_sleep(1e-5);
    }
    if (rank == victim) {
        die(BY_SIGKILL);
    }
    td_status status = td_work_wait(work, 0);
    REQUIRE(status == TD_E_PEER || rank > 0); /* the others may have all by then */
    status = status == TD_OK ? td_barrier(NULL) : status;
    double after = td_clock() - *fault_at;
    char first[512];
    snprintf(first, sizeof first, "%s", td_last_error());
    REQUIRE(status == TD_E_PEER && after < fault_patience());
    td_free(t);
    td_fail(status, "%s", first);
    return fault_report(status);
}

static void test_death_on_the_way(void **state)
{
    (void)state;
    static procs_end ends[RANKS];
    for (int i = 0; i < 2 * fault_repeats(); i++) {
        fault_run(RANKS, LIMIT, with_a_death_on_the_way, i % 2 == 0 ? NULL : ends, ends);
        for (int r = 0; r < RANKS - 1; r++) {
            assert_survived(ends, r);
            procs_assert_says(ends, r, "rank 2 (pid ");
            procs_assert_says(ends, r, ") has died");
        }
    }
}

/* What the survivors are waiting in. */
typedef enum where {
    IN_ALL_REDUCE,
    IN_LARGE,
    IN_ASYNC,
    IN_BARRIER,
    IN_RECV,
    IN_SEND,
    PLACES
} where;

typedef struct death {
    way how;
    where place;
} death;

static td_status wait_in(where place, int rank, int victim)
{
    td_tensor *t = td_zeros(TD_SHAPE(300000), TD_F32, TD_CPU);
    td_tensor *small = td_zeros(TD_SHAPE(3), TD_F32, TD_CPU);
    td_work *work[3];
    td_status status = TD_OK;
    if ((place == IN_RECV || place == IN_SEND) && rank != (victim + 1) % RANKS) {
        place = IN_BARRIER; /* the message is for one of them; this one waits for both */
    }
    if (place != IN_ASYNC) {
        procs_arrive();
    }
    switch (place) {
    case IN_ALL_REDUCE:
        status = td_all_reduce(NULL, small, TD_SUM, NULL);
        break;
    case IN_LARGE:
        status = td_all_reduce(NULL, t, TD_SUM, NULL);
        break;
    case IN_ASYNC:
        for (int i = 0; i < 3; i++) {
            REQUIRE_OK(td_all_reduce(NULL, t, TD_SUM, &work[i]));
        }
        procs_arrive();
        for (int i = 0; i < 3; i++) {
            status = td_work_wait(work[i], 0);
            REQUIRE(status != TD_OK);
        }
        break;
    case IN_BARRIER:
        status = td_barrier(NULL);
        break;
    case IN_RECV:
        status = td_recv(NULL, small, victim, NULL);
        break;
    default:
        status = td_send(NULL, t, victim, NULL);
        break;
    }
    td_free(t);
    td_free(small);
    return status;
}

static int with_a_death(int rank, int size, void *arg)
{
    const death *d = arg;
    const int victim = size - 1;
    procs_init(rank, size, 60);
    REQUIRE_OK(td_barrier(NULL));
    if (rank == victim) {
        procs_await(size - 1);
        td_sleep(0.02); /* the others are waiting by now */
        return die(d->how);
    }
    td_status status = wait_in(d->place, rank, victim);
    procs_arrive();
    double after = td_clock() - *fault_at;
    char first[512];
    snprintf(first, sizeof first, "%s", td_last_error());
    REQUIRE(status == TD_E_PEER);
    REQUIRE(after < fault_patience());
    REQUIRE(td_barrier(NULL) == TD_E_PEER); /* and so it stays */
    REQUIRE(strstr(td_last_error(), "the process group is broken: ") != NULL);
    REQUIRE(strstr(td_last_error(), first) != NULL);
    td_fail(status, "%s", first);
    return fault_report(status);
}

static void try_death(way how, where place)
{
    static procs_end ends[RANKS];
    death d = { how, place };
    fault_run(RANKS, LIMIT, with_a_death, &d, ends);
    for (int r = 0; r < RANKS - 1; r++) {
        if (ends[r].code != FAULT_SURVIVED) {
            fail_msg("death %d in %d: rank %d: code %d, signal %d: %s", how, place, r, ends[r].code,
                     ends[r].signal, ends[r].output);
        }
        procs_assert_says(ends, r, "rank 2 (pid ");
        procs_assert_says(ends, r, how == BY_DESTROY ? ") has left the group" : ") has died");
    }
    static const int codes[WAYS] = { -1, 3, -1, -1, -1, 0, 0 };
    static const int signals[WAYS] = { SIGKILL, 0, SIGABRT, SIGSEGV, SIGABRT, 0, 0 };
    /* Sanitizers may turn a signal into an exit code. */
    assert_true(ends[2].signal == signals[how] || TD_SANITIZED);
    assert_true(ends[2].code == codes[how] || TD_SANITIZED);
}

static void test_death_in_every_way(void **state)
{
    (void)state;
    for (int i = 0; i < fault_repeats(); i++) {
        for (way how = BY_SIGKILL; how < WAYS; how++) {
            try_death(how, IN_LARGE);
        }
    }
}

static void test_death_everywhere(void **state)
{
    (void)state;
    for (int i = 0; i < fault_repeats(); i++) {
        for (where place = IN_ALL_REDUCE; place < PLACES; place++) {
            try_death(BY_SIGKILL, place);
        }
    }
}

/* The last collective is over for all that took part, though one dies right after it. */
static int death_after_the_last(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    for (int i = 0; i < 200; i++) {
        REQUIRE_OK(td_barrier(NULL));
    }
    if (rank == 0) {
        raise(SIGKILL);
    }
    td_dist_destroy();
    return 0;
}

static void test_death_after_the_last(void **state)
{
    (void)state;
    static procs_end ends[RANKS];
    fault_run(RANKS, LIMIT, death_after_the_last, NULL, ends);
    assert_int_equal(ends[0].signal, SIGKILL);
    assert_int_equal(ends[1].code, 0);
    assert_int_equal(ends[2].code, 0);
}

/* After all have met, and before the group is there. */
static int death_before_the_group(int rank, int size, void *arg)
{
    (void)arg;
    *fault_at = td_clock();
    if (rank == 2) {
        procs_meet_and_die(rank, size);
    }
    td_status status = procs_try_init(rank, size, &(td_dist_options){ .timeout = 60 });
    REQUIRE(status == TD_E_PEER);
    REQUIRE(td_clock() - *fault_at < 1 + fault_patience());
    return fault_report(status);
}

static void test_death_before_the_group(void **state)
{
    (void)state;
    static procs_end ends[RANKS];
    for (int i = 0; i < fault_repeats(); i++) {
        fault_run(RANKS, LIMIT, death_before_the_group, NULL, ends);
        for (int r = 0; r < RANKS - 1; r++) {
            assert_survived(ends, r);
            procs_assert_says(ends, r, "rank 2 (");
            procs_assert_says(ends, r, ") has died, or left, before the group was made");
        }
    }
}

/* ---- a rank does not come ---- */

static int with_a_stopped_rank(int rank, int size, void *arg)
{
    (void)arg;
    const int victim = 1;
    procs_init(rank, size, 60);
    td_tensor *t = td_zeros(TD_SHAPE(70000), TD_F32, TD_CPU);
    for (int i = 0; i < 3; i++) {
        REQUIRE_OK(td_all_reduce(NULL, t, TD_SUM, NULL));
    }
    REQUIRE_OK(td_broadcast(NULL, t, 2, NULL));
    fault_set_timeout(1.0); /* not before: what comes to an end may take its time */
    if (rank == victim) {
        raise(SIGSTOP);
    } else {
        procs_await_stopped(victim);
    }
    *fault_at = td_clock();
    td_status status = td_all_reduce(NULL, t, TD_SUM, NULL);
    td_free(t);
    REQUIRE(td_clock() - *fault_at < 1.0 + fault_patience());
    procs_arrive();
    if (rank == 0) {
        procs_await(size - 1);            /* the others look at it while it is stopped, too */
        kill(procs_pid(victim), SIGCONT); /* it then learns what has happened */
    }
    return fault_report(status);
}

static void try_stopped(void)
{
    static procs_end ends[RANKS];
    fault_run(RANKS, LIMIT, with_a_stopped_rank, NULL, ends);
    for (int r = 0; r < RANKS; r++) {
        assert_survived(ends, r);
        procs_assert_says(ends, r, "all_reduce number 5 (f32, 70000 elements) timed out after ");
        procs_assert_says(ends, r,
                          "ranks 0, 2 have called it; rank 1 has not: its last was broadcast "
                          "number 4 (f32, 70000 elements, root 2)");
        if (procs_are_over("shm")) { /* which sees processes */
            procs_assert_says(ends, r, "; its process, pid ");
            procs_assert_says(ends, r, ", is stopped");
        }
    }
}

static void test_stopped(void **state)
{
    (void)state;
    for (int i = 0; i < fault_repeats(); i++) {
        try_stopped();
    }
}

/* A rank is stopped while its data is under way, and goes on long before the time-out: so does the
 * job. */
static int with_a_pause(int rank, int size, void *arg)
{
    enum { COUNT = 4, ELEMENTS = 1 << 22 };
    static const double PAUSE = 3.0;
    const int victim = 1;
    td_tensor *t[COUNT];
    td_work *work[COUNT];
    (void)arg;
    procs_init(rank, size, 60);
    for (int i = 0; i < COUNT; i++) {
        t[i] = td_full(TD_SHAPE(ELEMENTS), rank + 1, TD_F32, TD_CPU);
        REQUIRE_OK(td_all_reduce(NULL, t[i], TD_SUM, &work[i]));
    }
    while (rank == victim && td_group_moved(td_dist_world()) == 0) {
        td_sleep(1e-5);
    }
    if (rank == victim) {
        raise(SIGSTOP);
    } else if (rank == 0) {
        procs_await_stopped(victim);
        td_sleep(PAUSE);
        kill(procs_pid(victim), SIGCONT);
    }
    for (int i = 0; i < COUNT; i++) {
        REQUIRE_OK(td_work_wait(work[i], 0));
        REQUIRE(td_get(t[i], (int64_t[]){ ELEMENTS - 1 }) == 1 + 2 + 3);
        td_free(t[i]);
    }
    td_dist_destroy();
    return 0;
}

static void test_pause(void **state)
{
    (void)state;
    static procs_end ends[RANKS];
    fault_run(RANKS, LIMIT, with_a_pause, NULL, ends);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(ends[r].code, 0);
        assert_string_equal(ends[r].output, "");
    }
}

/* A rank that computes on and on: its comrades give up, and it learns of it at its next call. */
static int with_a_late_rank(int rank, int size, void *arg)
{
    const char *kind = arg;
    enum { OTHERS = RANKS - 1 };
    procs_init(rank, size, 60);
    td_tensor *t = td_zeros(TD_SHAPE(5), TD_I64, TD_CPU);
    td_work *work;
    *fault_at = td_clock();
    if (rank == 0) {
        td_free(t);
        procs_await(2 * OTHERS); /* until they have given up */
        return fault_report(td_barrier(NULL));
    }
    procs_arrive();
    procs_await(OTHERS);
    *fault_at = td_clock();
    td_status status;
    if (strcmp(kind, "monitored") == 0) {
        status = td_monitored_barrier(NULL, 0.5);
    } else if (strcmp(kind, "recv") == 0) {
        REQUIRE_OK(td_recv(NULL, t, 0, &work));
        status = td_work_wait(work, 0.5);
    } else {
        REQUIRE_OK(td_all_reduce(NULL, t, TD_SUM, &work));
        status = td_work_wait(work, 0.5);
    }
    REQUIRE(td_clock() - *fault_at < 0.5 + fault_patience());
    procs_arrive();
    td_free(t);
    return fault_report(status);
}

static void try_late(const char *kind, const char *message)
{
    static procs_end ends[RANKS];
    char text[32];
    snprintf(text, sizeof text, "%s", kind);
    fault_run(RANKS, LIMIT, with_a_late_rank, text, ends);
    for (int r = 0; r < RANKS; r++) {
        assert_survived(ends, r);
        procs_assert_says(ends, r, message);
        procs_assert_says(ends, r, " after ");
    }
}

static void test_late(void **state)
{
    (void)state;
    try_late("monitored", "ranks 1-2 have called it; rank 0 has not: its last was nothing yet");
    try_late("work", "all_reduce number 1 (i64, 5 elements) was given up by td_work_wait");
    try_late("recv",
             "recv number 1 from rank 0 (i64, 5 elements) was given up by td_work_wait after ");
}

/* A stall is reported long before the time-out. */
static int with_a_stall(int rank, int size, void *arg)
{
    (void)arg;
    setenv("TANDEM_DIST_STALL", "1", 1);
    procs_init(rank, size, 60);
    if (rank == 1) {
        procs_await(1);
        td_sleep(2.5);
    } else {
        procs_arrive(); /* and goes into the barrier */
    }
    REQUIRE_OK(td_barrier(NULL));
    REQUIRE_OK(td_barrier(NULL));
    td_dist_destroy();
    return 0;
}

static void test_stall_report(void **state)
{
    (void)state;
    static procs_end ends[2];
    fault_run(2, LIMIT, with_a_stall, NULL, ends);
    assert_int_equal(ends[0].code, 0);
    assert_int_equal(ends[1].code, 0);
    procs_assert_says(ends, 0, "tandem: barrier number 1 still waits after ");
    procs_assert_says(ends, 0, "rank 0 has called it; rank 1 has not: its last was nothing yet");
    assert_string_equal(ends[1].output, "");
    /* Once. */
    assert_null(strstr(strstr(ends[0].output, "still waits") + 1, "still waits"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_death_in_every_way),
        cmocka_unit_test(test_death_everywhere),
        cmocka_unit_test(test_death_on_the_way),
        cmocka_unit_test(test_death_after_the_last),
        cmocka_unit_test(test_death_before_the_group),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_pause),
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_stall_report),
    };
    return cmocka_run_group_tests(tests, fault_setup, NULL);
}
