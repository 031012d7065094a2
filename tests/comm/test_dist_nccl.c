/* The NCCL engine without a GPU: the schedule of launches and waits, recorded by doubles of NCCL
 * and of the device's streams, held against the specification; errors; several threads. */
#include "tensor/clock.h"
#include "tandem.h"
#include "tests/comm/nccl_double.h"
#include "tests/help/temp_folder.h"

#include <pthread.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static td_collective collective(td_collective_kind kind, td_dtype dtype, td_reduction op, int peer)
{
    return (td_collective){ .kind = kind,
                            .dtype = dtype,
                            .op = op,
                            .peer = peer,
                            .in = (void *)0x1000,
                            .out = (void *)0x2000,
                            .count = 5,
                            .deadline = 1e300 };
}

static uint64_t launch(td_device_engine *e, td_collective c)
{
    uint64_t ticket = 0;
    assert_int_equal(e->type->launch(e, &c, &ticket), TD_OK);
    return ticket;
}

static void test_init_is_polled(void **state)
{
    (void)state;
    td_device_engine *e = fake_engine_open(4);
    assert_string_equal(fake.text, "init rank 0 of 4, id 42, blocking 0\n");
    assert_int_equal(fake.polls, 4);
    assert_int_equal(fake.streams, 1);
    e->type->destroy(e);
    assert_int_equal(fake.destroys, 1);
    assert_int_equal(fake.aborts, 0);
    assert_int_equal(fake.streams, 0);
}

/* Every rank gets rank 0's id, and nobody waits longer than it should for others that do not come.
 */
static void test_init_times_out(void **state)
{
    (void)state;
    fake = (nccl_double){ .length = 0 };
    fake.ready_after = -1;
    td_store *store = fake_store_open();
    td_device_engine *e;
    assert_int_equal(fake_engine_new(store, 1, 2, 0.1, &e), TD_E_TIMEOUT); /* no id */
    assert_null(e);
    assert_int_equal(fake_engine_new(store, 0, 2, 0.1, &e), TD_E_TIMEOUT);
    assert_non_null(strstr(td_last_error(), "joining 2 ranks as rank 0"));
    fake_assert_aborted();
    fake_forget();
    fake.ready_after = 0;
    fake.init_state = 6;
    assert_int_equal(fake_engine_new(store, 1, 2, 0.1, &e), TD_E_PEER);
    assert_non_null(strstr(td_last_error(), "remote process exited (socket closed)"));
    assert_string_equal(fake.text, "init rank 1 of 2, id 42, blocking 0\n"); /* rank 0's id */
    td_store_close(store);
}

/* The specification: an event of the compute stream per bucket, for which the communication stream
 * waits; the buckets in order; one event for the optimizer. */
static void test_schedule(void **state)
{
    (void)state;
    td_device_engine *e = fake_engine_open(2);
    fake_forget();
    td_collective c = collective(TD_COLLECTIVE_ALL_REDUCE, TD_F32, TD_AVERAGE, 0);
    c.out = (void *)0x1000;
    uint64_t first = launch(e, c);
    c.dtype = TD_BF16;
    uint64_t second = launch(e, c);
    assert_string_equal(fake.text, "record e1 on compute\n"
                                   "comm waits for e1\n"
                                   "all_reduce 5 of type 7, op 4, in place, on comm\n"
                                   "record e2 on comm\n"
                                   "record e3 on compute\n"
                                   "comm waits for e3\n"
                                   "all_reduce 5 of type 9, op 4, in place, on comm\n"
                                   "record e4 on comm\n");
    fake_forget();
    assert_int_equal(e->type->join_all(e), TD_OK);
    assert_int_equal(e->type->join(e, first), TD_OK);
    assert_int_equal(e->type->join(e, second), TD_OK);
    assert_string_equal(fake.text, "compute waits for e4\n");
    e->type->destroy(e);
}

/* Events of a recording are not asked for; what follows it is watched. */
static void test_recorded(void **state)
{
    (void)state;
    td_device_engine *e = fake_engine_open(2);
    td_collective c = collective(TD_COLLECTIVE_ALL_REDUCE, TD_F32, TD_AVERAGE, 0), oldest;
    double begun;
    assert_int_equal(e->type->record(e, true), TD_OK);
    uint64_t ticket = launch(e, c);
    fake.reached = true;
    assert_false(e->type->reached(e, ticket));
    assert_int_equal(e->type->join_all(e), TD_OK);
    assert_int_equal(e->type->record(e, false), TD_OK);
    fake.reached = false;
    assert_true(e->type->reached(e, ticket));
    assert_int_equal(e->type->look(e, &oldest, &begun), TD_OK);
    assert_true(begun == 0);
    fake_forget();
    c.kind = TD_COLLECTIVE_REPLAY;
    assert_int_equal(e->type->launched(e, &c), TD_OK);
    assert_int_equal(e->type->look(e, &oldest, &begun), TD_OK);
    assert_true(begun > 0);
    assert_int_equal(oldest.kind, TD_COLLECTIVE_REPLAY);
    assert_int_equal(e->type->join_all(e), TD_OK); /* it is the compute stream's own */
    assert_string_equal(fake.text, "record e4 on compute\n");
    e->type->destroy(e);
}

/* What was launched before a recording is not asked for within it, and waited for after it. */
static void test_recorded_while_running(void **state)
{
    (void)state;
    td_device_engine *e = fake_engine_open(2);
    td_collective c = collective(TD_COLLECTIVE_ALL_REDUCE, TD_F32, TD_AVERAGE, 0);
    uint64_t before = launch(e, c);
    assert_int_equal(e->type->record(e, true), TD_OK);
    uint64_t inside = launch(e, c);
    fake.reached = true;
    assert_false(e->type->reached(e, before));
    assert_int_equal(e->type->join_all(e), TD_OK);
    assert_int_equal(e->type->record(e, false), TD_OK);
    fake.reached = false;
    assert_false(e->type->reached(e, inside)); /* the one before it still runs */
    fake_forget();
    assert_int_equal(e->type->join(e, inside), TD_OK);
    assert_string_equal(fake.text, "");
    assert_int_equal(e->type->join(e, before), TD_OK);
    assert_string_equal(fake.text, "compute waits for e2\n");
    fake.reached = true;
    assert_true(e->type->reached(e, inside));
    e->type->destroy(e);
}

/* Each joined alone, where somebody wants the first only. */
static void test_joins_one_by_one(void **state)
{
    (void)state;
    td_device_engine *e = fake_engine_open(2);
    td_collective c = collective(TD_COLLECTIVE_ALL_REDUCE, TD_F32, TD_SUM, 0);
    uint64_t first = launch(e, c), second = launch(e, c);
    fake_forget();
    assert_int_equal(e->type->join(e, first), TD_OK);
    assert_string_equal(fake.text, "compute waits for e2\n");
    assert_int_equal(e->type->join(e, second), TD_OK);
    assert_string_equal(fake.text, "compute waits for e2\ncompute waits for e4\n");
    e->type->destroy(e);
}

/* However many are under way: each counts as over when its own event has been reached. */
static void test_many_under_way(void **state)
{
    (void)state;
    enum { MANY = 500 };
    td_device_engine *e = fake_engine_open(2);
    td_collective c = collective(TD_COLLECTIVE_ALL_REDUCE, TD_F32, TD_SUM, 0), oldest;
    uint64_t tickets[MANY];
    double begun;
    fake.quiet = true;
    for (int i = 0; i < MANY; i++) {
        c.number = (uint64_t)i;
        tickets[i] = launch(e, c);
    }
    assert_int_equal(fake.events, 2 * MANY);
    assert_false(e->type->reached(e, tickets[0]));
    assert_int_equal(e->type->look(e, &oldest, &begun), TD_OK);
    assert_true(begun > 0.0 && oldest.number == 0);
    for (int i = 0; i < MANY; i += 99) {
        fake.over = 2 * (i + 1); /* the done event of the i-th */
        assert_true(e->type->reached(e, tickets[i]));
        assert_false(e->type->reached(e, tickets[i + 1]));
        assert_int_equal(e->type->look(e, &oldest, &begun), TD_OK);
        assert_true(begun > 0.0 && oldest.number == (uint64_t)i + 1);
    }
    /* Joined: the wait is for the one's own event, and there is none for what is over. */
    fake.quiet = false;
    fake_forget();
    assert_int_equal(e->type->join(e, tickets[10]), TD_OK);
    assert_string_equal(fake.text, "");
    assert_int_equal(e->type->join(e, tickets[497]), TD_OK);
    assert_string_equal(fake.text, "compute waits for e996\n");
    /* What is over gives its place back: there are no new events. */
    fake.quiet = true;
    fake.reached = true;
    for (int i = 0; i < 3 * MANY; i++) {
        tickets[0] = launch(e, c);
    }
    assert_true(fake.events <= 4 * MANY);
    assert_true(e->type->reached(e, tickets[0]));
    e->type->destroy(e);
}

static void expect_calls(td_device_engine *e, td_collective c, const char *calls)
{
    fake_forget();
    launch(e, c);
    const char *begin = strstr(fake.text, "comm waits");
    assert_non_null(begin);
    begin = strchr(begin, '\n') + 1;
    assert_int_equal(strncmp(begin, calls, strlen(calls)), 0);
    assert_int_equal(strncmp(begin + strlen(calls), "record e", 8), 0);
}

static void test_every_collective(void **state)
{
    (void)state;
    td_device_engine *e = fake_engine_open(3);
    static const struct {
        td_dtype dtype;
        int type;
    } types[] = { { TD_F32, 7 }, { TD_F64, 8 }, { TD_F16, 6 }, { TD_BF16, 9 },
                  { TD_I64, 4 }, { TD_I32, 2 }, { TD_U8, 1 } };
    static const int ops[] = {
        [TD_SUM] = 0, [TD_PRODUCT] = 1, [TD_MAX] = 2, [TD_MIN] = 3, [TD_AVERAGE] = 4
    };
    for (int i = 0; i < 7; i++) {
        for (int op = TD_SUM; op <= TD_PRODUCT; op++) {
            char line[80];
            snprintf(line, sizeof line, "reduce 5 of type %d, op %d, to 2\n", types[i].type,
                     ops[op]);
            expect_calls(e, collective(TD_COLLECTIVE_REDUCE, types[i].dtype, (td_reduction)op, 2),
                         line);
        }
    }
    expect_calls(e, collective(TD_COLLECTIVE_BROADCAST, TD_U8, TD_SUM, 1),
                 "broadcast 5 of type 1 from 1 on comm\n");
    expect_calls(e, collective(TD_COLLECTIVE_ALL_GATHER, TD_F64, TD_SUM, 0),
                 "all_gather 5 of type 8\n");
    expect_calls(e, collective(TD_COLLECTIVE_REDUCE_SCATTER, TD_F32, TD_MAX, 0),
                 "reduce_scatter 5 of type 7, op 2\n");
    /* Rank 0 of three. */
    expect_calls(e, collective(TD_COLLECTIVE_GATHER, TD_F32, TD_SUM, 0),
                 "group {\n"
                 "send 5 of type 7 from 0 to 0\nrecv 5 of type 7 at 0 from 0\n"
                 "recv 5 of type 7 at 20 from 1\nrecv 5 of type 7 at 40 from 2\n}\n");
    expect_calls(e, collective(TD_COLLECTIVE_GATHER, TD_F32, TD_SUM, 2),
                 "group {\nsend 5 of type 7 from 0 to 2\n}\n");
    expect_calls(e, collective(TD_COLLECTIVE_SCATTER, TD_F32, TD_SUM, 1),
                 "group {\nrecv 5 of type 7 at 0 from 1\n}\n");
    expect_calls(e, collective(TD_COLLECTIVE_SCATTER, TD_F32, TD_SUM, 0),
                 "group {\n"
                 "send 5 of type 7 from 0 to 0\nrecv 5 of type 7 at 0 from 0\n"
                 "send 5 of type 7 from 20 to 1\nsend 5 of type 7 from 40 to 2\n}\n");
    expect_calls(e, collective(TD_COLLECTIVE_ALL_TO_ALL, TD_U8, TD_SUM, 0),
                 "group {\n"
                 "send 5 of type 1 from 0 to 0\nrecv 5 of type 1 at 0 from 0\n"
                 "send 5 of type 1 from 5 to 1\nrecv 5 of type 1 at 5 from 1\n"
                 "send 5 of type 1 from 10 to 2\nrecv 5 of type 1 at 10 from 2\n}\n");
    e->type->destroy(e);
}

static void test_abort_and_asynchronous_errors(void **state)
{
    (void)state;
    td_device_engine *e = fake_engine_open(2);
    td_collective c = collective(TD_COLLECTIVE_ALL_REDUCE, TD_F32, TD_SUM, 0), oldest;
    double begun;
    assert_int_equal(e->type->look(e, &oldest, &begun), TD_OK);
    assert_true(begun == 0.0);
    c.number = 3;
    launch(e, c);
    c.number = 4;
    launch(e, c);
    assert_int_equal(e->type->look(e, &oldest, &begun), TD_OK);
    assert_true(begun > 0.0 && oldest.number == 3);
    fake.init_state = 6; /* the peer has died */
    assert_int_equal(e->type->look(e, &oldest, &begun), TD_E_PEER);
    assert_non_null(strstr(td_last_error(), "remote process exited (socket closed)"));
    fake.graph_lives = true; /* NCCL's own abort now blocks, the engine's must not */
    e->type->abort(e);
    e->type->abort(e);
    uint64_t ticket;
    assert_int_equal(e->type->launch(e, &c, &ticket), TD_E_INTERRUPTED);
    assert_int_equal(e->type->look(e, &oldest, &begun), TD_OK);
    e->type->destroy(e);
    assert_int_equal(fake.aborts, 0);
    fake.graph_lives = false;
    fake_assert_aborted();
    assert_int_equal(fake.destroys, 0); /* abort frees it */
}

/* ---- several threads, as they come in a program ---- */

typedef struct crowd {
    td_device_engine *engine;
    atomic_bool stops;
    atomic_uint_fast64_t last; /* ticket */
    atomic_int looks;
} crowd;

/* As the watchdog. */
static void *look_on(void *arg)
{
    crowd *all = arg;
    while (!atomic_load(&all->stops)) {
        td_collective oldest;
        double begun;
        (void)all->engine->type->look(all->engine, &oldest, &begun);
        atomic_fetch_add(&all->looks, 1);
    }
    return NULL;
}

/* As a program's second thread, which asks whether a work is done. */
static void *ask_on(void *arg)
{
    crowd *all = arg;
    while (!atomic_load(&all->stops)) {
        uint64_t ticket = atomic_load(&all->last);
        if (ticket > 0) {
            (void)all->engine->type->reached(all->engine, ticket);
        }
        fake.over++;
    }
    return NULL;
}

/* One launches and joins; the watchdog looks, another asks; in the end it is aborted under them. */
static void test_threads(void **state)
{
    (void)state;
    crowd all = { .engine = fake_engine_open(2) };
    td_device_engine *e = all.engine;
    td_collective c = collective(TD_COLLECTIVE_ALL_REDUCE, TD_F32, TD_SUM, 0);
    pthread_t watchdog, other;
    fake.quiet = true;
    assert_int_equal(pthread_create(&watchdog, NULL, look_on, &all), 0);
    assert_int_equal(pthread_create(&other, NULL, ask_on, &all), 0);
    for (int i = 0; i < 2000; i++) {
        uint64_t ticket = launch(e, c);
        atomic_store(&all.last, ticket);
        if (i % 3 == 0) {
            assert_int_equal(e->type->join(e, ticket), TD_OK);
        }
    }
    while (atomic_load(&all.looks) < 10) {
        td_sleep(0.001);
    }
    e->type->abort(e);
    uint64_t ticket;
    assert_int_equal(e->type->launch(e, &c, &ticket), TD_E_INTERRUPTED);
    atomic_store(&all.stops, true);
    pthread_join(watchdog, NULL);
    pthread_join(other, NULL);
    fake_assert_aborted();
    e->type->destroy(e);
}

#define with_folder(test)                                                                          \
    cmocka_unit_test_setup_teardown(test, temp_folder_setup, temp_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_folder(test_init_is_polled),
        with_folder(test_init_times_out),
        with_folder(test_schedule),
        with_folder(test_recorded),
        with_folder(test_recorded_while_running),
        with_folder(test_joins_one_by_one),
        with_folder(test_many_under_way),
        with_folder(test_every_collective),
        with_folder(test_threads),
        with_folder(test_abort_and_asynchronous_errors),
    };
    return cmocka_run_group_tests_name("dist: the NCCL engine", tests, NULL, NULL);
}
