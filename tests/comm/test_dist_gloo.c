/* The gloo engine: what is its own beside the collectives (which test_dist_gloo.sh checks): ranks
 * that die, stop, leave, abort or do something else; sub-groups; messages. */
#include "dist/comm/engine.h"
#include "tensor/clock.h"
#include "dist/comm/group.h"
#include "dist/comm/collectives.h"
#include "dist/comm/engines/p2p/p2p.h"
#include "tests/help/dist_procs.h"
#include "tests/help/sanitized.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { SURVIVED = 7, RANKS = 3, LIMIT = 60 };

static _Atomic double *fault_at; /* shared by the ranks */

/* How long survivors may take to notice. */
static double patience(void)
{
    return TD_SANITIZED ? 20 : 5;
}

static void need_gloo(void)
{
    if (td_engine_find("gloo") == NULL) {
        print_message("skipped: %s\n", td_last_error());
        skip();
    }
}

/* A survivor writes what it was told; the parent reads it. */
static int report(td_status status)
{
    fprintf(stderr, "status %d after %.3f s: %s\n", (int)status, td_clock() - *fault_at,
            td_last_error());
    td_dist_destroy();
    return status == TD_OK ? 0 : SURVIVED;
}

static td_tensor *ones(int64_t n)
{
    return td_full(TD_SHAPE(n), 1, TD_F32, TD_CPU);
}

/* Runs the ranks and checks that all but the victim have survived with these words. */
static void survive(procs_fn fn, int victim, const char *words, const char *more)
{
    static procs_end ends[RANKS];
    need_gloo();
    procs_run(RANKS, LIMIT, fn, NULL, ends);
    for (int r = 0; r < RANKS; r++) {
        if (r == victim) {
            continue;
        }
        if (ends[r].code != SURVIVED) {
            fail_msg("rank %d: code %d, signal %d: %s", r, ends[r].code, ends[r].signal,
                     ends[r].output);
        }
        procs_assert_says(ends, r, words);
        procs_assert_says(ends, r, more);
    }
}

/* ---- faults ---- */

static int with_a_death(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    td_tensor *t = ones(300000);
    for (int i = 0; i < 20; i++) {
        REQUIRE_OK(td_all_reduce(NULL, t, TD_AVERAGE, NULL));
    }
    if (rank == 2) {
        *fault_at = td_clock();
        raise(SIGKILL);
    }
    td_status status;
    do {
        status = td_all_reduce(NULL, t, TD_AVERAGE, NULL);
    } while (status == TD_OK);
    REQUIRE(status == TD_E_PEER);
    REQUIRE(td_clock() - *fault_at < patience());
    td_free(t);
    return report(status);
}

static void test_killed(void **state)
{
    (void)state;
    survive(with_a_death, 2, "rank 2 (pid ", "has died");
}

/* Rank 0 waits for rank 1 alone, which waits for rank 2: that learns it from rank 1. */
static int with_a_chain(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    td_tensor *t = ones(5);
    REQUIRE_OK(td_barrier(NULL));
    if (rank == 2) {
        td_sleep(0.05); /* the others wait by now */
        *fault_at = td_clock();
        raise(SIGKILL);
    }
    td_status status = td_recv(NULL, t, rank + 1, NULL);
    REQUIRE(status == TD_E_PEER);
    REQUIRE(td_clock() - *fault_at < patience());
    td_free(t);
    return report(status);
}

static void test_killed_behind_another(void **state)
{
    (void)state;
    survive(with_a_chain, 2, "rank 2 (pid ", "has died");
}

static int with_a_stop(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    td_tensor *t = ones(70000);
    REQUIRE_OK(td_all_reduce(NULL, t, TD_SUM, NULL));
    td_dist_world()->timeout = 1; /* what was before may take longer */
    if (rank == 1) {
        raise(SIGSTOP);
        raise(SIGKILL); /* woken up, it has nothing to say */
    }
    procs_await_stopped(1);
    double begin = td_clock();
    *fault_at = begin;
    td_status status = td_all_reduce(NULL, t, TD_SUM, NULL);
    double after = td_clock() - begin;
    REQUIRE(status == TD_E_TIMEOUT);
    REQUIRE(after > 0.9 && after < 1 + patience());
    td_free(t);
    int code = report(status);
    procs_arrive();
    procs_await(RANKS - 1);
    kill(procs_pid(1), SIGCONT);
    return code;
}

static void test_stopped(void **state)
{
    (void)state;
    survive(with_a_stop, 1, "all_reduce number 2 (f32, 70000 elements) timed out after ",
            "ranks 0, 2 have called it; rank 1 has not: its last was all_reduce number 1 (f32, "
            "70000 elements)");
}

static int with_an_abort(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    td_tensor *t = ones(70000);
    td_work *work;
    REQUIRE_OK(td_barrier(NULL));
    td_status status;
    if (rank == 0) { /* its own communication thread is stuck, since rank 2 does not come */
        REQUIRE_OK(td_all_reduce(NULL, t, TD_SUM, &work));
        td_sleep(0.05);
        *fault_at = td_clock();
        td_group_abort(NULL, "loss is NaN");
        procs_arrive();
        status = td_work_wait(work, 0);
    } else if (rank == 1) {
        status = td_all_reduce(NULL, t, TD_SUM, NULL);
    } else {
        procs_await(1);
        do {
            status = td_all_reduce(NULL, t, TD_SUM, NULL);
        } while (status == TD_OK);
    }
    REQUIRE(status == TD_E_INTERRUPTED);
    REQUIRE(td_clock() - *fault_at < patience());
    td_free(t);
    return report(status);
}

static void test_abort(void **state)
{
    (void)state;
    survive(with_an_abort, -1, "rank 0 has aborted the group: ", "loss is NaN");
}

static int with_a_difference(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    td_tensor *t = ones(rank == 1 ? 30000 : 40000);
    *fault_at = td_clock();
    td_status status = td_all_reduce(NULL, t, TD_SUM, NULL);
    REQUIRE(status == TD_E_MISMATCH);
    REQUIRE(td_clock() - *fault_at < patience());
    td_free(t);
    return report(status);
}

static void test_difference(void **state)
{
    (void)state;
    survive(with_a_difference, -1, "the ranks do not do the same: ",
            "rank 1 calls all_reduce number 1 (f32, 30000 elements)");
}

static int with_a_leaver(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    REQUIRE_OK(td_barrier(NULL));
    *fault_at = td_clock();
    if (rank == 2) {
        td_dist_destroy();
        return 0;
    }
    td_status status = td_barrier(NULL);
    REQUIRE(status == TD_E_PEER);
    REQUIRE(td_clock() - *fault_at < patience());
    return report(status);
}

static void test_left(void **state)
{
    (void)state;
    survive(with_a_leaver, 2, "rank 2 (pid ", "has left the group");
}

/* ---- groups and messages ---- */

static int with_groups(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    REQUIRE(strcmp(td_group_backend(td_dist_world()), "gloo") == 0);
    td_group *even, *last;
    REQUIRE_OK(td_group_new((int[]){ 0, 2 }, 2, &even));
    REQUIRE_OK(td_group_new((int[]){ 1, 2 }, 2, &last));
    td_tensor *t = td_full(TD_SHAPE(50001), rank + 1, TD_F32, TD_CPU);
    if (even != NULL) {
        REQUIRE_OK(td_all_reduce(even, t, TD_SUM, NULL)); /* 1 + 3 */
    }
    if (last != NULL) {
        REQUIRE_OK(td_broadcast(last, t, 1, NULL)); /* rank 2's */
    }
    const float *values = td_data(t);
    REQUIRE(values[0] == 4 && values[50000] == 4);
    td_free(t);
    td_group_free(even);
    td_group_free(last);
    REQUIRE_OK(td_barrier(NULL));
    td_dist_destroy();
    return 0;
}

static void test_groups(void **state)
{
    (void)state;
    need_gloo();
    procs_succeed(RANKS, LIMIT, with_groups, NULL);
}

/* The last rank sends a small message and is gone; a large one that does not fit is an error. */
static int with_messages(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    td_tensor *small = td_full(TD_SHAPE(100), rank, TD_F32, TD_CPU);
    if (rank == 2) {
        REQUIRE_OK(td_send(NULL, small, 0, NULL));
    } else if (rank == 0) {
        td_sleep(0.2);
        REQUIRE_OK(td_recv(NULL, small, 2, NULL));
        REQUIRE(((const float *)td_data(small))[99] == 2);
        td_tensor *large = ones(100000);
        REQUIRE(td_recv(NULL, large, 1, NULL) == TD_E_MISMATCH);
        REQUIRE(strstr(td_last_error(), "rank 1 sends 90000 elements of f32") != NULL);
        td_free(large);
    } else {
        td_tensor *large = ones(90000);
        REQUIRE(td_send(NULL, large, 0, NULL) == TD_E_MISMATCH);
        td_free(large);
    }
    td_free(small);
    td_dist_destroy();
    return 0;
}

static void test_messages(void **state)
{
    (void)state;
    need_gloo();
    procs_succeed(RANKS, LIMIT, with_messages, NULL);
}

static int setup(void **state)
{
    (void)state;
    fault_at =
        mmap(NULL, sizeof *fault_at, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return fault_at == MAP_FAILED;
}

/* ---- who can reach it ---- */

/* Ranks of one host are connected over the loopback, also where they have met in a file. */
static int connect_here(int rank, int size, void *arg)
{
    (void)arg;
    int connected = 0;
    procs_init(rank, size, 60);
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_in at = { .sin_family = AF_UNSPEC };
        socklen_t room = sizeof at;
        if (getsockname(fd, (struct sockaddr *)&at, &room) == 0 && at.sin_family == AF_INET) {
            connected++;
            REQUIRE(at.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
        }
    }
    REQUIRE(connected > 0);
    REQUIRE_OK(td_barrier(NULL));
    td_dist_destroy();
    return 0;
}

static void test_stays_on_the_loopback(void **state)
{
    (void)state;
    need_gloo();
    for (int over_tcp = 0; over_tcp < 2; over_tcp++) {
        procs_meet_over_tcp(over_tcp);
        procs_succeed(2, LIMIT, connect_here, NULL);
    }
    procs_meet_over_tcp(false);
}

/* ---- a receiver that leaves ---- */

static const td_p2p_api *quick;

/* Much may happen between this look and the next. */
static td_p2p_result look_and_pause(td_p2p_buffer *buffer, double seconds)
{
    td_p2p_result result = quick->wait_send(buffer, seconds);
    if (result == TD_P2P_NOT_YET) {
        td_sleep(0.1);
    }
    return result;
}

/* A large message has been sent, though its receiver leaves as soon as it has all. */
static int with_a_hasty_receiver(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    td_tensor *t = td_full(TD_SHAPE(1 << 18), rank, TD_F32, TD_CPU);
    if (rank == 0) {
        td_p2p_engine *g = td_dist_world()->engine;
        quick = g->api;
        td_p2p_api slow = *quick;
        slow.wait_send = look_and_pause;
        g->api = &slow;
        REQUIRE_OK(td_send(NULL, t, 1, NULL));
        g->api = quick;
    } else {
        REQUIRE_OK(td_recv(NULL, t, 0, NULL));
        REQUIRE(td_get(t, (int64_t[]){ 0 }) == 0.0);
    }
    td_free(t);
    td_dist_destroy();
    return 0;
}

static void test_hasty_receiver(void **state)
{
    (void)state;
    need_gloo();
    for (int i = 0; i < 5; i++) {
        procs_succeed(2, LIMIT, with_a_hasty_receiver, NULL);
    }
}

int main(void)
{
    setenv("TANDEM_BACKEND", "gloo", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_killed_behind_another),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_difference),
        cmocka_unit_test(test_left),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_stays_on_the_loopback),
        cmocka_unit_test(test_hasty_receiver),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
