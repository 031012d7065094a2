/* The NCCL engine without a GPU: the schedule of launches and waits, recorded by doubles of NCCL
 * and of the device's streams, held against the specification; DDP over them; the real library's
 * id, and how its start fails where there is no GPU; the way by the host. */
#include "dist/device_engine.h"
#include "dist/group.h"
#include "dist/nccl/nccl.h"
#include "dist/staged.h"
#include "tandem.h"
#include "tests/dist_procs.h"
#include "tests/temp_folder.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- doubles: every call is a line of the log ---- */

static struct {
    char text[16384];
    size_t length;
    int events, streams;
    int init_state;  /* what async_error says */
    int polls;       /* how often it was asked */
    int ready_after; /* polls until the communicator has joined; negative: never */
    int aborts, destroys;
    bool reached;
    bool copies; /* a group of one whose memory is real: what goes in comes out */
    bool quiet;  /* nothing is written */
} fake;

static void note(const char *format, ...)
{
    if (fake.quiet) {
        return;
    }
    va_list list;
    va_start(list, format);
    int n = vsnprintf(fake.text + fake.length, sizeof fake.text - fake.length, format, list);
    va_end(list);
    fake.length += (size_t)n;
    assert_true(fake.length < sizeof fake.text);
}

static void forget(void)
{
    fake.length = 0;
    fake.text[0] = '\0';
}

static void *number(int n)
{
    return (void *)(uintptr_t)n;
}

static int of(const void *handle)
{
    return (int)(uintptr_t)handle;
}

enum { COMPUTE = 100, COMM = 1 };

static void *fake_compute(td_device device)
{
    (void)device;
    return number(COMPUTE);
}

static const char *stream_name(const void *stream)
{
    return of(stream) == COMPUTE ? "compute" : "comm";
}

static td_status fake_stream_new(td_device device, void **stream)
{
    (void)device;
    *stream = number(++fake.streams);
    return TD_OK;
}

static void fake_stream_free(td_device device, void *stream)
{
    (void)device, (void)stream;
    fake.streams--;
}

static td_status fake_event_new(td_device device, void **event)
{
    (void)device;
    *event = number(++fake.events);
    return TD_OK;
}

static void fake_event_free(td_device device, void *event)
{
    (void)device, (void)event;
}

static td_status fake_record(td_device device, void *event, void *stream)
{
    (void)device;
    note("record e%d on %s\n", of(event), stream_name(stream));
    return TD_OK;
}

static td_status fake_wait(td_device device, void *stream, void *event)
{
    (void)device;
    note("%s waits for e%d\n", stream_name(stream), of(event));
    return TD_OK;
}

static td_status fake_reached(td_device device, void *event, bool *reached)
{
    (void)device, (void)event;
    *reached = fake.reached;
    return TD_OK;
}

static void fake_place(td_device device, char *text, size_t size)
{
    (void)device;
    snprintf(text, size, "fake");
}

static const td_streams streams = {
    .compute = fake_compute,
    .stream_new = fake_stream_new,
    .stream_free = fake_stream_free,
    .event_new = fake_event_new,
    .event_free = fake_event_free,
    .record = fake_record,
    .wait = fake_wait,
    .reached = fake_reached,
    .place = fake_place,
};

static td_nccl_result fake_version(int *version)
{
    *version = 22809;
    return TD_NCCL_SUCCESS;
}

static td_nccl_result fake_id(td_nccl_id *id)
{
    memset(id->bytes, 42, sizeof id->bytes);
    return TD_NCCL_SUCCESS;
}

static td_nccl_result fake_init(td_nccl_comm *comm, int size, td_nccl_id id, int rank,
                                td_nccl_config *config)
{
    note("init rank %d of %d, id %d, blocking %d\n", rank, size, id.bytes[127], config->blocking);
    *comm = number(7);
    return TD_NCCL_IN_PROGRESS;
}

static td_nccl_result fake_async(td_nccl_comm comm, int *result)
{
    assert_int_equal(of(comm), 7);
    fake.polls++;
    bool joining = fake.ready_after < 0 || fake.polls <= fake.ready_after;
    *result = joining ? TD_NCCL_IN_PROGRESS : fake.init_state;
    return TD_NCCL_SUCCESS;
}

static td_nccl_result fake_finalize(td_nccl_comm comm)
{
    (void)comm;
    return TD_NCCL_SUCCESS;
}

static td_nccl_result fake_destroy(td_nccl_comm comm)
{
    (void)comm;
    fake.destroys++;
    return TD_NCCL_SUCCESS;
}

static td_nccl_result fake_abort(td_nccl_comm comm)
{
    (void)comm;
    fake.aborts++;
    return TD_NCCL_SUCCESS;
}

static td_nccl_result fake_group_start(void)
{
    note("group {\n");
    return TD_NCCL_SUCCESS;
}

static td_nccl_result fake_group_end(void)
{
    note("}\n");
    return TD_NCCL_SUCCESS;
}

static td_nccl_result fake_all_reduce(const void *in, void *out, size_t count, int type, int op,
                                      td_nccl_comm comm, void *stream)
{
    (void)comm;
    note("all_reduce %zu of type %d, op %d, %s, on %s\n", count, type, op,
         in == out ? "in place" : "copied", stream_name(stream));
    return TD_NCCL_IN_PROGRESS; /* as a non-blocking communicator may say */
}

static td_nccl_result fake_broadcast(const void *in, void *out, size_t count, int type, int root,
                                     td_nccl_comm comm, void *stream)
{
    (void)in, (void)out, (void)comm;
    note("broadcast %zu of type %d from %d on %s\n", count, type, root, stream_name(stream));
    return TD_NCCL_SUCCESS;
}

static td_nccl_result fake_reduce(const void *in, void *out, size_t count, int type, int op,
                                  int root, td_nccl_comm comm, void *stream)
{
    (void)in, (void)out, (void)comm, (void)stream;
    note("reduce %zu of type %d, op %d, to %d\n", count, type, op, root);
    return TD_NCCL_SUCCESS;
}

static td_nccl_result fake_all_gather(const void *in, void *out, size_t count, int type,
                                      td_nccl_comm comm, void *stream)
{
    (void)comm, (void)stream;
    static const size_t sizes[] = {
        [TD_NCCL_U8] = 1,  [TD_NCCL_I32] = 4, [TD_NCCL_I64] = 8, [TD_NCCL_F16] = 2,
        [TD_NCCL_F32] = 4, [TD_NCCL_F64] = 8, [TD_NCCL_BF16] = 2
    };
    if (fake.copies) {
        memcpy(out, in, count * sizes[type]);
    }
    note("all_gather %zu of type %d\n", count, type);
    return TD_NCCL_SUCCESS;
}

static td_nccl_result fake_reduce_scatter(const void *in, void *out, size_t count, int type, int op,
                                          td_nccl_comm comm, void *stream)
{
    (void)in, (void)out, (void)comm, (void)stream;
    note("reduce_scatter %zu of type %d, op %d\n", count, type, op);
    return TD_NCCL_SUCCESS;
}

static td_nccl_result fake_send(const void *in, size_t count, int type, int peer, td_nccl_comm comm,
                                void *stream)
{
    (void)comm, (void)stream;
    note("send %zu of type %d from %td to %d\n", count, type, (const char *)in - (char *)0x1000,
         peer);
    return TD_NCCL_SUCCESS;
}

static td_nccl_result fake_recv(void *out, size_t count, int type, int peer, td_nccl_comm comm,
                                void *stream)
{
    (void)comm, (void)stream;
    note("recv %zu of type %d at %td from %d\n", count, type, (char *)out - (char *)0x2000, peer);
    return TD_NCCL_SUCCESS;
}

static const char *fake_error(int result)
{
    return result == TD_NCCL_SUCCESS ? "no error" : "remote process exited";
}

static const char *fake_last(td_nccl_comm comm)
{
    (void)comm;
    return "socket closed";
}

static const td_nccl_api api = {
    .get_version = fake_version,
    .get_unique_id = fake_id,
    .init_rank_config = fake_init,
    .async_error = fake_async,
    .finalize = fake_finalize,
    .destroy = fake_destroy,
    .abort = fake_abort,
    .group_start = fake_group_start,
    .group_end = fake_group_end,
    .all_reduce = fake_all_reduce,
    .broadcast = fake_broadcast,
    .reduce = fake_reduce,
    .all_gather = fake_all_gather,
    .reduce_scatter = fake_reduce_scatter,
    .send = fake_send,
    .recv = fake_recv,
    .error_string = fake_error,
    .last_error = fake_last,
};

/* ---- an engine of its own ---- */

static td_store *open_store(void)
{
    td_store *store;
    assert_int_equal(td_file_store_open(temp_path("store"), NULL, 5, &store), TD_OK);
    return store;
}

static td_status new_engine(td_store *store, int rank, int size, double timeout,
                            td_device_engine **engine)
{
    return td_nccl_engine_new(&api, &streams,
                              &(td_nccl_options){ .rank = rank,
                                                  .size = size,
                                                  .store = store,
                                                  .name = "test",
                                                  .device = TD_CPU,
                                                  .timeout = timeout },
                              engine);
}

static td_device_engine *open_engine(int size)
{
    memset(&fake, 0, sizeof fake);
    fake.ready_after = 3;
    td_store *store = open_store();
    td_device_engine *engine;
    assert_int_equal(new_engine(store, 0, size, 5, &engine), TD_OK);
    td_store_close(store);
    return engine;
}

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
    td_device_engine *e = open_engine(4);
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
    memset(&fake, 0, sizeof fake);
    fake.ready_after = -1;
    td_store *store = open_store();
    td_device_engine *e;
    assert_int_equal(new_engine(store, 1, 2, 0.1, &e), TD_E_TIMEOUT); /* no id */
    assert_null(e);
    assert_int_equal(new_engine(store, 0, 2, 0.1, &e), TD_E_TIMEOUT);
    assert_non_null(strstr(td_last_error(), "joining 2 ranks as rank 0"));
    assert_int_equal(fake.aborts, 1);
    forget();
    fake.ready_after = 0;
    fake.init_state = 6;
    assert_int_equal(new_engine(store, 1, 2, 0.1, &e), TD_E_PEER);
    assert_non_null(strstr(td_last_error(), "remote process exited (socket closed)"));
    assert_string_equal(fake.text, "init rank 1 of 2, id 42, blocking 0\n"); /* rank 0's id */
    td_store_close(store);
}

/* The specification: an event of the compute stream per bucket, for which the communication stream
 * waits; the buckets in order; one event for the optimizer. */
static void test_schedule(void **state)
{
    (void)state;
    td_device_engine *e = open_engine(2);
    forget();
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
    forget();
    assert_int_equal(e->type->join_all(e), TD_OK);
    assert_int_equal(e->type->join(e, first), TD_OK);
    assert_int_equal(e->type->join(e, second), TD_OK);
    assert_string_equal(fake.text, "compute waits for e4\n");
    e->type->destroy(e);
}

/* Each joined alone, where somebody wants the first only. */
static void test_joins_one_by_one(void **state)
{
    (void)state;
    td_device_engine *e = open_engine(2);
    td_collective c = collective(TD_COLLECTIVE_ALL_REDUCE, TD_F32, TD_SUM, 0);
    uint64_t first = launch(e, c), second = launch(e, c);
    forget();
    assert_int_equal(e->type->join(e, first), TD_OK);
    assert_string_equal(fake.text, "compute waits for e2\n");
    assert_int_equal(e->type->join(e, second), TD_OK);
    assert_string_equal(fake.text, "compute waits for e2\ncompute waits for e4\n");
    /* More than are remembered: events are used again. */
    for (int i = 0; i < 500; i++) {
        forget();
        second = launch(e, c);
    }
    assert_int_equal(fake.events, 128);
    fake.reached = false;
    assert_false(e->type->reached(e, second));
    fake.reached = true;
    assert_true(e->type->reached(e, second));
    e->type->destroy(e);
}

static void expect_calls(td_device_engine *e, td_collective c, const char *calls)
{
    forget();
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
    td_device_engine *e = open_engine(3);
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
    td_device_engine *e = open_engine(2);
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
    e->type->abort(e);
    e->type->abort(e);
    assert_int_equal(fake.aborts, 1);
    uint64_t ticket;
    assert_int_equal(e->type->launch(e, &c, &ticket), TD_E_INTERRUPTED);
    assert_int_equal(e->type->look(e, &oldest, &begun), TD_OK);
    e->type->destroy(e);
    assert_int_equal(fake.destroys, 0); /* abort has freed it */
}

/* ---- through the group ---- */

static void meet_alone(void)
{
    char url[600];
    snprintf(url, sizeof url, "file://%s", temp_path("meet"));
    td_dist_options options = { .init_method = url, .rank = 0, .world_size = 1, .timeout = 10 };
    assert_int_equal(td_dist_init(&options), TD_OK);
}

/* DDP over the doubles: what the hooks launch while backward runs, and one wait at its end. */
static void test_ddp_schedule(void **state)
{
    (void)state;
    meet_alone();
    td_device_engine *e = open_engine(1);
    fake.copies = true;
    td_device_engine_set(td_dist_world(), e);
    fake.quiet = true;
    td_manual_seed(1);
    td_module *net = td_nn_sequential(td_nn_linear(20, 30), td_nn_relu(), td_nn_linear(30, 5));
    net = td_ddp(net, &(td_ddp_options){ .bucket_cap_mb = 0.0005, .no_broadcast_buffers = true });
    assert_non_null(net);
    td_optim *optim = td_sgd(td_parameters(net), &(td_sgd_options){ .lr = 0.1 });
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
    int buckets = td_ddp_last_figures(net).buckets;
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
    td_device_engine *e = open_engine(1);
    td_device_engine_set(group, e);
    td_tensor *t = td_zeros(TD_SHAPE(3), TD_F32, TD_CPU);
    td_work *work;
    group->timeout = 0.01;
    assert_int_equal(td_all_reduce(group, t, TD_SUM, &work), TD_OK);
    assert_false(td_work_test(work));
    usleep(20000);
    td_device_look(group);
    assert_int_equal(fake.aborts, 1);
    assert_int_equal(td_work_wait(work, 0), TD_E_TIMEOUT);
    assert_non_null(strstr(td_last_error(), "all_reduce number 1 (f32, 3 elements) on cpu:0"));
    assert_int_equal(td_all_reduce(group, t, TD_SUM, NULL), TD_E_TIMEOUT);
    td_free(t);
    td_dist_destroy();
}

/* ---- by way of the host: real ranks, the "device" being CPU memory ---- */

static int staged_rank(int rank, int size, void *arg)
{
    (void)arg;
    procs_init(rank, size, 20);
    td_group *group = td_dist_world();
    td_device_engine_set(group, td_staged_engine_new(group, TD_CPU));
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
    REQUIRE(rank != 0 || td_get(u, (int64_t[]){ 0 }) == size * (size + 1) / 2.0);
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
    td_status status = td_nccl_engine_new(td_nccl_load(), &streams,
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
        cmocka_unit_test(test_real_init_fails_without_gpu),
        with_folder(test_init_is_polled),
        with_folder(test_init_times_out),
        with_folder(test_schedule),
        with_folder(test_joins_one_by_one),
        with_folder(test_every_collective),
        with_folder(test_abort_and_asynchronous_errors),
        with_folder(test_ddp_schedule),
        with_folder(test_watchdog),
        cmocka_unit_test(test_real_library),
    };
    return cmocka_run_group_tests_name("dist: the NCCL engine", tests, NULL, NULL);
}
