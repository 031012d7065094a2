/* Ranks that do not do the same, ranks that give up, groups that cannot begin: all ranks are told,
 * at once, and the message names the rank and the cause. */
// run: waits
#include "tensor/clock.h"
#include "dist/comm/collectives.h"
#include "tests/comm/dist_faults.h"

#include <arpa/inet.h>
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
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 3, LIMIT = 60 };

/* ---- ranks that do not do the same ---- */

typedef enum difference {
    SIZE,
    DTYPE,
    KIND,
    OPERATION,
    ROOT,
    MEMORY,
    MESSAGE,
    SWAPPED,
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
    procs_init(rank, size, 60);
    REQUIRE_OK(td_barrier(NULL));
    *fault_at = td_clock();
    td_status status;
    if (what == MESSAGE || what == SWAPPED) {
        td_tensor *t = td_zeros(TD_SHAPE(rank == 0 && what == MESSAGE ? 3 : 4), TD_F32, TD_CPU);
        status = rank == 0   ? td_send_named(NULL, t, 1, "F0.1", NULL)
                 : rank == 1 ? td_recv_named(NULL, t, 0, what == SWAPPED ? "F0.2" : "F0.1", NULL)
                             : td_barrier(NULL);
        if (status == TD_OK) {
            status = td_barrier(NULL);
        }
        td_free(t);
    } else {
        status = do_something_else(what, rank);
    }
    REQUIRE(status == TD_E_MISMATCH);
    REQUIRE(td_clock() - *fault_at < fault_patience());
    return fault_report(status);
}

static void test_differences(void **state)
{
    (void)state;
    static const char *const messages[DIFFERENCES] = {
        [SIZE] = "rank 2 calls all_reduce number 2 (f32, 30000 elements)",
        [DTYPE] = "rank 2 calls all_reduce number 2 (i32, 40000 elements)",
        [KIND] = "rank 2 calls broadcast number 2 (f32, 40000 elements, root 0)",
        [OPERATION] = "rank 2 calls all_reduce number 2 (f32, 40000 elements, max)",
        [ROOT] = "rank 2 calls broadcast number 2 (f32, 40000 elements, root 1)",
        [MEMORY] = "rank 2 calls group_memory number 2 (400 bytes)",
        [MESSAGE] = "rank 0 sends 3 elements of f32, named 'F0.1' (its message number 1",
        [SWAPPED] = "rank 0 sends 4 elements of f32, named 'F0.1' (its message number 1",
    };
    static procs_end ends[RANKS];
    for (int i = 0; i < fault_repeats(); i++) {
        for (difference what = SIZE; what < DIFFERENCES; what++) {
            if (what == MEMORY && !procs_are_over("shm")) {
                continue; /* the others have no memory of their own to agree about */
            }
            fault_run(RANKS, LIMIT, with_a_difference, &what, ends);
            for (int r = 0; r < RANKS; r++) {
                procs_assert_says(ends, r, messages[what]);
                assert_survived(ends, r);
            }
            if (what == SIZE && procs_are_over("shm")) { /* it sees them all at once */
                procs_assert_says(ends, 0,
                                  "ranks 0-1 call all_reduce number 2 (f32, 40000 elements)");
            }
        }
    }
}

/* ---- a rank gives up on purpose ---- */

static int with_an_abort(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    *fault_at = td_clock();
    if (rank == 1) {
        td_sleep(0.1);
        *fault_at = td_clock();
        td_group_abort(NULL, "the loss is NaN");
        td_group_abort(NULL, "once more");
        return fault_report(td_barrier(NULL));
    }
    td_status status = td_barrier(NULL);
    REQUIRE(status == TD_E_INTERRUPTED);
    REQUIRE(td_clock() - *fault_at < fault_patience());
    return fault_report(status);
}

static void test_abort(void **state)
{
    (void)state;
    static procs_end ends[RANKS];
    for (int i = 0; i < fault_repeats(); i++) {
        fault_run(RANKS, LIMIT, with_an_abort, NULL, ends);
        for (int r = 0; r < RANKS; r++) {
            assert_survived(ends, r);
            procs_assert_says(ends, r, "rank 1 has aborted the group: the loss is NaN");
        }
    }
}

/* ---- beginnings that fail ---- */

static int with_a_missing_rank(int rank, int size, void *arg)
{
    (void)arg;
    if (rank == 1) {
        return FAULT_SURVIVED;
    }
    procs_arrive();
    procs_await(size - 1); /* so that both are there in time */
    *fault_at = td_clock();
    return fault_report(procs_try_init(rank, size, &(td_dist_options){ .timeout = 1 }));
}

static void test_missing(void **state)
{
    (void)state;
    static procs_end ends[RANKS];
    for (int i = 0; i < fault_repeats(); i++) {
        fault_run(RANKS, LIMIT, with_a_missing_rank, NULL, ends);
        for (int r = 0; r < RANKS; r++) {
            assert_survived(ends, r);
        }
        procs_assert_says(ends, 0, "2 joined (0, 2), missing: 1");
        procs_assert_says(ends, 2, "2 joined (0, 2), missing: 1");
    }
}

static int with_a_wrong_size(int rank, int size, void *arg)
{
    (void)arg;
    *fault_at = td_clock();
    int mine = rank == 2 ? size + 1 : size;
    return fault_report(procs_try_init(rank, mine, &(td_dist_options){ .timeout = 60 }));
}

static void test_wrong_size(void **state)
{
    (void)state;
    static procs_end ends[RANKS];
    for (int i = 0; i < fault_repeats(); i++) {
        fault_run(RANKS, LIMIT, with_a_wrong_size, NULL, ends);
        for (int r = 0; r < RANKS; r++) {
            assert_survived(ends, r);
            procs_assert_says(ends, r, "wrong world size");
        }
    }
}

/* Something else listens where the ranks would meet, and says nothing. Rank 0 knows it at once. */
static int at_a_busy_port(int rank, int size, void *arg)
{
    const double begin = td_clock(), timeout = rank == 0 ? 60 : 1;
    *fault_at = begin;
    td_status status =
        td_dist_init(.init_method = arg, .rank = rank, .world_size = size, .timeout = timeout);
    REQUIRE(td_clock() - begin < (rank == 0 ? 0 : timeout) + fault_patience());
    return fault_report(status);
}

static void test_busy_port(void **state)
{
    (void)state;
    static procs_end ends[RANKS];
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, length), 0);
    assert_int_equal(listen(listener, 16), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &length), 0);
    char url[64], busy[64];
    int port = ntohs(at.sin_port);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", port);
    snprintf(busy, sizeof busy, "port %d is busy", port);
    for (int i = 0; i < fault_repeats(); i++) {
        fault_run(RANKS, LIMIT, at_a_busy_port, url, ends);
        for (int r = 0; r < RANKS; r++) {
            assert_survived(ends, r);
            procs_assert_says(ends, r, r == 0 ? busy : url + strlen("tcp://"));
        }
        procs_assert_says(ends, 0, "listens on it; end that process or take another port");
    }
    close(listener);
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
    return fault_report(procs_try_init(rank, size, &(td_dist_options){ .timeout = 60 }));
}

static void test_no_memory_to_begin(void **state)
{
    (void)state;
    if (!procs_are_over("shm")) {
        skip(); /* it is about shared memory */
    }
    static procs_end ends[RANKS];
    for (int i = 0; i < fault_repeats(); i++) {
        fault_run(RANKS, LIMIT, without_memory, NULL, ends);
        for (int r = 0; r < RANKS; r++) {
            assert_survived(ends, r);
            procs_assert_says(ends, r, "of shared memory could not be had: File too large");
            procs_assert_says(ends, r, r == 0 ? "shm: " : "rank 0: shm: ");
        }
    }
}

/* A rank without memory for its part: nobody gets any, and the group works on. */
static int without_group_memory(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
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
    if (!procs_are_over("shm")) {
        skip(); /* it is about shared memory */
    }
    procs_succeed(RANKS, LIMIT, without_group_memory, NULL);
}

/* A /dev/shm of 64 KiB, full: it is not used. */
static int with_full_dev_shm(int rank, int size, void *arg)
{
    (void)arg;
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64k") != 0) {
        /* EINVAL: "/" is no mount point, as in a chroot. */
        return errno == EPERM || errno == EACCES || errno == EINVAL ? FAULT_SURVIVED : 1;
    }
    char block[4096] = "";
    FILE *file = fopen("/dev/shm/full", "w");
    REQUIRE(file != NULL);
    while (fwrite(block, 1, sizeof block, file) == sizeof block) {
    }
    procs_init(rank, size, 60);
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
    for (int i = 0; i < fault_repeats(); i++) {
        fault_run(2, LIMIT, with_full_dev_shm, NULL, ends);
        if (ends[0].code == FAULT_SURVIVED) {
            print_message("# skipped: no private /dev/shm can be mounted here\n");
            skip();
        }
        assert_string_equal(ends[0].output, "");
        assert_int_equal(ends[0].code, 0);
        assert_int_equal(ends[1].code, 0);
    }
}

/* ---- few descriptors ---- */

static int with_few_files(int rank, int size, void *arg)
{
    const struct rlimit *few = arg;
    td_dist_options options = { .timeout = 60 };
    REQUIRE(rank != 0 || setrlimit(RLIMIT_NOFILE, few) == 0);
    *fault_at = td_clock();
    td_status status = procs_try_init(rank, size, &options);
    REQUIRE(td_clock() - *fault_at < fault_patience());
    if (few->rlim_max > few->rlim_cur) {
        REQUIRE_OK(status);
        REQUIRE_OK(td_barrier(NULL));
        td_dist_destroy();
        return 0;
    }
    REQUIRE(status == TD_E_IO);
    return fault_report(status);
}

/* Rank 0 has the store. With too few files it accepted some connections, and all ranks waited for
 * their whole time-outs. Now it says so before it listens; the others, in any case, end in time. */
static void test_few_files(void **state)
{
    (void)state;
    static procs_end ends[1];
    for (int files = 16; files < 20; files++) {
        struct rlimit few = { .rlim_cur = (rlim_t)files, .rlim_max = (rlim_t)files };
        procs_meet_over_tcp(true);
        procs_run(1, LIMIT, with_few_files, &few, ends);
        procs_assert_says(ends, 0, "20 open files are needed for 1 process and 1");
        assert_survived(ends, 0);
    }
    struct rlimit raised = { .rlim_cur = 16, .rlim_max = 256 };
    procs_succeed(RANKS, LIMIT, with_few_files, &raised);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_differences),     cmocka_unit_test(test_abort),
        cmocka_unit_test(test_missing),         cmocka_unit_test(test_wrong_size),
        cmocka_unit_test(test_busy_port),       cmocka_unit_test(test_no_memory_to_begin),
        cmocka_unit_test(test_no_group_memory), cmocka_unit_test(test_full_dev_shm),
        cmocka_unit_test(test_few_files),
    };
    return cmocka_run_group_tests(tests, fault_setup, NULL);
}
