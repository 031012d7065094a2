/* A group's collectives on a GPU, without one: DDP's schedule and the watchdog over doubles of NCCL
 * and of streams; the way by the host between real ranks; the real library's id, and how its start
 * fails where there is no GPU. */
#include "dist/ddp/extra.h"
#include "tensor/clock.h"
#include "dist/comm/device_engine.h"
#include "dist/comm/group.h"
#include "dist/comm/collectives.h"
#include "tandem.h"
#include "tests/help/dist_procs.h"
#include "tests/comm/nccl_double.h"
#include "tests/help/temp_folder.h"

#include <pthread.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Collectives of CPU memory go by way of copies, as a GPU's do without NCCL. */
static void stage_all(td_group *group)
{
    group->staged = TD_CPU;
    group->stages = true;
}

/* ---- through the group ---- */

static void meet_alone(void)
{
    char url[600];
    snprintf(url, sizeof url, "file://%s", temp_path("meet"));
    td_dist_options options = { .init_method = url, .rank = 0, .world_size = 1, .timeout = 10 };
    assert_int_equal(td_dist_init_at(options, TD_HERE), TD_OK);
}

/* DDP over the doubles: what the hooks launch while backward runs, and one wait at its end. */
static void test_ddp_schedule(void **state)
{
    (void)state;
    meet_alone();
    td_device_engine *e = fake_engine_open(1);
    fake.copies = true;
    td_dist_world()->device_engine = e;
    fake.quiet = true;
    td_manual_seed(1);
    td_module *net = td_nn_sequential(td_nn_linear(20, 30), td_nn_relu(), td_nn_linear(30, 5));
    net = td_ddp(net, .bucket_cap_mb = 0.0005, .no_broadcast_buffers = true);
    assert_non_null(net);
    td_optim *optim = td_sgd(td_parameters(net), .lr = 0.1);
    td_tensor *x = td_full(TD_SHAPE(4, 20), 0.5, TD_F32, TD_CPU);
    for (int step = 0; step < 3; step++) {
        td_step_begin();
        td_tensor *loss = td_mean(td_forward(net, x));
        td_zero_grad(optim);
        fake.quiet = step < 2;
        td_backward(loss);
        td_optim_step(optim);
        td_step_end();
    }
    /* A launch for each bucket, of which there are several, and nothing else. */
    int buckets = td_ddp_last_stats(net).buckets;
    assert_true(buckets > 1);
    int launches = 0, waits = 0, last_wait = 0, last_record = 0;
    for (const char *line = fake.text; *line != '\0'; line = strchr(line, '\n') + 1) {
        launches += strncmp(line, "all_reduce", 10) == 0;
        waits += strncmp(line, "compute waits", 13) == 0;
        assert_true(strncmp(line, "all_reduce", 10) != 0 || waits == 0); /* all before the wait */
        sscanf(line, "compute waits for e%d", &last_wait);
        if (strstr(line, " on comm") != NULL) {
            sscanf(line, "record e%d on comm", &last_record);
        }
    }
    assert_int_equal(launches, buckets);
    assert_int_equal(waits, 1);
    assert_int_equal(last_wait, last_record);
    td_free(x);
    td_optim_free(optim);
    td_module_free(net);
    td_dist_destroy();
}

/* A collective that is not done by its time, found by the watchdog: the group is broken, named. */
static void test_watchdog(void **state)
{
    (void)state;
    meet_alone();
    td_group *group = td_dist_world();
    td_device_engine *e = fake_engine_open(1);
    group->device_engine = e;
    td_tensor *t = td_zeros(TD_SHAPE(3), TD_F32, TD_CPU);
    td_work *work;
    group->timeout = 0.01;
    assert_int_equal(td_all_reduce(group, t, TD_SUM, &work), TD_OK);
    assert_false(td_work_test(work));
    usleep(20000);
    td_device_look(group);
    fake_assert_aborted();
    assert_int_equal(td_work_wait(work, 0), TD_E_TIMEOUT);
    assert_non_null(strstr(td_last_error(), "all_reduce number 1 (f32, 3 elements) on cpu:0"));
    assert_int_equal(td_all_reduce(group, t, TD_SUM, NULL), TD_E_TIMEOUT);
    td_free(t);
    td_dist_destroy();
}

/* td_work_wait with a time-out: the host waits for the collective, and no longer than that. */
static void test_a_wait_with_a_timeout(void **state)
{
    (void)state;
    meet_alone();
    td_group *group = td_dist_world();
    group->device_engine = fake_engine_open(1);
    td_tensor *t = td_zeros(TD_SHAPE(3), TD_F32, TD_CPU);
    td_work *work;
    fake.reached = true;
    assert_int_equal(td_all_reduce(group, t, TD_SUM, &work), TD_OK);
    assert_int_equal(td_work_wait(work, 60), TD_OK);
    fake.reached = false;
    assert_int_equal(td_all_reduce(group, t, TD_SUM, &work), TD_OK);
    assert_int_equal(td_work_wait(work, 0), TD_OK); /* not waited for */
    assert_int_equal(td_all_reduce(group, t, TD_SUM, &work), TD_OK);
    double begin = td_clock();
    assert_int_equal(td_work_wait(work, 0.05), TD_E_TIMEOUT);
    assert_true(td_clock() - begin >= 0.05);
    assert_error_says("all_reduce number 3 (f32, 3 elements) on cpu:0 was given up", NULL);
    fake_assert_aborted();
    td_free(t);
    td_dist_destroy();
}

/* ---- by way of the host: real ranks, the "device" being CPU memory ---- */

static int staged_rank(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20);
    td_group *group = td_dist_world();
    stage_all(group);
    double value = rank + 1;
    td_tensor *t = td_full(TD_SHAPE(1000), value, TD_F32, TD_CPU);
    td_tensor *u = td_full(TD_SHAPE(10), value, TD_F64, TD_CPU);
    td_work *one, *two;
    REQUIRE_OK(td_all_reduce(group, t, TD_AVERAGE, &one)); /* two under way */
    REQUIRE_OK(td_all_reduce(group, u, TD_MAX, &two));
    REQUIRE_OK(td_work_wait(two, 0));
    REQUIRE_OK(td_work_wait(one, 0));
    REQUIRE(td_get(t, (int64_t[]){ 999 }) == (size + 1) / 2.0);
    REQUIRE(td_get(u, (int64_t[]){ 9 }) == size);
    REQUIRE_OK(td_broadcast(group, t, 1, NULL));
    td_tensor *all = td_zeros(TD_SHAPE(size, 10), TD_F64, TD_CPU);
    td_fill_(u, value);
    REQUIRE_OK(td_all_gather(group, all, u, NULL));
    td_tensor *part = td_zeros(TD_SHAPE(10), TD_F64, TD_CPU);
    REQUIRE_OK(td_reduce_scatter(group, part, all, TD_SUM, NULL));
    for (int r = 0; r < size; r++) {
        REQUIRE(td_get(all, (int64_t[]){ r, 3 }) == r + 1);
    }
    REQUIRE(td_get(part, (int64_t[]){ 9 }) == size * (rank + 1));
    REQUIRE_OK(td_reduce(group, u, TD_SUM, 0, NULL));
    REQUIRE(td_get(u, (int64_t[]){ 0 }) == (rank == 0 ? size * (size + 1) / 2.0 : value));
    td_fill_(u, value);
    REQUIRE_OK(td_gather(group, rank == 1 ? all : NULL, u, 1, NULL));
    REQUIRE(rank != 1 || td_get(all, (int64_t[]){ size - 1, 5 }) == size);
    REQUIRE_OK(td_scatter(group, part, rank == 1 ? all : NULL, 1, NULL));
    REQUIRE(td_get(part, (int64_t[]){ 5 }) == value);
    td_tensor *swapped = td_zeros(TD_SHAPE(size, 10), TD_F64, TD_CPU);
    td_fill_(all, value);
    REQUIRE_OK(td_all_to_all(group, swapped, all, NULL));
    REQUIRE(td_get(swapped, (int64_t[]){ size - 1, 0 }) == size);
    /* A message each way at once. */
    td_work *sent;
    int peer = rank ^ 1;
    REQUIRE_OK(td_send(group, u, peer, &sent));
    REQUIRE_OK(td_recv(group, part, peer, NULL));
    REQUIRE_OK(td_work_wait(sent, 0));
    REQUIRE(td_get(part, (int64_t[]){ 0 }) == peer + 1);
    td_free(t);
    td_free(u);
    td_free(all);
    td_free(part);
    td_free(swapped);
    td_dist_destroy();
    return 0;
}

static void test_staged(void **state)
{
    (void)state;
    procs_succeed(2, 60, staged_rank, NULL);
    procs_assert_nothing_left();
}

/* A thread waits for a message that comes late; meanwhile another launches and joins. */
static void *receive(void *t)
{
    return td_recv(NULL, t, 1, NULL) == TD_OK ? t : NULL;
}

static int waiting_rank(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    td_group *group = td_dist_world();
    stage_all(group);
    td_tensor *late = td_full(TD_SHAPE(5), rank, TD_F32, TD_CPU);
    td_tensor *t = td_full(TD_SHAPE(5), rank + 1, TD_F32, TD_CPU);
    if (rank == 0) {
        pthread_t thread;
        void *got;
        REQUIRE(pthread_create(&thread, NULL, receive, late) == 0);
        td_sleep(0.05); /* it waits by now, most likely */
        td_work *work;
        REQUIRE_OK(td_send(group, t, 1, &work));
        REQUIRE_OK(td_work_wait(work, 0));
        REQUIRE(pthread_join(thread, &got) == 0);
        REQUIRE(got == late && td_get(late, (int64_t[]){ 4 }) == 1);
    } else {
        REQUIRE_OK(td_recv(group, t, 0, NULL)); /* the late one is sent only then */
        REQUIRE(td_get(t, (int64_t[]){ 4 }) == 1);
        REQUIRE_OK(td_send(group, late, 0, NULL));
    }
    td_free(late);
    td_free(t);
    td_dist_destroy();
    return 0;
}

static void test_staged_while_another_waits(void **state)
{
    (void)state;
    procs_succeed(2, 60, waiting_rank, NULL);
}

/* A peer that does not come: the wait's time-out is kept, and all is well to be ended. */
static int late_rank(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    td_group *group = td_dist_world();
    stage_all(group);
    td_tensor *t = td_full(TD_SHAPE(5), rank, TD_F32, TD_CPU);
    if (rank == 0) {
        td_work *work;
        REQUIRE_OK(td_all_reduce(group, t, TD_SUM, &work));
        REQUIRE(td_work_wait(work, 0.1) == TD_E_TIMEOUT);
        REQUIRE(strstr(td_last_error(), "was given up by td_work_wait") != NULL);
        procs_arrive();
    } else {
        procs_await(1);
        REQUIRE(td_all_reduce(group, t, TD_SUM, NULL) == TD_E_TIMEOUT);
    }
    td_free(t);
    td_dist_destroy();
    return 0;
}

static void test_staged_wait_with_a_timeout(void **state)
{
    (void)state;
    procs_succeed(2, 60, late_rank, NULL);
}

/* Nobody waits for two of four collectives, of which one uses memory again: their memory goes with
 * the group. */
static int careless_rank(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 60);
    td_group *group = td_dist_world();
    stage_all(group);
    td_tensor *t[3];
    td_work *works[3];
    for (int i = 0; i < 3; i++) {
        t[i] = td_full(TD_SHAPE(1000), rank, TD_F32, TD_CPU);
        REQUIRE_OK(td_all_reduce(group, t[i], TD_SUM, &works[i]));
    }
    REQUIRE_OK(td_work_wait(works[0], 0));
    REQUIRE_OK(td_work_wait(works[1], 0));
    REQUIRE_OK(td_all_reduce(group, t[0], TD_SUM, &works[0]));
    REQUIRE_OK(td_barrier(group)); /* all have ended */
    REQUIRE(td_get(t[0], (int64_t[]){ 999 }) == size * (size - 1) / 2.0);
    REQUIRE(td_get(t[2], (int64_t[]){ 999 }) == rank);
    for (int i = 0; i < 3; i++) {
        td_free(t[i]);
    }
    td_dist_destroy();
    return 0;
}

static void test_staged_that_nobody_waits_for(void **state)
{
    (void)state;
    procs_succeed(2, 60, careless_rank, NULL);
}

/* ---- the real library, without a GPU ---- */

static void test_real_library(void **state)
{
    (void)state;
    const td_nccl_api *real = td_nccl_load();
    if (real == NULL) {
        assert_non_null(strstr(td_last_error(), "NCCL"));
        print_message("no NCCL here: %s\n", td_last_error());
        skip();
    }
    int version = 0;
    assert_int_equal(real->get_version(&version), TD_NCCL_SUCCESS);
    assert_true(version >= 21800);
    td_nccl_id a, b;
    assert_int_equal(real->get_unique_id(&a), TD_NCCL_SUCCESS);
    assert_int_equal(real->get_unique_id(&b), TD_NCCL_SUCCESS);
    assert_memory_not_equal(&a, &b, sizeof a);
}

static int init_rank(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20);
    td_group *group = td_dist_world();
    td_device_engine *e;
    td_status status = td_nccl_engine_new(td_nccl_load(), &fake_streams,
                                          &(td_nccl_options){ .rank = rank,
                                                              .size = size,
                                                              .store = group->store,
                                                              .name = "real",
                                                              .device = TD_CPU,
                                                              .timeout = 10 },
                                          &e);
    REQUIRE(status != TD_OK && e == NULL);
    REQUIRE(strstr(td_last_error(), "NCCL: joining 2 ranks") != NULL);
    td_dist_destroy();
    return 0;
}

/* Where there is no GPU the id goes through the store, and joining fails on all ranks, named. */
static void test_real_init_fails_without_gpu(void **state)
{
    (void)state;
    if (td_nccl_load() == NULL || access("/dev/nvidiactl", F_OK) == 0) {
        skip();
    }
    procs_succeed(2, 60, init_rank, NULL);
}

static int missing_rank(int rank, int size, void *arg)
{
    (void)arg;
    setenv("TANDEM_NCCL", "/nowhere/libnccl.so.2", 1);
    procs_init(rank, size, 20);
    REQUIRE(td_nccl_load() == NULL);
    REQUIRE(strstr(td_last_error(), "/nowhere/libnccl.so.2") != NULL);
    REQUIRE(strstr(td_last_error(), "TANDEM_NCCL") != NULL);
    td_dist_destroy();
    return 0;
}

static void test_missing_library_is_named(void **state)
{
    (void)state;
    procs_succeed(1, 30, missing_rank, NULL);
}

#define with_folder(test)                                                                          \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_library_is_named),
        cmocka_unit_test(test_staged),
        cmocka_unit_test(test_staged_while_another_waits),
        cmocka_unit_test(test_staged_wait_with_a_timeout),
        cmocka_unit_test(test_staged_that_nobody_waits_for),
        cmocka_unit_test(test_real_init_fails_without_gpu),
        with_folder(test_ddp_schedule),
        with_folder(test_watchdog),
        with_folder(test_a_wait_with_a_timeout),
        cmocka_unit_test(test_real_library),
    };
    return cmocka_run_group_tests_name("dist: collectives on GPUs", tests, NULL, NULL);
}
