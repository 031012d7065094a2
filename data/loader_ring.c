#include "data/loader_ring.h"

#include "data/dataset.h"
#include "tensor/hooks.h"
#include "tensor/extend.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

int64_t td_ring_batch_samples(const td_ring *ring, int64_t batch)
{
    int64_t left = ring->plan.samples - batch * ring->plan.batch_size;
    return left < ring->plan.batch_size ? left : ring->plan.batch_size;
}

static td_ring_slot *slot_of(td_ring *ring, int64_t batch)
{
    return &ring->slots[batch % ring->count];
}

static void tensors_of(td_ring *ring, int64_t batch, td_tensor **x, td_tensor **y)
{
    bool full = td_ring_batch_samples(ring, batch) == ring->plan.batch_size;
    td_ring_slot *slot = slot_of(ring, batch);
    *x = full ? slot->x : ring->tail_x;
    *y = full ? slot->y : ring->tail_y;
}

/* Fills a batch's slot; called without the lock, by whoever owns the slot now. */
static void assemble(td_ring *ring, int64_t batch)
{
    td_ring_slot *slot = slot_of(ring, batch);
    td_tensor *x, *y;
    tensors_of(ring, batch, &x, &y);
    slot->status =
        ring->dataset->vtable->fetch(ring->dataset, ring->order + batch * ring->plan.batch_size,
                                     td_ring_batch_samples(ring, batch), ring->epoch, x, y);
    if (slot->status != TD_OK) {
        strncpy(slot->message, td_last_error(), sizeof slot->message - 1);
    }
}

/* ---- workers ---- */

static bool has_work(const td_ring *ring)
{
    return ring->next < ring->end && ring->next < ring->released + ring->count;
}

static void *work(void *argument)
{
    td_ring *ring = argument;
    pthread_mutex_lock(&ring->lock);
    for (;;) {
        while (!ring->stop && !has_work(ring)) {
            pthread_cond_wait(&ring->work, &ring->lock);
        }
        if (ring->stop) {
            break;
        }
        int64_t batch = ring->next++;
        ring->busy++;
        pthread_mutex_unlock(&ring->lock);
        assemble(ring, batch);
        pthread_mutex_lock(&ring->lock);
        ring->busy--;
        slot_of(ring, batch)->holds = batch;
        pthread_cond_signal(&ring->done);
    }
    pthread_mutex_unlock(&ring->lock);
    return NULL;
}

/* Workers take no signals: Ctrl-C is the main thread's business. */
static td_status start_threads(td_ring *ring)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    while (error == 0 && ring->threads < ring->plan.workers) {
        error = pthread_create(&ring->thread[ring->threads], NULL, work, ring);
        ring->threads += error == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        return td_fail(TD_E_NOMEM,
                       "loader: worker %d of %d did not start: %s. Use fewer (--workers)",
                       ring->threads + 1, ring->plan.workers, strerror(error));
    }
    return TD_OK;
}

/* ---- making and ending ---- */

/* Part of a slot's memory as a batch of fewer samples: strides may depend on their number. */
static td_tensor *tail_header(const td_tensor *full, td_shape shape, td_layout layout)
{
    int64_t stride[TD_MAX_DIMS];
    td_layout_strides(td_device_of(full), layout, shape, stride);
    return td_slice_of_storage(full, full->offset, shape, stride);
}

/* Makes the headers of a last batch that is not full, over the slot that it falls into. */
static bool make_tail(td_ring *ring, const td_tensor *x, const td_tensor *y, int64_t tail)
{
    const td_dataset *dataset = ring->dataset;
    ring->tail_x = tail_header(x, td_batch_shape(dataset, tail), dataset->layout);
    ring->tail_y = tail_header(y, td_batch_y_shape(dataset, tail), TD_ROW_MAJOR);
    if (ring->tail_x == NULL || ring->tail_y == NULL) {
        return false;
    }
    ring->tail_x->name = x->name;
    ring->tail_y->name = y->name;
    return true;
}

static bool make_tensors(td_ring *ring)
{
    const td_dataset *dataset = ring->dataset;
    const td_ring_plan *plan = &ring->plan;
    int64_t last = plan->batches - 1, tail = td_ring_batch_samples(ring, last);
    for (int i = 0; i < ring->count; i++) {
        td_ring_slot *slot = &ring->slots[i];
        slot->x = td_new_layout(td_batch_shape(dataset, plan->batch_size), dataset->dtype,
                                dataset->layout, plan->device);
        slot->y = td_new(td_batch_y_shape(dataset, plan->batch_size), td_batch_y_dtype(dataset),
                         plan->device);
        if (slot->x == NULL || slot->y == NULL) {
            return false;
        }
        slot->x->name = "the loader's x";
        slot->y->name = "the loader's y";
        if (tail < plan->batch_size && slot == slot_of(ring, last) &&
            !make_tail(ring, slot->x, slot->y, tail)) {
            return false;
        }
    }
    return true;
}

td_ring *td_ring_new(const td_dataset *dataset, const td_ring_plan *plan)
{
    td_ring *ring = calloc(1, sizeof *ring);
    if (ring == NULL) {
        td_fail(TD_E_NOMEM, "loader: no memory");
        return NULL;
    }
    /* One batch is in the consumer's hands while the others are filled. */
    int64_t count = (int64_t)plan->workers * plan->prefetch + 1;
    *ring = (td_ring){ .dataset = dataset, .plan = *plan };
    ring->count = (int)(count < plan->batches ? count : plan->batches);
    pthread_mutex_init(&ring->lock, NULL);
    pthread_cond_init(&ring->work, NULL);
    pthread_cond_init(&ring->done, NULL);
    ring->slots = calloc((size_t)ring->count, sizeof *ring->slots);
    ring->thread = calloc((size_t)plan->workers + 1, sizeof *ring->thread);
    if (ring->slots == NULL || ring->thread == NULL || !make_tensors(ring)) {
        td_ring_free(ring);
        td_fail(
            TD_E_NOMEM,
            "loader: no memory for %lld batches of %lld samples (batch size, and %d workers with "
            "%d batches ahead each): make one of them smaller",
            (long long)count, (long long)plan->batch_size, plan->workers, plan->prefetch);
        return NULL;
    }
    if (start_threads(ring) != TD_OK) {
        td_ring_free(ring);
        return NULL;
    }
    return ring;
}

void td_ring_free(td_ring *ring)
{
    if (ring == NULL) {
        return;
    }
    pthread_mutex_lock(&ring->lock);
    ring->stop = true;
    pthread_cond_broadcast(&ring->work);
    pthread_mutex_unlock(&ring->lock);
    for (int i = 0; i < ring->threads; i++) {
        pthread_join(ring->thread[i], NULL);
    }
    td_free(ring->tail_x);
    td_free(ring->tail_y);
    for (int i = 0; ring->slots != NULL && i < ring->count; i++) {
        td_free(ring->slots[i].x);
        td_free(ring->slots[i].y);
    }
    pthread_cond_destroy(&ring->work);
    pthread_cond_destroy(&ring->done);
    pthread_mutex_destroy(&ring->lock);
    free(ring->slots);
    free(ring->thread);
    free(ring);
}

/* ---- the consumer ---- */

void td_ring_start(td_ring *ring, const int64_t *order, uint64_t epoch, int64_t first)
{
    pthread_mutex_lock(&ring->lock);
    ring->order = order;
    ring->epoch = epoch;
    for (int i = 0; i < ring->count; i++) {
        ring->slots[i].holds = -1;
    }
    ring->next = ring->released = first;
    ring->end = ring->plan.batches;
    pthread_cond_broadcast(&ring->work);
    pthread_mutex_unlock(&ring->lock);
}

void td_ring_rest(td_ring *ring)
{
    pthread_mutex_lock(&ring->lock);
    ring->end = ring->next;
    while (ring->busy > 0) {
        pthread_cond_wait(&ring->done, &ring->lock);
    }
    pthread_mutex_unlock(&ring->lock);
}

static void wait_for(td_ring *ring, int64_t batch)
{
    td_ring_slot *slot = slot_of(ring, batch);
    pthread_mutex_lock(&ring->lock);
    ring->released = batch;
    pthread_cond_signal(&ring->work);
    if (slot->holds != batch) {
        double start = td_now();
        while (slot->holds != batch) {
            pthread_cond_wait(&ring->done, &ring->lock);
        }
        ring->waited += td_now() - start;
    }
    pthread_mutex_unlock(&ring->lock);
}

td_status td_ring_take(td_ring *ring, int64_t batch, td_tensor **x, td_tensor **y)
{
    double begin = td_now();
    if (ring->threads > 0) {
        wait_for(ring, batch);
    } else {
        assemble(ring, batch);
        ring->waited += td_now() - begin;
    }
    td_tell_span("loader wait", begin, td_now());
    td_ring_slot *slot = slot_of(ring, batch);
    tensors_of(ring, batch, x, y);
    return slot->status == TD_OK ? TD_OK : td_fail(slot->status, "%s", slot->message);
}

bool td_ring_look(td_ring *ring, int64_t batch, td_tensor **x, td_tensor **y)
{
    if (batch >= ring->plan.batches) {
        return false;
    }
    const td_ring_slot *slot = slot_of(ring, batch);
    pthread_mutex_lock(&ring->lock);
    bool there = slot->holds == batch && slot->status == TD_OK;
    pthread_mutex_unlock(&ring->lock);
    if (there) {
        tensors_of(ring, batch, x, y);
    }
    return there;
}
