/* The ring: the maker of batches in CPU memory. */
#include "data/maker.h"
#include "tensor/clock.h"
#include "tensor/hooks.h"
#include "tensor/system/thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct slot {
    td_batch_memory memory;
    int64_t holds;      /* the batch in it, assembled or failed; -1: none */
    td_status status;   /* of its fetch */
    char message[1024]; /* td_last_error() of the thread that fetched */
} slot;

/* Workers take the batches in order, as far ahead as there are free slots. The consumer releases a
 * batch by taking the next. The base's order and epoch are written while the workers rest. */
typedef struct ring {
    td_batch_maker base;
    slot *slots;
    int count; /* of slots */

    pthread_mutex_t lock; /* guards what follows, and the slots' holds */
    pthread_cond_t work;  /* for workers: there may be a batch to assemble, or stop is set */
    pthread_cond_t done;  /* for the consumer: a worker has finished a batch */
    int64_t next;         /* the batch that the next free worker takes */
    int64_t end;          /* where the epoch ends; next == end: the workers rest */
    int64_t released;     /* batches below this are out of the consumer's hands */
    int busy;             /* workers that assemble */
    bool stop;

    int threads; /* that run */
    pthread_t *thread;
} ring;

static slot *slot_of(ring *r, int64_t batch)
{
    return &r->slots[batch % r->count];
}

static void tensors_of(ring *r, int64_t batch, td_tensor **x, td_tensor **y)
{
    td_batch_memory_of(&slot_of(r, batch)->memory, td_batch_samples(&r->base.plan, batch), x, y);
}

/* Fills a batch's slot; called without the lock, by whoever owns the slot now. */
static void assemble(ring *r, int64_t batch)
{
    const td_batch_plan *plan = &r->base.plan;
    slot *s = slot_of(r, batch);
    td_tensor *x, *y;
    tensors_of(r, batch, &x, &y);
    s->status =
        plan->dataset->vtable->fetch(plan->dataset, r->base.order + batch * plan->batch_size,
                                     td_batch_samples(plan, batch), r->base.epoch, x, y);
    if (s->status != TD_OK) {
        strncpy(s->message, td_last_error(), sizeof s->message - 1);
    }
}

/* ---- workers ---- */

static bool has_work(const ring *r)
{
    return r->next < r->end && r->next < r->released + r->count;
}

static void *work(void *argument)
{
    ring *r = argument;
    pthread_mutex_lock(&r->lock);
    for (;;) {
        while (!r->stop && !has_work(r)) {
            pthread_cond_wait(&r->work, &r->lock);
        }
        if (r->stop) {
            break;
        }
        int64_t batch = r->next++;
        r->busy++;
        pthread_mutex_unlock(&r->lock);
        assemble(r, batch);
        pthread_mutex_lock(&r->lock);
        r->busy--;
        slot_of(r, batch)->holds = batch;
        pthread_cond_signal(&r->done);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static td_status start_threads(ring *r)
{
    int error = 0;
    while (error == 0 && r->threads < r->base.plan.workers) {
        error = td_thread_start(&r->thread[r->threads], work, r);
        r->threads += error == 0;
    }
    TD_CHECK(error == 0, TD_E_NOMEM,
             "loader: worker %d of %d did not start: %s. Use fewer (--workers)", r->threads + 1,
             r->base.plan.workers, strerror(error));
    return TD_OK;
}

/* ---- the consumer ---- */

static void ring_start(td_batch_maker *m, const int64_t *order, int64_t samples, uint64_t epoch,
                       int64_t first)
{
    ring *r = (ring *)m;
    pthread_mutex_lock(&r->lock);
    td_batch_plan_fit(&m->plan, samples);
    m->order = order;
    m->epoch = epoch;
    for (int i = 0; i < r->count; i++) {
        r->slots[i].holds = -1;
    }
    r->next = r->released = first;
    r->end = m->plan.batches;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
}

static void ring_rest(td_batch_maker *m)
{
    ring *r = (ring *)m;
    pthread_mutex_lock(&r->lock);
    r->end = r->next;
    while (r->busy > 0) {
        pthread_cond_wait(&r->done, &r->lock);
    }
    pthread_mutex_unlock(&r->lock);
}

static void wait_for(ring *r, int64_t batch)
{
    const slot *s = slot_of(r, batch);
    pthread_mutex_lock(&r->lock);
    r->released = batch;
    pthread_cond_signal(&r->work);
    if (s->holds != batch) {
        double begin = td_clock();
        while (s->holds != batch) {
            pthread_cond_wait(&r->done, &r->lock);
        }
        r->base.waited += td_clock() - begin;
    }
    pthread_mutex_unlock(&r->lock);
}

static td_status ring_take(td_batch_maker *m, int64_t batch, td_tensor **x, td_tensor **y)
{
    ring *r = (ring *)m;
    double begin = td_clock();
    if (r->threads > 0) {
        wait_for(r, batch);
    } else {
        assemble(r, batch);
        m->waited += td_clock() - begin;
    }
    td_tell_span("loader wait", begin, td_clock());
    const slot *s = slot_of(r, batch);
    tensors_of(r, batch, x, y);
    return s->status == TD_OK ? TD_OK : td_fail(s->status, "%s", s->message);
}

bool td_ring_look(td_batch_maker *m, int64_t batch, td_tensor **x, td_tensor **y)
{
    ring *r = (ring *)m;
    if (batch >= m->plan.batches) {
        return false;
    }
    const slot *s = slot_of(r, batch);
    pthread_mutex_lock(&r->lock);
    bool there = s->holds == batch && s->status == TD_OK;
    pthread_mutex_unlock(&r->lock);
    if (there) {
        tensors_of(r, batch, x, y);
    }
    return there;
}

const td_batch_memory *td_ring_memory(const td_batch_maker *m)
{
    return &((const ring *)m)->slots[0].memory;
}

/* ---- making and ending ---- */

static void free_ring(td_batch_maker *m)
{
    ring *r = (ring *)m;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
    for (int i = 0; i < r->threads; i++) {
        pthread_join(r->thread[i], NULL);
    }
    for (int i = 0; r->slots != NULL && i < r->count; i++) {
        td_batch_memory_free(&r->slots[i].memory);
    }
    pthread_cond_destroy(&r->work);
    pthread_cond_destroy(&r->done);
    pthread_mutex_destroy(&r->lock);
    free(r->slots);
    free(r->thread);
    free(r);
}

static bool make_slots(ring *r)
{
    const td_batch_plan *plan = &r->base.plan;
    r->slots = calloc((size_t)r->count, sizeof *r->slots);
    r->thread = calloc((size_t)plan->workers + 1, sizeof *r->thread);
    bool made = r->slots != NULL && r->thread != NULL;
    for (int i = 0; made && i < r->count; i++) {
        made = td_batch_memory_make(&r->slots[i].memory, plan, plan->device);
    }
    return made;
}

static const td_batch_maker_type ring_type = {
    .start = ring_start, .rest = ring_rest, .take = ring_take, .free = free_ring
};

td_batch_maker *td_ring_new(const td_batch_plan *plan)
{
    ring *r = calloc(1, sizeof *r);
    TD_CHECK_NULL(r != NULL, TD_E_NOMEM, "loader: no memory");
    /* One batch is in the consumer's hands while the others are filled. */
    int64_t count = (int64_t)plan->workers * plan->prefetch + 1;
    r->base = (td_batch_maker){ .type = &ring_type, .plan = *plan };
    int64_t batches = plan->batches > 0 ? plan->batches : 1;
    r->count = (int)(count < batches ? count : batches);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work, NULL);
    pthread_cond_init(&r->done, NULL);
    if (!make_slots(r)) {
        free_ring(&r->base);
        td_fail(TD_E_NOMEM,
                "loader: no memory for %lld batches of %lld samples (batch size, and %d workers "
                "with %d batches ahead each): make one of them smaller",
                (long long)count, (long long)plan->batch_size, plan->workers, plan->prefetch);
        return NULL;
    }
    if (start_threads(r) != TD_OK) {
        free_ring(&r->base);
        return NULL;
    }
    return &r->base;
}
