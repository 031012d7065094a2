#include "data/device/ahead.h"

#include "tensor/storage.h"
#include "tensor/streams.h"
#include "tensor/extend.h"

#include <stdlib.h>

enum { PLACES = 2 }; /* one that is worked on, one that goes over */

/* Memory on the device for a batch, which lies there as in the ring. */
typedef struct place {
    td_tensor *x[2], *y[2]; /* of a full batch, and of a last one that is not (or NULL) */
    void *arrived, *read;   /* events: it is there; it has been put in order */
    int64_t holds;          /* the batch; -1: none */
} place;

struct td_ahead {
    td_device device;
    const td_streams *streams;
    void *stream;
    place places[PLACES];
};

static void must(td_status status)
{
    TD_REQUIRE(status == TD_OK, TD_NOWHERE, "sending a batch: %s", td_last_error());
}

/* Memory for `full`, seen as full and as tail (or NULL). */
static bool make_views(td_device device, const td_tensor *full, const td_tensor *tail,
                       td_tensor **views)
{
    td_tensor *memory = td_new(TD_SHAPE(td_numel(full)), full->dtype, device);
    if (memory != NULL) {
        views[0] = td_slice_of_storage(memory, 0, td_shape_of(full), full->stride);
        views[1] =
            tail != NULL ? td_slice_of_storage(memory, 0, td_shape_of(tail), tail->stride) : NULL;
    }
    td_free(memory); /* the views hold it */
    return views[0] != NULL && (tail == NULL || views[1] != NULL);
}

static td_status make_place(const td_ahead *a, const td_ring *ring, place *p)
{
    p->holds = -1;
    if (!make_views(a->device, ring->slots[0].x, ring->tail_x, p->x) ||
        !make_views(a->device, ring->slots[0].y, ring->tail_y, p->y)) {
        return TD_E_NOMEM;
    }
    TD_TRY(a->streams->event_new(a->device, &p->arrived));
    TD_TRY(a->streams->event_new(a->device, &p->read));
    /* Its memory may have been another tensor's, which work that is queued still uses. */
    return a->streams->record(a->device, p->read, a->streams->compute(a->device));
}

td_ahead *td_ahead_new(const td_ring *ring, td_device device)
{
    td_ahead *a = calloc(1, sizeof *a);
    if (a == NULL) {
        td_fail(TD_E_NOMEM, "loader: no memory");
        return NULL;
    }
    a->device = device;
    a->streams = td_streams_of(device);
    td_status status = a->streams->stream_new(device, &a->stream);
    for (int i = 0; i < PLACES && status == TD_OK; i++) {
        status = make_place(a, ring, &a->places[i]);
    }
    if (status != TD_OK) {
        td_ahead_free(a);
        return NULL;
    }
    return a;
}

void td_ahead_free(td_ahead *a)
{
    if (a == NULL) {
        return;
    }
    for (int i = 0; i < PLACES; i++) {
        place *p = &a->places[i];
        if (p->arrived != NULL) { /* its memory is not given out again before the copy is done */
            must(a->streams->wait(a->device, a->streams->compute(a->device), p->arrived));
            a->streams->event_free(a->device, p->arrived);
        }
        if (p->read != NULL) {
            a->streams->event_free(a->device, p->read);
        }
        for (int k = 0; k < 2; k++) {
            td_free(p->x[k]);
            td_free(p->y[k]);
        }
    }
    if (a->stream != NULL) {
        a->streams->stream_free(a->device, a->stream);
    }
    free(a);
}

static void send_bytes(td_ahead *a, td_tensor *to, const td_tensor *from)
{
    a->streams->upload(a->device, a->stream, td_ptr(to), td_ptr(from),
                       (size_t)td_numel(from) * td_dtype_size(from->dtype));
}

void td_ahead_send(td_ahead *a, int64_t batch, const td_tensor *x, const td_tensor *y)
{
    place *p = &a->places[batch % PLACES];
    if (p->holds == batch) {
        return;
    }
    must(a->streams->wait(a->device, a->stream, p->read));
    send_bytes(a, p->x[0], x);
    send_bytes(a, p->y[0], y);
    must(a->streams->record(a->device, p->arrived, a->stream));
    p->holds = batch;
}

void td_ahead_receive(td_ahead *a, int64_t batch, td_tensor *x, td_tensor *y)
{
    place *p = &a->places[batch % PLACES];
    int as = y->shape[0] == p->y[0]->shape[0] ? 0 : 1;
    void *compute = a->streams->compute(a->device);
    must(a->streams->wait(a->device, compute, p->arrived));
    td_copy_(x, p->x[as]);
    td_copy_(y, p->y[as]);
    must(a->streams->record(a->device, p->read, compute));
}

void td_ahead_forget(td_ahead *a)
{
    for (int i = 0; i < PLACES; i++) {
        a->places[i].holds = -1;
    }
}
