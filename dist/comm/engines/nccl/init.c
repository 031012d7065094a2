/* How ranks find each other: NCCL's 128-byte id goes through the store. */
#include "dist/comm/engines/nccl/internal.h"

#include "tensor/clock.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Rank 0's entry in the store: the id, or why there is none. */
typedef struct message {
    int32_t status; /* td_status */
    td_nccl_id id;
    char reason[384];
} message;

static td_status make_id(const td_nccl_api *api, message *m)
{
    memset(m, 0, sizeof *m);
    td_nccl_result result = api->get_unique_id(&m->id);
    if (result != TD_NCCL_SUCCESS) {
        td_fail(TD_E_UNSUPPORTED, "NCCL gives no id: %s (%s)", api->error_string(result),
                api->last_error(NULL));
        m->status = TD_E_UNSUPPORTED;
        snprintf(m->reason, sizeof m->reason, "%s", td_last_error());
    }
    return (td_status)m->status;
}

static td_status share_id(const td_nccl_api *api, const td_nccl_options *o, td_nccl_id *id)
{
    char key[64];
    snprintf(key, sizeof key, "nccl/%s", o->name);
    message m;
    if (o->rank == 0) {
        td_status made = make_id(api, &m);
        TD_TRY(td_store_set(o->store, key, &m, sizeof m));
        *id = m.id;
        return made == TD_OK ? TD_OK : td_fail(made, "%s", m.reason);
    }
    void *value;
    size_t size;
    TD_TRY(td_store_get(o->store, key, o->timeout, &value, &size));
    bool whole = size == sizeof m;
    if (whole) {
        memcpy(&m, value, sizeof m);
    }
    free(value);
    TD_CHECK(whole, TD_E_MISMATCH,
             "rank 0's NCCL id has %zu bytes instead of %zu: do all ranks "
             "run the same build?",
             size, sizeof m);
    *id = m.id;
    return m.status == TD_OK ? TD_OK : td_fail((td_status)m.status, "rank 0: %.380s", m.reason);
}

/* Most calls are over within 100 us, which a sleep would double. */
static void nccl_wait_a_little(double begun)
{
    if (td_clock() - begun < 1e-4) {
        sched_yield();
    } else {
        nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
    }
}

td_status td_nccl_settle(td_nccl_engine *e, int result, double deadline, const char *what)
{
    double begun = td_clock();
    while (result == TD_NCCL_IN_PROGRESS) {
        int state = TD_NCCL_SUCCESS;
        int asked = e->api->async_error(e->comm, &state);
        result = asked != TD_NCCL_SUCCESS ? asked : state;
        if (result != TD_NCCL_IN_PROGRESS) {
            break;
        }
        TD_CHECK(td_clock() < deadline, TD_E_TIMEOUT,
                 "NCCL: %s is not done after its time: has every rank come, and do they "
                 "reach each other (NCCL_SOCKET_IFNAME, NCCL_DEBUG=INFO)?",
                 what);
        if (atomic_load(&e->aborted) || (e->broken != NULL && e->broken(e->user))) {
            return td_fail(TD_E_PEER, "NCCL: %s was given up: the group is broken", what);
        }
        nccl_wait_a_little(begun);
    }
    TD_CHECK(result == TD_NCCL_SUCCESS, TD_E_PEER, "NCCL: %s failed: %s (%s)", what,
             e->api->error_string(result), e->api->last_error(e->comm));
    return TD_OK;
}

static td_status join_communicator(td_nccl_engine *e, const td_nccl_options *o, td_nccl_id id)
{
    td_nccl_config config = { .size = sizeof config,
                              .magic = TD_NCCL_CONFIG_MAGIC,
                              .version = TD_NCCL_CONFIG_VERSION,
                              .blocking = 0,
                              .cga_cluster_size = TD_NCCL_UNDEFINED,
                              .min_ctas = TD_NCCL_UNDEFINED,
                              .max_ctas = TD_NCCL_UNDEFINED,
                              .split_share = TD_NCCL_UNDEFINED };
    double deadline = td_clock() + o->timeout;
    int result = e->api->init_rank_config(&e->comm, o->size, id, o->rank, &config);
    char what[96];
    snprintf(what, sizeof what, "joining %d ranks as rank %d on %s", o->size, o->rank,
             td_device_name(o->device));
    return td_nccl_settle(e, result, deadline, what);
}

td_status td_nccl_engine_new(const td_nccl_api *api, const td_streams *streams,
                             const td_nccl_options *o, td_device_engine **engine)
{
    td_nccl_id id;
    *engine = NULL;
    TD_TRY(share_id(api, o, &id));
    td_nccl_engine *e = calloc(1, sizeof *e);
    TD_CHECK(e != NULL, TD_E_NOMEM, "no memory for the NCCL engine");
    td_nccl_engine_init(e, api, streams, o);
    td_status status = join_communicator(e, o, id);
    status = status == TD_OK ? streams->stream_new(o->device, &e->stream) : status;
    if (status != TD_OK) {
        char text[1024];
        snprintf(text, sizeof text, "%s", td_last_error());
        e->base.type->abort(&e->base);
        e->base.type->destroy(&e->base);
        return td_fail(status, "%s", text);
    }
    *engine = &e->base;
    return TD_OK;
}
