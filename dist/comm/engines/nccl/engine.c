/* Launching collectives on GPUs. For each collective an event on the compute stream says that its
 * data is ready. The communication stream waits for this event and runs NCCL's kernel, and a second
 * event says that the kernel is done. Joining makes the compute stream wait for the second event.
 * The communication stream keeps its order, so joining a collective joins all before it: DDP's
 * optimizer waits for one event. */
#include "dist/comm/engines/nccl/internal.h"

#include "tensor/clock.h"
#include "tensor/system/thread.h"

#include "tensor/storage.h"

#include <stdlib.h>

static int nccl_type_of(td_dtype dtype)
{
    static const int types[] = {
        [TD_F32] = TD_NCCL_F32,   [TD_F64] = TD_NCCL_F64, [TD_F16] = TD_NCCL_F16,
        [TD_BF16] = TD_NCCL_BF16, [TD_I64] = TD_NCCL_I64, [TD_I32] = TD_NCCL_I32,
        [TD_U8] = TD_NCCL_U8
    };
    return types[dtype];
}

static int op_of(td_reduction op)
{
    static const int ops[] = { [TD_SUM] = TD_NCCL_SUM,
                               [TD_AVERAGE] = TD_NCCL_AVG,
                               [TD_MIN] = TD_NCCL_MIN,
                               [TD_MAX] = TD_NCCL_MAX,
                               [TD_PRODUCT] = TD_NCCL_PROD };
    return ops[op];
}

/* ---- NCCL's calls ---- */

/* Rank r's piece of a tensor with a piece for each rank. */
static char *piece(const void *all, const td_collective *c, int r)
{
    return (char *)(uintptr_t)all + (size_t)r * (size_t)c->count * td_dtype_size(c->dtype);
}

/* Inside an NCCL group "in progress" counts as success: the end of the group returns the result. */
static int grouped(int result)
{
    return result == TD_NCCL_IN_PROGRESS ? TD_NCCL_SUCCESS : result;
}

/* Collectives that NCCL does not have: sends and receives in one NCCL group, which run at the same
 * time. */
static int nccl_exchange(td_nccl_engine *e, const td_collective *c)
{
    const td_kind *kind = td_kind_of(c->kind);
    bool gives = td_pieces_given(c, e->rank, e->size) > 0;
    bool takes = td_pieces_taken(c, e->rank, e->size) > 0;
    int type = nccl_type_of(c->dtype), result = e->api->group_start();
    for (int r = 0; r < e->size && result == TD_NCCL_SUCCESS; r++) {
        if (gives && td_pieces_taken(c, r, e->size) > 0) {
            const void *from = kind->gives_all ? piece(c->in, c, r) : c->in;
            result = grouped(e->api->send(from, (size_t)c->count, type, r, e->comm, e->stream));
        }
        if (result == TD_NCCL_SUCCESS && takes && td_pieces_given(c, r, e->size) > 0) {
            void *to = kind->takes_all ? piece(c->out, c, r) : c->out;
            result = grouped(e->api->recv(to, (size_t)c->count, type, r, e->comm, e->stream));
        }
    }
    int ended = e->api->group_end();
    return result != TD_NCCL_SUCCESS ? result : ended;
}

static int nccl_call(td_nccl_engine *e, const td_collective *c)
{
    const td_nccl_api *api = e->api;
    size_t count = (size_t)c->count;
    int type = nccl_type_of(c->dtype), op = op_of(c->op);
    switch (c->kind) {
    case TD_COLLECTIVE_ALL_REDUCE:
        return api->all_reduce(c->in, c->out, count, type, op, e->comm, e->stream);
    case TD_COLLECTIVE_BROADCAST:
        return api->broadcast(c->in, c->out, count, type, c->peer, e->comm, e->stream);
    case TD_COLLECTIVE_REDUCE:
        return api->reduce(c->in, c->out, count, type, op, c->peer, e->comm, e->stream);
    case TD_COLLECTIVE_ALL_GATHER:
        return api->all_gather(c->in, c->out, count, type, e->comm, e->stream);
    case TD_COLLECTIVE_REDUCE_SCATTER:
        return api->reduce_scatter(c->in, c->out, count, type, op, e->comm, e->stream);
    case TD_COLLECTIVE_GATHER:
    case TD_COLLECTIVE_SCATTER:
    case TD_COLLECTIVE_ALL_TO_ALL:
        return nccl_exchange(e, c);
    default:
        td_fatal(TD_NOWHERE, "the NCCL engine has no %s", td_kind_of(c->kind)->name);
    }
}

/* ---- the engine ---- */

static td_nccl_slot *slot_of(td_nccl_engine *e, uint64_t ticket)
{
    return &e->slots[ticket % e->slot_count];
}

/* Updates how far the communication stream has come. With the lock. Not while a graph is recorded:
 * a query by the recording thread, even of an older event, would invalidate the recording. */
static td_status find_reached(td_nccl_engine *e, uint64_t until)
{
    while (e->reached < until && !e->recording) {
        td_nccl_slot *slot = slot_of(e, e->reached + 1);
        bool reached = slot->in_graph;
        if (!reached) {
            TD_TRY(e->streams->reached(e->base.device, slot->done, &reached));
        }
        if (!reached) {
            break;
        }
        e->reached++;
    }
    return TD_OK;
}

/* Doubles the number of slots. Used slots keep their events. */
static td_status nccl_grow(td_nccl_engine *e)
{
    uint64_t count = e->slot_count > 0 ? 2 * e->slot_count : TD_NCCL_SLOTS;
    td_nccl_slot *slots = calloc(count, sizeof *slots);
    TD_CHECK(slots != NULL, TD_E_NOMEM, "no memory to remember %llu collectives",
             (unsigned long long)count);
    for (uint64_t i = 1; i <= e->slot_count; i++) { /* the ring is full: the last tickets */
        uint64_t ticket = e->launched - e->slot_count + i;
        slots[ticket % count] = *slot_of(e, ticket);
    }
    free(e->slots);
    e->slots = slots;
    e->slot_count = count;
    return TD_OK;
}

/* A slot for the next ticket. With the lock. */
static td_status nccl_make_room(td_nccl_engine *e)
{
    if (e->launched - e->reached == e->slot_count && e->slot_count > 0) {
        TD_TRY(find_reached(e, e->launched));
    }
    return e->launched - e->reached == e->slot_count ? nccl_grow(e) : TD_OK;
}

static td_status make_events(td_nccl_engine *e, td_nccl_slot *slot)
{
    if (slot->ready == NULL) {
        TD_TRY(e->streams->event_new(e->base.device, &slot->ready));
    }
    return slot->done == NULL ? e->streams->event_new(e->base.device, &slot->done) : TD_OK;
}

/* The next ticket is the slot's. */
static void note_launched(td_nccl_engine *e, td_nccl_slot *slot, const td_collective *c)
{
    slot->ticket = ++e->launched;
    slot->c = *c;
    slot->begun = td_clock();
    slot->in_graph = false;
}

static td_status launch_locked(td_nccl_engine *e, const td_collective *c, td_nccl_slot *slot)
{
    td_device device = e->base.device;
    TD_TRY(make_events(e, slot));
    TD_TRY(e->streams->record(device, slot->ready, e->streams->compute(device)));
    TD_TRY(e->streams->wait(device, e->stream, slot->ready));
    TD_TRY(td_nccl_settle(e, nccl_call(e, c), c->deadline, td_kind_of(c->kind)->name));
    return e->streams->record(device, slot->done, e->stream);
}

static td_status nccl_launch(td_device_engine *engine, const td_collective *c, uint64_t *ticket)
{
    td_nccl_engine *e = (td_nccl_engine *)engine;
    pthread_mutex_lock(&e->lock);
    td_status status = TD_OK;
    if (atomic_load(&e->aborted)) {
        status = td_fail(TD_E_INTERRUPTED, "NCCL: the communicator has been aborted");
    }
    status = status == TD_OK ? nccl_make_room(e) : status;
    td_nccl_slot *slot = status == TD_OK ? slot_of(e, e->launched + 1) : NULL;
    status = status == TD_OK ? launch_locked(e, c, slot) : status;
    if (status == TD_OK) {
        note_launched(e, slot, c);
        *ticket = slot->ticket;
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

static td_status nccl_join(td_device_engine *engine, uint64_t ticket)
{
    td_nccl_engine *e = (td_nccl_engine *)engine;
    td_status status = TD_OK;
    pthread_mutex_lock(&e->lock);
    if (ticket > e->joined && ticket > e->reached) { /* what is done needs no wait */
        td_device device = e->base.device;
        const td_nccl_slot *slot = slot_of(e, ticket);
        if (!slot->in_graph) {
            status = e->streams->wait(device, e->streams->compute(device), slot->done);
            e->joined = status == TD_OK ? ticket : e->joined;
        }
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

static td_status nccl_join_all(td_device_engine *engine)
{
    td_nccl_engine *e = (td_nccl_engine *)engine;
    pthread_mutex_lock(&e->lock);
    uint64_t last = e->launched;
    pthread_mutex_unlock(&e->lock);
    return last > 0 ? nccl_join(engine, last) : TD_OK;
}

/* ---- graphs ---- */

/* Collectives recorded into a graph have tickets like others and are joined inside the graph, but
 * nothing runs until the graph is launched. So when the recording ends nobody needs to wait for
 * them. Collectives from before the recording may still be running; those that were joined stay
 * joined. */
static void end_recording(td_nccl_engine *e)
{
    for (uint64_t ticket = e->recorded + 1; ticket <= e->launched; ticket++) {
        slot_of(e, ticket)->in_graph = true;
    }
    e->joined = e->joined_before == e->recorded ? e->launched : e->joined_before;
}

static td_status nccl_record(td_device_engine *engine, bool begins)
{
    td_nccl_engine *e = (td_nccl_engine *)engine;
    pthread_mutex_lock(&e->lock);
    e->recording = begins;
    if (begins) {
        e->recorded = e->launched;
        e->joined_before = e->joined;
    } else {
        end_recording(e);
    }
    pthread_mutex_unlock(&e->lock);
    return TD_OK;
}

/* Gives a launched graph a ticket, for the watchdog. The graph runs on the compute stream, so
 * nobody needs to join it. */
static td_status note_graph(td_nccl_engine *e, const td_collective *c)
{
    TD_TRY(nccl_make_room(e));
    td_nccl_slot *slot = slot_of(e, e->launched + 1);
    TD_TRY(make_events(e, slot));
    td_device device = e->base.device;
    TD_TRY(e->streams->record(device, slot->done, e->streams->compute(device)));
    e->joined += e->joined == e->launched ? 1 : 0; /* the event is on the compute stream itself */
    note_launched(e, slot, c);
    return TD_OK;
}

static td_status nccl_launched(td_device_engine *engine, const td_collective *c)
{
    td_nccl_engine *e = (td_nccl_engine *)engine;
    pthread_mutex_lock(&e->lock);
    td_status status = note_graph(e, c);
    pthread_mutex_unlock(&e->lock);
    return status;
}

/* ---- looking ---- */

static bool nccl_reached(td_device_engine *engine, uint64_t ticket)
{
    td_nccl_engine *e = (td_nccl_engine *)engine;
    pthread_mutex_lock(&e->lock);
    td_status status = find_reached(e, ticket);
    bool reached = status == TD_OK && e->reached >= ticket;
    pthread_mutex_unlock(&e->lock);
    return reached;
}

static td_status nccl_look(td_device_engine *engine, td_collective *oldest, double *begun)
{
    td_nccl_engine *e = (td_nccl_engine *)engine;
    *begun = 0.0;
    if (atomic_load(&e->aborted) || pthread_mutex_trylock(&e->lock) != 0) {
        return TD_OK; /* a thread is launching, and keeps its own deadline */
    }
    if (atomic_load(&e->aborted)) { /* meanwhile: the communicator is gone */
        pthread_mutex_unlock(&e->lock);
        return TD_OK;
    }
    int state = TD_NCCL_SUCCESS;
    int asked = e->api->async_error(e->comm, &state);
    state = asked != TD_NCCL_SUCCESS ? asked : state;
    td_status status = TD_OK;
    if (state != TD_NCCL_SUCCESS && state != TD_NCCL_IN_PROGRESS) {
        status = td_fail(TD_E_PEER, "NCCL: %s (%s)", e->api->error_string(state),
                         e->api->last_error(e->comm));
    } else {
        status = find_reached(e, e->launched);
    }
    if (status == TD_OK && e->reached < e->launched) {
        *oldest = slot_of(e, e->reached + 1)->c;
        *begun = slot_of(e, e->reached + 1)->begun;
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

/* ---- the end ---- */

typedef struct aborting {
    const td_nccl_api *api;
    td_nccl_comm comm;
} aborting;

static void *abort_communicator(void *argument)
{
    aborting a = *(aborting *)argument;
    free(argument);
    (void)a.api->abort(a.comm);
    return NULL;
}

/* ncclCommAbort ends the kernels that wait for other ranks, and then blocks until all CUDA graphs
 * with collectives of the communicator are freed, even if the communicator is non-blocking. The
 * caller may be the only thread that could free the graphs. So a thread of its own calls it, which
 * nobody waits for and which uses nothing of the engine. */
static void abort_apart(td_nccl_engine *e)
{
    aborting *a = malloc(sizeof *a);
    pthread_t thread;
    if (a == NULL) {
        return; /* the kernels go on waiting until the process ends */
    }
    *a = (aborting){ e->api, e->comm };
    if (td_thread_start(&thread, abort_communicator, a) != 0) {
        free(a);
        return;
    }
    pthread_detach(thread);
}

/* The communicator is non-blocking, so no thread stays in another of its calls. A thread that waits
 * for a call to settle sees `aborted` and releases the lock; with the lock no call is under way,
 * and none begins later. */
static void nccl_abort(td_device_engine *engine)
{
    td_nccl_engine *e = (td_nccl_engine *)engine;
    if (!atomic_exchange(&e->aborted, true) && e->comm != NULL) {
        pthread_mutex_lock(&e->lock);
        abort_apart(e);
        pthread_mutex_unlock(&e->lock);
    }
}

static void nccl_destroy(td_device_engine *engine)
{
    td_nccl_engine *e = (td_nccl_engine *)engine;
    if (!atomic_load(&e->aborted) && e->comm != NULL) {
        static const double PATIENCE = 10; /* seconds for the other ranks to finalize */
        int result = e->api->finalize(e->comm);
        if (td_nccl_settle(e, result, td_clock() + PATIENCE, "finalize") == TD_OK) {
            (void)e->api->destroy(e->comm);
        } else {
            abort_apart(e);
        }
    }
    for (uint64_t i = 0; i < e->slot_count; i++) {
        if (e->slots[i].ready != NULL) {
            e->streams->event_free(e->base.device, e->slots[i].ready);
        }
        if (e->slots[i].done != NULL) {
            e->streams->event_free(e->base.device, e->slots[i].done);
        }
    }
    if (e->stream != NULL) {
        e->streams->stream_free(e->base.device, e->stream);
    }
    pthread_mutex_destroy(&e->lock);
    free(e->slots);
    free(e);
}

static const td_device_engine_type nccl_type = {
    .name = "nccl",
    .launch = nccl_launch,
    .join = nccl_join,
    .join_all = nccl_join_all,
    .reached = nccl_reached,
    .look = nccl_look,
    .record = nccl_record,
    .launched = nccl_launched,
    .abort = nccl_abort,
    .destroy = nccl_destroy,
};

void td_nccl_engine_init(td_nccl_engine *e, const td_nccl_api *api, const td_streams *streams,
                         const td_nccl_options *o)
{
    *e = (td_nccl_engine){ .base = { .type = &nccl_type, .device = o->device },
                           .api = api,
                           .streams = streams,
                           .rank = o->rank,
                           .size = o->size,
                           .broken = o->broken,
                           .user = o->user };
    pthread_mutex_init(&e->lock, NULL);
    atomic_init(&e->aborted, false);
}
