/* Process groups: beginning and end, groups of some ranks, engines, and mistakes in calls. */
#include "dist/comm/engine.h"
#include "tensor/clock.h"
#include "dist/comm/group.h"
#include "dist/comm/collectives.h"
#include "tests/help/dist_procs.h"
#include "tests/help/expect_fatal.h"
#include "tests/help/sanitized.h"
#include "tests/help/temp_folder.h"
#include "tensor/extend.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { LIMIT = 60, FAILED = 7 };

/* ---- beginning and end ---- */

static int entries_of(const char *path)
{
    DIR *dir = opendir(path);
    REQUIRE(dir != NULL);
    int count = 0;
    while (readdir(dir) != NULL) {
        count++;
    }
    closedir(dir);
    return count;
}

/* The threads of this process, but after a while at most `wanted` if it comes to that: one that has
 * been joined may still be listed for a moment. */
static int threads_left(int wanted)
{
    int threads = entries_of("/proc/self/task");
    for (int i = 0; i < 5000 && threads > wanted; i++) {
        td_sleep(0.001);
        threads = entries_of("/proc/self/task");
    }
    return threads;
}

/* Whether this process maps something of that name. */
static bool maps(const char *name)
{
    char line[512];
    bool found = false;
    FILE *file = fopen("/proc/self/maps", "r");
    REQUIRE(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        found = found || strstr(line, name) != NULL;
    }
    fclose(file);
    return found;
}

static int again_and_again(int rank, int size, void *arg)
{
    const char *backend = arg;
    const bool shm = strcmp(backend, "shm") == 0;
    REQUIRE(!td_dist_is_initialized() && td_dist_rank() == 0 && td_dist_world_size() == 1);
    int files = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");
    int own = TD_SANITIZED; /* a sanitizer's own thread comes with the first */
    for (int i = 0; i < 3; i++) {
        td_dist_options options = { .timeout = 60, .backend = backend };
        REQUIRE_OK(procs_try_init(rank, size, &options));
        REQUIRE(td_dist_is_initialized());
        REQUIRE(td_dist_rank() == rank && td_dist_world_size() == size);
        REQUIRE(td_dist_local_rank() == rank && td_dist_local_world_size() == size);
        td_group *world = td_dist_world();
        REQUIRE(td_group_rank(world) == rank && td_group_size(world) == size);
        REQUIRE(strcmp(td_group_backend(world), backend) == 0);
        td_tensor *t = td_group_memory(world, 1000 + i, TD_F32);
        REQUIRE(t != NULL && td_get(t, &(int64_t){ 999 }) == 0);
        REQUIRE(maps("memfd:tandem") == shm && !maps("/dev/shm/")); /* no name to leave behind */
        double one = 1;
        REQUIRE_OK(td_all_reduce_numbers(NULL, &one, 1));
        REQUIRE(one == size);
        if (i == 1) {
            td_dist_destroy();
            td_free(t); /* too late, and harmless */
        } else {
            td_free(t);
            td_dist_destroy();
        }
        REQUIRE(!maps("memfd:tandem"));
        REQUIRE(entries_of("/proc/self/fd") == files);
        REQUIRE(threads_left(threads + own) <= threads + own);
    }
    td_dist_destroy(); /* nothing to do */
    return 0;
}

static void test_again_and_again(void **state)
{
    (void)state;
    procs_succeed(2, LIMIT, again_and_again, "shm");
    procs_succeed(4, LIMIT, again_and_again, "shm");
    if (td_engine_find("gloo") != NULL) {
        procs_succeed(3, LIMIT, again_and_again, "gloo");
    }
}

/* A world of one needs no engine, and everything works. */
static int alone(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    td_group *group;
    REQUIRE_OK(td_group_new(&(int){ 0 }, 1, &group));
    td_tensor *t = td_full(TD_SHAPE(5), 3, TD_F32, TD_CPU),
              *out = td_zeros(TD_SHAPE(1, 5), TD_F32, TD_CPU);
    td_tensor *memory = td_group_memory(NULL, 5, TD_F32);
    td_work *work;
    REQUIRE(memory != NULL && group != NULL && td_group_size(group) == 1);
    REQUIRE_OK(td_all_reduce(NULL, t, TD_AVERAGE, &work));
    REQUIRE(td_work_test(work));
    REQUIRE_OK(td_work_wait(work, 1));
    REQUIRE_OK(td_broadcast(group, t, 0, NULL));
    REQUIRE_OK(td_reduce(NULL, t, TD_PRODUCT, 0, NULL));
    REQUIRE_OK(td_all_gather(NULL, out, t, NULL));
    REQUIRE_OK(td_gather(NULL, out, t, 0, NULL));
    REQUIRE_OK(td_scatter(NULL, memory, out, 0, NULL));
    REQUIRE_OK(td_all_to_all(NULL, memory, t, NULL));
    REQUIRE_OK(td_reduce_scatter(group, memory, out, TD_SUM, NULL));
    REQUIRE_OK(td_barrier(NULL));
    REQUIRE_OK(td_monitored_barrier(group, 1));
    REQUIRE(td_get(t, &(int64_t){ 4 }) == 3 && td_get(memory, &(int64_t){ 4 }) == 3);
    td_group_abort(group, "enough");
    REQUIRE(td_barrier(group) == TD_E_INTERRUPTED);
    REQUIRE_OK(td_barrier(NULL));
    td_group_free(group);
    td_free(t);
    td_free(out);
    td_free(memory);
    td_dist_destroy();
    return 0;
}

static void test_alone(void **state)
{
    (void)state;
    procs_succeed(1, LIMIT, alone, NULL);
}

/* The store may be the caller's. */
static int own_store(int rank, int size, void *arg)
{
    td_store *store;
    REQUIRE_OK(td_file_store_open(arg, "run", 10, &store));
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(td_dist_init(.store = store, .rank = rank, .world_size = size, .timeout = 10));
        REQUIRE_OK(td_barrier(NULL));
        td_dist_destroy();
    }
    REQUIRE_OK(td_store_set_text(store, "mine", "still here"));
    td_store_close(store);
    return 0;
}

static void test_own_store(void **state)
{
    (void)state;
    temp_folder_setup(NULL);
    char path[512];
    snprintf(path, sizeof path, "%s", temp_path("store"));
    procs_succeed(3, LIMIT, own_store, path);
    temp_folder_teardown(NULL);
}

/* ---- engines ---- */

static int with_backend(int rank, int size, void *arg)
{
    const char *const *names = arg;
    td_dist_options options = { .timeout = 10, .backend = names[rank] };
    td_status status = procs_try_init(rank, size, &options);
    fprintf(stderr, "%s\n", td_last_error());
    if (status == TD_OK) {
        fprintf(stderr, "works with %s\n", td_group_backend(td_dist_world()));
        td_dist_destroy();
    }
    return status == TD_OK ? 0 : FAILED;
}

static void try_backends(const char *first, const char *second, int code, const char *message)
{
    static procs_end ends[2];
    const char *names[2] = { first, second };
    procs_run(2, LIMIT, with_backend, names, ends);
    for (int r = 0; r < 2; r++) {
        procs_assert_says(ends, r, message);
        assert_int_equal(ends[r].code, code);
    }
}

static void test_backends(void **state)
{
    (void)state;
    try_backends(NULL, NULL, 0, "works with shm");
    try_backends("shm", NULL, 0, "works with shm");
    try_backends("carrier pigeon", "carrier pigeon", FAILED,
                 "there is no backend 'carrier pigeon'; there are shm, gloo, mpi and nccl");
    td_device gpu;
    if (td_device_parse("cuda:0", &gpu) != TD_OK) {
        try_backends("nccl", "nccl", FAILED, "backend nccl is for GPUs: cuda:0 cannot be used");
        try_backends("shm", "nccl", FAILED, "rank 1: backend nccl is for GPUs");
    }
    setenv("TANDEM_BACKEND", "no such", 1);
    try_backends(NULL, NULL, FAILED, "there is no backend 'no such'");
    try_backends("shm", "shm", 0, "works with shm"); /* what is asked for comes first */
    unsetenv("TANDEM_BACKEND");
}

/* ---- groups of some ranks ---- */

static double sum_in(td_group *group, double value)
{
    REQUIRE_OK(td_all_reduce_numbers(group, &value, 1));
    return value;
}

static int subgroups(int rank, int size, void *arg)
{
    (void)arg;
    static const int even[] = { 0, 2 }, most[] = { 1, 2, 3 }, one[] = { 3 };
    td_group *groups[3];
    procs_init(rank, size, 60);
    REQUIRE_OK(td_group_new(even, 2, &groups[0]));
    REQUIRE_OK(td_group_new(most, 3, &groups[1]));
    REQUIRE_OK(td_group_new(one, 1, &groups[2]));
    REQUIRE((groups[0] != NULL) == (rank % 2 == 0));
    REQUIRE((groups[1] != NULL) == (rank >= 1));
    REQUIRE((groups[2] != NULL) == (rank == 3));
    if (groups[0] != NULL) {
        REQUIRE(td_group_rank(groups[0]) == rank / 2 && td_group_size(groups[0]) == 2);
        REQUIRE(sum_in(groups[0], rank) == 2);
    }
    if (groups[1] != NULL) {
        REQUIRE(td_group_rank(groups[1]) == rank - 1 && td_group_size(groups[1]) == 3);
        td_tensor *t = td_full(TD_SHAPE(1), rank, TD_I32, TD_CPU);
        td_work *work;
        REQUIRE_OK(td_broadcast(groups[1], t, 2, &work)); /* of the group's ranks: 3 of the world */
        REQUIRE(rank != 2 || sum_in(groups[0], 5) == 10); /* groups do not wait for each other */
        REQUIRE_OK(td_work_wait(work, 0));
        REQUIRE(td_item(t) == 3);
        td_free(t);
    } else {
        REQUIRE(sum_in(groups[0], 5) == 10);
    }
    REQUIRE(sum_in(NULL, rank) == 6);
    /* What breaks one group leaves the others alone. */
    if (rank == 1) {
        td_group_abort(groups[1], "a test");
    }
    if (groups[1] != NULL) {
        REQUIRE(td_barrier(groups[1]) == TD_E_INTERRUPTED);
        REQUIRE(
            strstr(td_last_error(), "group of ranks 1-3: rank 0 has aborted the group: a test"));
    }
    REQUIRE(sum_in(NULL, 1) == 4);
    td_group_free(groups[2]);
    if (rank % 2 == 0) {
        td_group_free(groups[0]);
    }
    td_dist_destroy(); /* frees those that are left */
    return 0;
}

static void test_subgroups(void **state)
{
    (void)state;
    procs_succeed(4, LIMIT, subgroups, NULL);
}

/* The members do not agree on who is one. */
static int other_lists(int rank, int size, void *arg)
{
    (void)arg;
    static const int list[] = { 0, 1, 2 };
    td_group *group;
    procs_init(rank, size, 60);
    td_status status = td_group_new(list, rank == 0 ? 2 : 3, &group);
    fprintf(stderr, "%s\n", td_last_error());
    td_dist_destroy();
    return status == TD_OK ? 0 : FAILED;
}

static void test_other_lists(void **state)
{
    (void)state;
    static procs_end ends[3];
    procs_run(3, LIMIT, other_lists, NULL, ends);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(ends[r].code, FAILED);
        procs_assert_says(ends, r, "wants shm in the group of ranks 0-2");
    }
}

/* A member does not call td_group_new. */
static int missing_member(int rank, int size, void *arg)
{
    (void)arg;
    td_group *group;
    procs_init(rank, size, 60);
    td_dist_world()->timeout = 1; /* and so is that of the groups to come */
    if (rank == 2) {
        procs_await(4);
    } else {
        procs_arrive();
        procs_await(2);
        REQUIRE(td_group_new((int[]){ 0, 1, 2 }, 3, &group) == TD_E_TIMEOUT);
        const char *part = "group of ranks 0-2: rank 2 has not come to the new group";
        REQUIRE(strstr(td_last_error(), part) != NULL);
        procs_arrive();
    }
    td_dist_destroy();
    return 0;
}

static void test_missing_member(void **state)
{
    (void)state;
    procs_succeed(3, LIMIT, missing_member, NULL);
}

/* Leaving with something under way. */
static int leaving(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    td_tensor *t = td_zeros(TD_SHAPE(1000), TD_F32, TD_CPU);
    td_work *work;
    if (rank == 0) {
        REQUIRE_OK(td_all_reduce(NULL, t, TD_SUM, &work));
        td_sleep(0.05);
        td_dist_destroy();
        procs_arrive();
    } else {
        procs_await(1);
        REQUIRE(td_all_reduce(NULL, t, TD_SUM, NULL) == TD_E_PEER);
        REQUIRE(strstr(td_last_error(), "rank 0 has ended the group while collectives were under "
                                        "way") != NULL);
        td_dist_destroy();
    }
    td_free(t);
    return 0;
}

static void test_leaving(void **state)
{
    (void)state;
    procs_succeed(2, LIMIT, leaving, NULL);
}

/* ---- mistakes ---- */

static void test_mistakes(void **state)
{
    (void)state;
    td_group *group;
    expect_fatal("call td_dist_init first", td_dist_world());
    expect_fatal("call td_dist_init first", td_barrier(NULL));
    temp_folder_setup(NULL);
    char url[512];
    snprintf(url, sizeof url, "file://%s", temp_path("store"));
    td_dist_options options = { .init_method = url, .rank = 0, .world_size = 1, .timeout = 5 };
    assert_int_equal(td_dist_init_at(options, TD_HERE), TD_OK);
    td_tensor *f = td_zeros(TD_SHAPE(4, 3), TD_F32, TD_CPU);
    td_tensor *i = td_zeros(TD_SHAPE(4, 3), TD_I32, TD_CPU);
    td_tensor *small = td_zeros(TD_SHAPE(5), TD_F32, TD_CPU);
    expect_fatal("it has been called before", td_dist_init_at(options, TD_HERE));
    expect_fatal("rank 1 does not exist in a world of 1", td_group_new(&(int){ 1 }, 1, &group));
    expect_fatal("ranks must be ascending", td_group_new((int[]){ 0, 0 }, 2, &group));
    expect_fatal("at least one rank", td_group_new(NULL, 0, &group));
    expect_fatal("td_dist_destroy ends it", td_group_free(td_dist_world()));
    expect_fatal("averages are for floats", td_all_reduce(NULL, i, TD_AVERAGE, NULL));
    expect_fatal("there is no reduction 9", td_all_reduce(NULL, f, (td_reduction)9, NULL));
    expect_fatal("rank 1 does not exist in a group of 1", td_broadcast(NULL, f, 1, NULL));
    expect_fatal("rank 0 is this rank itself", td_send(NULL, f, 0, NULL));
    expect_fatal("must have 1 times the elements", td_all_gather(NULL, small, f, NULL));
    expect_fatal("are of different dtypes", td_all_gather(NULL, i, f, NULL));
    expect_fatal("must be of one dtype", td_all_to_all(NULL, small, f, NULL));
    expect_fatal("a tensor is NULL", td_reduce(NULL, NULL, TD_SUM, 0, NULL));
    td_tensor *hole = td_slice_of_storage(f, 0, TD_SHAPE(4), (int64_t[]){ 3 });
    expect_fatal("do not lie side by side", td_all_reduce(NULL, hole, TD_SUM, NULL));
    td_step_begin();
    td_tensor *of_step = td_step_new(TD_SHAPE(3), TD_F32, TD_ROW_MAJOR, TD_CPU, TD_HERE);
    td_work *work;
    expect_fatal("belongs to a step", td_all_reduce(NULL, of_step, TD_SUM, &work));
    assert_int_equal(td_all_reduce(NULL, of_step, TD_SUM, NULL), TD_OK);
    td_step_end();
    td_free(hole);
    td_free(f);
    td_free(i);
    td_free(small);
    td_dist_destroy();
    temp_folder_teardown(NULL);
}

/* ---- the ranks of a host share its CPUs ---- */

static int run_threads(int rank, int size, void *arg)
{
    (void)arg;
    unsetenv("OMP_NUM_THREADS");
    int all = td_threads(TD_CPU), each = all / size > 0 ? all / size : 1;
    procs_init(rank, size, 60);
    REQUIRE(td_threads(TD_CPU) == each); /* no pool yet */
    REQUIRE(td_threads(TD_CPU_N(1)) == each);
    td_tensor *t = td_zeros(TD_SHAPE(8), TD_F32, TD_CPU);
    td_fill_(t, 1.0); /* makes the pool */
    REQUIRE(td_threads(TD_CPU) == each);
    REQUIRE_OK(td_set_threads(TD_CPU_N(1), 3));
    td_dist_destroy();
    REQUIRE(td_threads(TD_CPU) == all);
    REQUIRE(td_threads(TD_CPU_N(1)) == 3); /* as it was asked for */
    td_free(t);
    return 0;
}

static int run_threads_given(int rank, int size, void *arg)
{
    (void)arg;
    setenv("OMP_NUM_THREADS", "5", 1);
    procs_init(rank, size, 60);
    REQUIRE(td_threads(TD_CPU) == 5);
    td_dist_destroy();
    return 0;
}

static void test_ranks_share_the_cpus(void **state)
{
    (void)state;
    procs_succeed(1, LIMIT, run_threads, NULL);
    procs_succeed(2, LIMIT, run_threads, NULL);
    procs_succeed(3, LIMIT, run_threads, NULL);
    procs_succeed(2, LIMIT, run_threads_given, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_again_and_again), cmocka_unit_test(test_alone),
        cmocka_unit_test(test_own_store),       cmocka_unit_test(test_backends),
        cmocka_unit_test(test_subgroups),       cmocka_unit_test(test_other_lists),
        cmocka_unit_test(test_leaving),         cmocka_unit_test(test_missing_member),
        cmocka_unit_test(test_mistakes),        cmocka_unit_test(test_ranks_share_the_cpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
