/* A batch maker that copies each batch to the device, ahead of its use. */
#include "data/device/makers.h"
#include "tensor/storage.h"
#include "tensor/backend.h"

#include <stdlib.h>

enum { PLACES = 2 }; /* one that is worked on, one that goes over */

/* Memory on the device for a batch, which lies there as in the ring. */
typedef struct place {
    td_batch_memory memory;
    void *arrived, *read; /* events: it is there; it has been put in order */
    int64_t holds;        /* the batch; -1: none */
} place;

typedef struct streamed {
    td_batch_maker base;
    td_batch_maker *ring;
    td_batch_memory batch; /* what the consumer gets */
    const td_streams *streams;
    void *stream;
    place places[PLACES];
} streamed;

static void must(td_status status)
{
    TD_REQUIRE(status == TD_OK, TD_NOWHERE, "sending a batch: %s", td_last_error());
}

/* Memory on the device for a tensor that lies as `full` does; NULL with td_last_error(). */
static td_tensor *new_like(td_device device, const td_tensor *full)
{
    td_tensor *memory = td_new(TD_SHAPE(td_numel(full)), full->dtype, device);
    td_tensor *there =
        memory != NULL ? td_slice_of_storage(memory, 0, td_shape_of(full), full->stride) : NULL;
    td_free(memory); /* the view holds it */
    return there;
}

static td_status make_place(const streamed *s, place *p)
{
    td_device device = s->base.plan.device;
    const td_batch_memory *like = td_ring_memory(s->ring);
    p->holds = -1;
    p->memory = (td_batch_memory){ .x = new_like(device, like->x),
                                   .y = new_like(device, like->y),
                                   .layout = like->layout,
                                   .device = like->device };
    if (p->memory.x == NULL || p->memory.y == NULL) {
        return TD_E_NOMEM;
    }
    TD_TRY(s->streams->event_new(device, &p->arrived));
    TD_TRY(s->streams->event_new(device, &p->read));
    /* Its memory may have been another tensor's, which work that is queued still uses. */
    return s->streams->record(device, p->read, s->streams->compute(device));
}

static void free_streamed(td_batch_maker *m)
{
    streamed *s = (streamed *)m;
    td_device device = m->plan.device;
    for (int i = 0; i < PLACES; i++) {
        place *p = &s->places[i];
        if (p->arrived != NULL) { /* its memory is not given out again before the copy is done */
            must(s->streams->wait(device, s->streams->compute(device), p->arrived));
            s->streams->event_free(device, p->arrived);
        }
        if (p->read != NULL) {
            s->streams->event_free(device, p->read);
        }
        td_batch_memory_free(&p->memory);
    }
    if (s->stream != NULL) {
        s->streams->stream_free(device, s->stream);
    }
    td_batch_memory_free(&s->batch);
    if (s->ring != NULL) {
        s->ring->type->free(s->ring);
    }
    free(s);
}

/* ---- batches ---- */

static void send_bytes(const streamed *s, td_tensor *to, const td_tensor *from)
{
    s->streams->upload(s->base.plan.device, s->stream, td_ptr(to), td_ptr(from),
                       td_tensor_bytes(from));
}

/* Starts sending a batch, unless that has been done; two can be under way. When it returns, the
 * ring's tensors may be filled again. */
static void send(streamed *s, int64_t batch, const td_tensor *x, const td_tensor *y)
{
    place *p = &s->places[batch % PLACES];
    if (p->holds == batch) {
        return;
    }
    must(s->streams->wait(s->base.plan.device, s->stream, p->read));
    send_bytes(s, p->memory.x, x);
    send_bytes(s, p->memory.y, y);
    must(s->streams->record(s->base.plan.device, p->arrived, s->stream));
    p->holds = batch;
}

/* Puts a batch that has been sent into tensors of the device, as part of its work. */
static void receive(streamed *s, int64_t batch, td_tensor *x, td_tensor *y)
{
    td_device device = s->base.plan.device;
    place *p = &s->places[batch % PLACES];
    td_tensor *from_x, *from_y;
    td_batch_memory_of(&p->memory, y->shape[0], &from_x, &from_y);
    void *compute = s->streams->compute(device);
    must(s->streams->wait(device, compute, p->arrived));
    td_copy_(x, from_x);
    td_copy_(y, from_y);
    must(s->streams->record(device, p->read, compute));
}

/* The next batch goes over while this one is worked on, if the workers have it. */
static td_status streamed_take(td_batch_maker *m, int64_t batch, td_tensor **x, td_tensor **y)
{
    streamed *s = (streamed *)m;
    td_tensor *here_x, *here_y;
    td_status status = s->ring->type->take(s->ring, batch, &here_x, &here_y);
    m->waited = s->ring->waited;
    if (status != TD_OK) {
        return status;
    }
    td_batch_memory_of(&s->batch, here_y->shape[0], x, y);
    send(s, batch, here_x, here_y);
    receive(s, batch, *x, *y);
    if (td_ring_look(s->ring, batch + 1, &here_x, &here_y)) {
        send(s, batch + 1, here_x, here_y);
    }
    return TD_OK;
}

static void streamed_start(td_batch_maker *m, const int64_t *order, int64_t samples, uint64_t epoch,
                           int64_t first)
{
    streamed *s = (streamed *)m;
    for (int i = 0; i < PLACES; i++) {
        s->places[i].holds = -1;
    }
    s->ring->type->start(s->ring, order, samples, epoch, first);
}

static void streamed_rest(td_batch_maker *m)
{
    td_batch_maker *ring = ((streamed *)m)->ring;
    ring->type->rest(ring);
}

static const td_batch_maker_type streamed_type = {
    .start = streamed_start, .rest = streamed_rest, .take = streamed_take, .free = free_streamed
};

static td_status streamed_make(streamed *s)
{
    td_device device = s->base.plan.device;
    td_batch_plan on_cpu = s->base.plan;
    on_cpu.device = TD_CPU;
    s->ring = td_ring_new(&on_cpu);
    if (s->ring == NULL || !td_batch_memory_make(&s->batch, &s->base.plan, device)) {
        return TD_E_NOMEM;
    }
    TD_TRY(s->streams->stream_new(device, &s->stream));
    for (int i = 0; i < PLACES; i++) {
        TD_TRY(make_place(s, &s->places[i]));
    }
    return TD_OK;
}

td_batch_maker *td_streamed_new(const td_batch_plan *plan)
{
    streamed *s = calloc(1, sizeof *s);
    TD_CHECK_NULL(s != NULL, TD_E_NOMEM, "loader: no memory");
    s->base = (td_batch_maker){ .type = &streamed_type, .plan = *plan };
    s->streams = td_streams_of(plan->device);
    if (streamed_make(s) != TD_OK) {
        free_streamed(&s->base);
        return NULL;
    }
    return &s->base;
}
