/* A double of NCCL that logs each call. */
#include "tests/comm/nccl_double.h"

#include "tensor/clock.h"
#include "tests/help/temp_folder.h"

#include <pthread.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

nccl_double fake;

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

void fake_forget(void)
{
    fake.length = 0;
    fake.text[0] = '\0';
}

void fake_assert_aborted(void)
{
    enum { PATIENCE = 20 }; /* seconds */
    double end = td_clock() + PATIENCE;
    while (fake.aborts == 0 && td_clock() < end) {
        td_sleep(0.001);
    }
    assert_int_equal(fake.aborts, 1);
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
    (void)device;
    *reached = fake.reached || of(event) <= fake.over;
    return TD_OK;
}

static void fake_place(td_device device, char *text, size_t size)
{
    (void)device;
    snprintf(text, size, "fake");
}

const td_streams fake_streams = {
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

/* The thread that aborts, which nobody joins, before a new engine's beginning. */
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

static td_nccl_result fake_abort(td_nccl_comm comm)
{
    (void)comm;
    while (fake.graph_lives) {
        td_sleep(0.001);
    }
    pthread_mutex_lock(&counting);
    fake.aborts++;
    pthread_mutex_unlock(&counting);
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

const td_nccl_api fake_nccl = {
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

td_store *fake_store_open(void)
{
    td_store *store;
    assert_int_equal(td_file_store_open(temp_path("store"), NULL, 5, &store), TD_OK);
    return store;
}

td_status fake_engine_new(td_store *store, int rank, int size, double timeout,
                          td_device_engine **engine)
{
    return td_nccl_engine_new(&fake_nccl, &fake_streams,
                              &(td_nccl_options){ .rank = rank,
                                                  .size = size,
                                                  .store = store,
                                                  .name = "test",
                                                  .device = TD_CPU,
                                                  .timeout = timeout },
                              engine);
}

td_device_engine *fake_engine_open(int size)
{
    pthread_mutex_lock(&counting);
    fake = (nccl_double){ .length = 0 };
    pthread_mutex_unlock(&counting);
    fake.ready_after = 3;
    td_store *store = fake_store_open();
    td_device_engine *engine;
    assert_int_equal(fake_engine_new(store, 0, size, 5, &engine), TD_OK);
    td_store_close(store);
    return engine;
}
