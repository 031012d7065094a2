/* Whatever happens to one rank, the others end in bounded time with a message that names it and the
 * cause. */
#include "dist/clock.h"
#include "tests/dist_procs.h"
#include "tests/sanitized.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

enum { SURVIVED = 7, RANKS = 3, LIMIT = 10 };

/* Shared by the ranks of all tests: when the fault happened. */
static _Atomic double *fault_at;

static int setup(void **state)
{
    (void)state;
    fault_at =
        mmap(NULL, sizeof *fault_at, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return fault_at == MAP_FAILED;
}

/* The rank has ended as a survivor; otherwise its output is shown. */
static void assert_survived(const procs_end *ends, int rank)
{
    if (ends[rank].code != SURVIVED) {
        fail_msg("rank %d: code %d, signal %d: %s", rank, ends[rank].code, ends[rank].signal,
                 ends[rank].output);
    }
}

/* How long survivors may take to notice: half a second, and more where time means little. */
static double patience(void)
{
    return TD_SANITIZED ? 5 : 1.0;
}

/* A survivor writes what it was told; the parent reads it. */
static int report(td_status status)
{
    fprintf(stderr, "status %d after %.3f s: %s\n", (int)status, td_clock() - *fault_at,
            td_last_error());
    td_dist_destroy();
    return status == TD_OK ? 0 : SURVIVED;
}

/* How often the cheap ones are done. */
static int repeats(void)
{
    return getenv("TANDEM_LONG") != NULL ? 50 : 1;
}

/* ---- a rank dies ---- */

typedef enum way { BY_SIGKILL, BY_EXIT, BY_ABORT, BY_SEGFAULT, BY_SUCCESS, BY_DESTROY, WAYS } way;

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
    case BY_SUCCESS:
        exit(0);
    default:
        td_dist_destroy();
        td_sleep(patience() + 0.2); /* it lives, but is not there any more */
        break;
    }
    return 0;
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
    procs_init(rank, size, 20);
    REQUIRE_OK(td_barrier(NULL));
    if (rank == victim) {
        td_sleep(0.02); /* the others are waiting by now */
        return die(d->how);
    }
    td_status status = wait_in(d->place, rank, victim);
    double after = td_clock() - *fault_at;
    char first[512];
    snprintf(first, sizeof first, "%s", td_last_error());
    REQUIRE(status == TD_E_PEER);
    REQUIRE(after < patience());
    REQUIRE(td_barrier(NULL) == TD_E_PEER); /* and so it stays */
    REQUIRE(strstr(td_last_error(), "the process group is broken: ") != NULL);
    REQUIRE(strstr(td_last_error(), first) != NULL);
    td_fail(status, "%s", first);
    return report(status);
}

static void try_death(way how, where place)
{
    static procs_end ends[RANKS];
    death d = { how, place };
    procs_run(RANKS, LIMIT, with_a_death, &d, ends);
    for (int r = 0; r < RANKS - 1; r++) {
        if (ends[r].code != SURVIVED) {
            fail_msg("death %d in %d: rank %d: code %d, signal %d: %s", how, place, r, ends[r].code,
                     ends[r].signal, ends[r].output);
        }
        procs_assert_says(ends, r, "rank 2 (pid ");
        procs_assert_says(ends, r, how == BY_DESTROY ? ") has left the group" : ") has died");
    }
    static const int codes[WAYS] = { -1, 3, -1, -1, 0, 0 };
    static const int signals[WAYS] = { SIGKILL, 0, SIGABRT, SIGSEGV, 0, 0 };
    /* Sanitizers may turn a signal into an exit code. */
    assert_true(ends[2].signal == signals[how] || TD_SANITIZED);
    assert_true(ends[2].code == codes[how] || TD_SANITIZED);
}

static void test_death_in_every_way(void **state)
{
    (void)state;
    for (int i = 0; i < repeats(); i++) {
        for (way how = BY_SIGKILL; how < WAYS; how++) {
            try_death(how, IN_LARGE);
        }
    }
}

static void test_death_everywhere(void **state)
{
    (void)state;
    for (int i = 0; i < repeats(); i++) {
        for (where place = IN_ALL_REDUCE; place < PLACES; place++) {
            try_death(BY_SIGKILL, place);
        }
    }
}

/* The last collective is over for all that took part, though one dies right after it. */
static int death_after_the_last(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20);
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
    procs_run(RANKS, LIMIT, death_after_the_last, NULL, ends);
    assert_int_equal(ends[0].signal, SIGKILL);
    assert_int_equal(ends[1].code, 0);
    assert_int_equal(ends[2].code, 0);
}

/* ---- a rank does not come ---- */

static int with_a_stopped_rank(int rank, int size, void *arg)
{
    (void)arg;
    const int victim = 1;
    procs_init(rank, size, 1.0);
    td_tensor *t = td_zeros(TD_SHAPE(70000), TD_F32, TD_CPU);
    for (int i = 0; i < 3; i++) {
        REQUIRE_OK(td_all_reduce(NULL, t, TD_SUM, NULL));
    }
    REQUIRE_OK(td_broadcast(NULL, t, 2, NULL));
    if (rank == victim) {
        *fault_at = td_clock();
        raise(SIGSTOP);
    }
    td_status status = td_all_reduce(NULL, t, TD_SUM, NULL);
    td_free(t);
    double after = td_clock() - *fault_at;
    REQUIRE(after < 1.0 + patience());
    if (rank == 0) {
        kill(procs_pid(victim), SIGCONT); /* it then learns what has happened */
    }
    return report(status);
}

static void try_stopped(void)
{
    static procs_end ends[RANKS];
    procs_run(RANKS, LIMIT, with_a_stopped_rank, NULL, ends);
    for (int r = 0; r < RANKS; r++) {
        assert_survived(ends, r);
        procs_assert_says(ends, r,
                          "all_reduce number 5 (f32, 70000 elements) timed out after 1.0 s");
        procs_assert_says(ends, r,
                          "ranks 0, 2 have called it; rank 1 has not: its last was broadcast "
                          "number 4 (f32, 70000 elements, root 2); its process, pid ");
        procs_assert_says(ends, r, ", is stopped");
    }
}

static void test_stopped(void **state)
{
    (void)state;
    for (int i = 0; i < repeats(); i++) {
        try_stopped();
    }
}

/* A rank that computes on and on: its comrades give up, and it learns of it at its next call. */
static int with_a_late_rank(int rank, int size, void *arg)
{
    const char *kind = arg;
    procs_init(rank, size, 20);
    td_tensor *t = td_zeros(TD_SHAPE(5), TD_I64, TD_CPU);
    td_work *work;
    *fault_at = td_clock();
    if (rank == 0) {
        td_free(t);
        td_sleep(1);
        return report(td_barrier(NULL));
    }
    td_status status;
    if (strcmp(kind, "monitored") == 0) {
        status = td_monitored_barrier(NULL, 0.3);
    } else if (strcmp(kind, "recv") == 0) {
        REQUIRE_OK(td_recv(NULL, t, 0, &work));
        status = td_work_wait(work, 0.3);
    } else {
        REQUIRE_OK(td_all_reduce(NULL, t, TD_SUM, &work));
        status = td_work_wait(work, 0.3);
    }
    REQUIRE(td_clock() - *fault_at < 0.3 + patience());
    td_free(t);
    return report(status);
}

static void try_late(const char *kind, const char *message)
{
    static procs_end ends[RANKS];
    char text[32];
    snprintf(text, sizeof text, "%s", kind);
    procs_run(RANKS, LIMIT, with_a_late_rank, text, ends);
    for (int r = 0; r < RANKS; r++) {
        assert_survived(ends, r);
        procs_assert_says(ends, r, message);
        procs_assert_says(ends, r, "after 0.3 s on rank ");
    }
}

static void test_late(void **state)
{
    (void)state;
    try_late("monitored", "ranks 1-2 have called it; rank 0 has not: its last was nothing yet");
    try_late("work", "all_reduce number 1 (i64, 5 elements) was given up by td_work_wait");
    try_late("recv",
             "recv number 1 from rank 0 (i64, 5 elements) was given up by td_work_wait after "
             "0.3 s on rank ");
}

/* A stall is reported long before the time-out. */
static int with_a_stall(int rank, int size, void *arg)
{
    (void)arg;
    setenv("TANDEM_DIST_STALL", "0.3", 1);
    procs_init(rank, size, 20);
    if (rank == 1) {
        td_sleep(1.2);
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
    procs_run(2, LIMIT, with_a_stall, NULL, ends);
    assert_int_equal(ends[0].code, 0);
    assert_int_equal(ends[1].code, 0);
    procs_assert_says(ends, 0, "tandem: barrier number 1 still waits after ");
    procs_assert_says(ends, 0, "rank 0 has called it; rank 1 has not: its last was nothing yet");
    assert_string_equal(ends[1].output, "");
    /* Once. */
    assert_null(strstr(strstr(ends[0].output, "still waits") + 1, "still waits"));
}

/* ---- ranks that do not do the same ---- */

typedef enum difference {
    SIZE,
    DTYPE,
    KIND,
    OPERATION,
    ROOT,
    MEMORY,
    MESSAGE,
    DIFFERENCES
} difference;

static td_status do_something_else(difference what, int rank)
{
    const bool odd = rank == 2;
    td_tensor *t = td_zeros(TD_SHAPE(what == SIZE && odd ? 30000 : 40000),
                            what == DTYPE && odd ? TD_I32 : TD_F32, TD_CPU);
    td_status status = TD_OK;
    switch (what) {
    case KIND:
        status = odd ? td_broadcast(NULL, t, 0, NULL) : td_all_reduce(NULL, t, TD_SUM, NULL);
        break;
    case OPERATION:
        status = td_all_reduce(NULL, t, odd ? TD_MAX : TD_SUM, NULL);
        break;
    case ROOT:
        status = td_broadcast(NULL, t, odd, NULL);
        break;
    case MEMORY:
        if (odd) {
            REQUIRE(td_group_memory(NULL, 100, TD_F32) == NULL);
            status = TD_E_MISMATCH;
        } else {
            status = td_all_reduce(NULL, t, TD_SUM, NULL);
        }
        break;
    default:
        status = td_all_reduce(NULL, t, TD_SUM, NULL);
        break;
    }
    td_free(t);
    return status;
}

static int with_a_difference(int rank, int size, void *arg)
{
    const difference what = *(const difference *)arg;
    procs_init(rank, size, 20);
    REQUIRE_OK(td_barrier(NULL));
    *fault_at = td_clock();
    td_status status;
    if (what == MESSAGE) {
        td_tensor *t = td_zeros(TD_SHAPE(rank == 0 ? 3 : 4), TD_F32, TD_CPU);
        status = rank == 0   ? td_send(NULL, t, 1, NULL)
                 : rank == 1 ? td_recv(NULL, t, 0, NULL)
                             : td_barrier(NULL);
        if (status == TD_OK) {
            status = td_barrier(NULL);
        }
        td_free(t);
    } else {
        status = do_something_else(what, rank);
    }
    REQUIRE(status == TD_E_MISMATCH);
    REQUIRE(td_clock() - *fault_at < patience());
    return report(status);
}

static void test_differences(void **state)
{
    (void)state;
    static const char *const messages[DIFFERENCES] = {
        [SIZE] =
            "ranks 0-1 call all_reduce number 2 (f32, 40000 elements); rank 2 calls all_reduce "
            "number 2 (f32, 30000 elements)",
        [DTYPE] = "rank 2 calls all_reduce number 2 (i32, 40000 elements)",
        [KIND] = "rank 2 calls broadcast number 2 (f32, 40000 elements, root 0)",
        [OPERATION] = "rank 2 calls all_reduce number 2 (f32, 40000 elements, max)",
        [ROOT] = "rank 2 calls broadcast number 2 (f32, 40000 elements, root 1)",
        [MEMORY] = "rank 2 calls group_memory number 2 (400 bytes)",
        [MESSAGE] = "rank 0 sends 3 elements of f32 (its message number 1 to rank 1), and rank 1 "
                    "wants to receive 4 of f32",
    };
    static procs_end ends[RANKS];
    for (int i = 0; i < 2 * repeats(); i++) {
        setenv("TANDEM_DIST_DEBUG", i % 2 != 0 ? "1" : "0", 1);
        for (difference what = SIZE; what < DIFFERENCES; what++) {
            procs_run(RANKS, LIMIT, with_a_difference, &what, ends);
            for (int r = 0; r < RANKS; r++) {
                procs_assert_says(ends, r, messages[what]);
                assert_survived(ends, r);
            }
        }
    }
    unsetenv("TANDEM_DIST_DEBUG");
}

/* ---- a rank gives up on purpose ---- */

static int with_an_abort(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20);
    *fault_at = td_clock();
    if (rank == 1) {
        td_sleep(0.1);
        *fault_at = td_clock();
        td_group_abort(NULL, "the loss is NaN");
        td_group_abort(NULL, "once more");
        return report(td_barrier(NULL));
    }
    td_status status = td_barrier(NULL);
    REQUIRE(status == TD_E_INTERRUPTED);
    REQUIRE(td_clock() - *fault_at < patience());
    return report(status);
}

static void test_abort(void **state)
{
    (void)state;
    static procs_end ends[RANKS];
    procs_run(RANKS, LIMIT, with_an_abort, NULL, ends);
    for (int r = 0; r < RANKS; r++) {
        assert_survived(ends, r);
        procs_assert_says(ends, r, "rank 1 has aborted the group: the loss is NaN");
    }
}

/* ---- beginnings that fail ---- */

static int with_a_missing_rank(int rank, int size, void *arg)
{
    (void)arg;
    *fault_at = td_clock();
    if (rank == 1) {
        return SURVIVED;
    }
    return report(procs_try_init(rank, size, &(td_dist_options){ .timeout = 0.5 }));
}

static void test_missing(void **state)
{
    (void)state;
    static procs_end ends[RANKS];
    procs_run(RANKS, LIMIT, with_a_missing_rank, NULL, ends);
    for (int r = 0; r < RANKS; r++) {
        assert_survived(ends, r);
    }
    procs_assert_says(ends, 0, "2 joined (0, 2), missing: 1");
    procs_assert_says(ends, 2, "2 joined (0, 2), missing: 1");
}

static int with_a_wrong_size(int rank, int size, void *arg)
{
    (void)arg;
    *fault_at = td_clock();
    int mine = rank == 2 ? size + 1 : size;
    return report(procs_try_init(rank, mine, &(td_dist_options){ .timeout = 5 }));
}

static void test_wrong_size(void **state)
{
    (void)state;
    static procs_end ends[RANKS];
    procs_run(RANKS, LIMIT, with_a_wrong_size, NULL, ends);
    for (int r = 0; r < RANKS; r++) {
        assert_survived(ends, r);
        procs_assert_says(ends, r, "wrong world size");
    }
}

/* Files, and so shared memory, must not grow beyond this many bytes. */
static void limit_files(rlim_t bytes)
{
    signal(SIGXFSZ, SIG_IGN);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &(struct rlimit){ bytes, bytes }) == 0);
}

static int without_memory(int rank, int size, void *arg)
{
    (void)arg;
    *fault_at = td_clock();
    if (rank == 0) {
        limit_files(200000); /* enough for the file store */
    }
    return report(procs_try_init(rank, size, &(td_dist_options){ .timeout = 5 }));
}

static void test_no_memory_to_begin(void **state)
{
    (void)state;
    static procs_end ends[RANKS];
    procs_run(RANKS, LIMIT, without_memory, NULL, ends);
    for (int r = 0; r < RANKS; r++) {
        assert_survived(ends, r);
        procs_assert_says(ends, r, "of shared memory could not be had: File too large");
        procs_assert_says(ends, r, r == 0 ? "shm: " : "rank 0: shm: ");
    }
}

/* A rank without memory for its part: nobody gets any, and the group works on. */
static int without_group_memory(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 5);
    td_tensor *before = td_group_memory(NULL, 1000, TD_F32);
    REQUIRE(before != NULL);
    if (rank == 1) {
        limit_files(8 << 20);
    }
    td_work *work; /* the failure is then the communication thread's */
    REQUIRE_OK(td_all_reduce(NULL, before, TD_SUM, &work));
    REQUIRE(td_group_memory(NULL, 64 << 20, TD_F32) == NULL);
    REQUIRE(strstr(td_last_error(),
                   "rank 1: td_group_memory: 256.0 MiB of shared memory could not be "
                   "had: File too large") != NULL);
    REQUIRE_OK(td_work_wait(work, 0));
    REQUIRE(td_group_memory(NULL, 64 << 20, TD_F32) == NULL); /* now this thread's */
    REQUIRE(strstr(td_last_error(), "rank 1: td_group_memory: ") != NULL);
    REQUIRE(td_group_memory(NULL, INT64_MAX / 8, TD_F32) == NULL);
    td_tensor *after = td_group_memory(NULL, 1000, TD_F32);
    REQUIRE(after != NULL);
    td_fill_(after, 1);
    REQUIRE_OK(td_all_reduce(NULL, after, TD_SUM, NULL));
    REQUIRE(td_get(after, &(int64_t){ 999 }) == size);
    td_free(before);
    td_free(after);
    td_dist_destroy();
    return 0;
}

static void test_no_group_memory(void **state)
{
    (void)state;
    procs_succeed(RANKS, LIMIT, without_group_memory, NULL);
}

/* A /dev/shm of 64 KiB, full: it is not used. */
static int with_full_dev_shm(int rank, int size, void *arg)
{
    (void)arg;
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64k") != 0) {
        return errno == EPERM ? SURVIVED : 1;
    }
    char block[4096] = "";
    FILE *file = fopen("/dev/shm/full", "w");
    REQUIRE(file != NULL);
    while (fwrite(block, 1, sizeof block, file) == sizeof block) {
    }
    procs_init(rank, size, 5);
    td_tensor *t = td_group_memory(NULL, 100000, TD_F32);
    REQUIRE(t != NULL);
    REQUIRE_OK(td_all_reduce(NULL, t, TD_SUM, NULL));
    td_free(t);
    td_dist_destroy();
    return 0;
}

static void test_full_dev_shm(void **state)
{
    (void)state;
    static procs_end ends[2];
    procs_run(2, LIMIT, with_full_dev_shm, NULL, ends);
    if (ends[0].code == SURVIVED) {
        skip(); /* only root can mount */
    }
    assert_string_equal(ends[0].output, "");
    assert_int_equal(ends[0].code, 0);
    assert_int_equal(ends[1].code, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_death_in_every_way),
        cmocka_unit_test(test_death_everywhere),
        cmocka_unit_test(test_death_after_the_last),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_stall_report),
        cmocka_unit_test(test_differences),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_wrong_size),
        cmocka_unit_test(test_no_memory_to_begin),
        cmocka_unit_test(test_no_group_memory),
        cmocka_unit_test(test_full_dev_shm),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
