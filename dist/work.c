#include "dist/work.h"

#include "dist/clock.h"
#include "dist/group.h"
#include "dist/thread.h"
#include "dist/watchdog.h"
#include "tensor/hooks.h"
#include "tensor/denormals.h"
#include "dist/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 64 }; /* work handles are allocated in blocks of this size, and used again */

struct td_work_block {
    struct td_work_block *next;
    td_work work[BLOCK];
};

/* ---- work handles (with the lock) ---- */

static td_work *take_handle(td_queue *q)
{
    if (q->unused == NULL) {
        struct td_work_block *block = calloc(1, sizeof *block);
        if (block == NULL) {
            return NULL;
        }
        block->next = q->blocks;
        q->blocks = block;
        for (int i = 0; i < BLOCK; i++) {
            block->work[i].next = q->unused;
            q->unused = &block->work[i];
        }
    }
    td_work *work = q->unused;
    q->unused = work->next;
    return work;
}

static void give_handle(td_queue *q, td_work *work)
{
    work->next = q->unused;
    q->unused = work;
}

static void append(td_queue *q, td_work *work)
{
    work->next = NULL;
    if (q->head == NULL) {
        q->head = work;
    } else {
        q->tail->next = work;
    }
    q->tail = work;
}

/* ---- submitting ---- */

static void give_number(td_queue *q, td_collective *c)
{
    c->number = td_is_message(c->kind) ? ++q->messages : ++q->collectives;
}

/* Runs a blocking call on the calling thread, if nothing is queued or running. With the lock. */
static td_status run_here(td_group *group, td_collective *c, double timeout)
{
    td_queue *q = &group->queue;
    double now = td_clock();
    c->deadline = now + timeout;
    q->busy = true;
    q->outstanding++;
    td_note_begin(q, c, now);
    pthread_mutex_unlock(&q->lock);
    unsigned mode = td_flush_denormals();
    td_status status = td_run_collective(group, c, now);
    td_restore_denormals(mode);
    pthread_mutex_lock(&q->lock);
    q->current_begun = 0;
    q->outstanding--;
    td_engine_is_free(q);
    return status;
}

/* Drives a blocking message on the calling thread, together with messages that other threads queue
 * meanwhile. */
static void drive_here(td_group *group, td_work *work)
{
    td_queue *q = &group->queue;
    q->busy = true;
    td_drive_messages(group, work, false);
    td_engine_is_free(q);
}

/* In a group of one the result is the input. */
static void run_alone(const td_collective *c)
{
    if (c->out != c->in && c->out != NULL && c->in != NULL) {
        memmove(c->out, c->in, (size_t)c->count * td_dtype_size(c->dtype));
    }
}

static td_work *enqueue(td_group *group, const td_collective *c, double timeout)
{
    td_queue *q = &group->queue;
    td_work *work = take_handle(q);
    if (work == NULL) {
        return NULL;
    }
    work->c = *c;
    work->group = group;
    work->timeout = timeout;
    work->queued = td_clock();
    work->begun = work->ended = 0;
    work->status = TD_OK;
    work->device = NULL;
    atomic_store(&work->done, false);
    q->outstanding++;
    if (group->engine == NULL) {
        work->begun = work->queued;
        run_alone(c);
        td_finish_work(group, work, TD_OK);
        return work;
    }
    append(q, work);
    return work;
}

td_status td_submit(td_group *group, td_collective *c, double timeout, td_work **handle)
{
    td_queue *q = &group->queue;
    td_work *work;
    if (handle != NULL) {
        *handle = NULL;
    }
    timeout = timeout > 0 ? timeout : group->timeout;
    TD_TRY(td_group_check(group));
    td_not_recordable("%s of the CPU's memory is done by the host", td_collective_name(c->kind));
    pthread_mutex_lock(&q->lock);
    give_number(q, c);
    bool free = !q->busy && q->head == NULL && q->active == NULL;
    if (handle == NULL && (group->engine == NULL || (free && !td_is_polled(group, c->kind)))) {
        td_status status = TD_OK;
        if (group->engine == NULL) {
            run_alone(c);
        } else {
            status = run_here(group, c, timeout);
        }
        pthread_mutex_unlock(&q->lock);
        return status;
    }
    work = enqueue(group, c, timeout);
    if (work != NULL && handle == NULL && free) {
        drive_here(group, work);
    } else if (work != NULL) {
        pthread_cond_signal(&q->wake);
        if (q->in_messages && group->backend->nudge != NULL) {
            group->backend->nudge(group->engine);
        }
    }
    pthread_mutex_unlock(&q->lock);
    if (work == NULL) {
        td_fail(TD_E_NOMEM, "out of memory for a collective; the other ranks wait for it");
        td_group_break(group, TD_E_NOMEM, td_last_error());
        return TD_E_NOMEM;
    }
    if (handle != NULL) {
        *handle = work;
        return TD_OK;
    }
    return td_work_wait(work, 0);
}

td_work *td_work_of_device(td_group *group, const td_collective *c, td_device_engine *engine,
                           uint64_t ticket)
{
    pthread_mutex_lock(&group->queue.lock);
    td_work *work = take_handle(&group->queue);
    pthread_mutex_unlock(&group->queue.lock);
    if (work == NULL) {
        td_fail(TD_E_NOMEM, "out of memory for the handle of a collective");
        return NULL;
    }
    work->c = *c;
    work->group = group;
    work->timeout = group->timeout;
    work->queued = work->begun = td_clock();
    work->ended = 0;
    work->status = TD_OK;
    work->device = engine;
    work->ticket = ticket;
    atomic_store(&work->done, engine == NULL);
    return work;
}

void td_engine_acquire(td_group *group)
{
    td_queue *q = &group->queue;
    pthread_mutex_lock(&q->lock);
    while (q->busy) {
        pthread_cond_wait(&q->done, &q->lock);
    }
    q->busy = true;
    pthread_mutex_unlock(&q->lock);
}

void td_engine_release(td_group *group)
{
    pthread_mutex_lock(&group->queue.lock);
    td_engine_is_free(&group->queue);
    pthread_mutex_unlock(&group->queue.lock);
}

/* ---- waiting ---- */

/* Breaks the group after the caller's time-out, which also ends the work. With the lock. */
static void give_up(td_work *work, double timeout)
{
    td_group *group = work->group;
    td_queue *q = &group->queue;
    td_collective c = work->begun > 0 || q->current_begun == 0 ? work->c : q->current;
    char text[TD_CAUSE_BYTES];
    pthread_mutex_unlock(&q->lock);
    td_stall_report(group, &c, "was given up by td_work_wait", timeout, text, sizeof text);
    td_group_break(group, TD_E_TIMEOUT, text);
    pthread_mutex_lock(&q->lock);
}

/* Makes later work of the GPU run after the collective. The host waits only with a time-out. */
static td_status join_device(td_work *work, double timeout)
{
    td_group *group = work->group;
    td_status status = td_group_check(group);
    if (status == TD_OK && timeout > 0) {
        status = td_device_await(group, work->device, work->ticket, &work->c, timeout);
    }
    if (status == TD_OK) {
        status = work->device->type->join(work->device, work->ticket);
    }
    pthread_mutex_lock(&group->queue.lock);
    give_handle(&group->queue, work);
    pthread_mutex_unlock(&group->queue.lock);
    return status;
}

td_status td_work_wait(td_work *work, double timeout)
{
    td_group *group = work->group;
    td_queue *q = &group->queue;
    if (work->device != NULL) {
        return join_device(work, timeout);
    }
    pthread_mutex_lock(&q->lock);
    double end = td_clock() + timeout;
    while (timeout > 0 && !atomic_load(&work->done)) {
        if (!td_condition_await(&q->done, &q->lock, end)) {
            if (!atomic_load(&work->done)) {
                give_up(work, timeout);
            }
            break;
        }
    }
    while (!atomic_load(&work->done)) {
        pthread_cond_wait(&q->done, &q->lock);
    }
    td_status status = work->status;
    if (status != TD_OK) {
        bool broken = atomic_load(&group->broken) != TD_OK;
        td_fail(status, "%s", broken ? group->cause : work->message);
    }
    give_handle(q, work);
    pthread_mutex_unlock(&q->lock);
    return status;
}

bool td_work_test(const td_work *work)
{
    return work->device != NULL ? work->device->type->reached(work->device, work->ticket)
                                : atomic_load(&work->done);
}

void td_work_times(const td_work *work, double *queued, double *begun, double *ended)
{
    pthread_mutex_lock(&work->group->queue.lock);
    *queued = work->queued;
    *begun = work->begun;
    *ended = work->ended;
    pthread_mutex_unlock(&work->group->queue.lock);
}

/* ---- beginning and end ---- */

td_status td_queue_init(td_group *group)
{
    td_queue *q = &group->queue;
    pthread_mutex_init(&q->lock, NULL);
    td_condition_init(&q->wake);
    td_condition_init(&q->done);
    if (group->engine == NULL) {
        return TD_OK;
    }
    int error = td_thread_start(&q->thread, td_communicate, group);
    if (error != 0) {
        return td_fail(TD_E_NOMEM, "no thread for communication: %s", strerror(error));
    }
    q->started = true;
    return TD_OK;
}

void td_queue_stop(td_group *group)
{
    td_queue *q = &group->queue;
    pthread_mutex_lock(&q->lock);
    /* `busy` does not tell: a thread may still hold the engine after the last work has ended. */
    bool outstanding = q->outstanding > 0;
    q->stops = true;
    pthread_cond_signal(&q->wake);
    pthread_mutex_unlock(&q->lock);
    if (outstanding) {
        char text[128];
        snprintf(text, sizeof text, "rank %d has ended the group while collectives were under way",
                 group->rank);
        td_group_break(group, TD_E_PEER, text);
    }
    if (q->started) {
        pthread_join(q->thread, NULL);
        q->started = false;
    }
}

void td_queue_free(td_group *group)
{
    td_queue *q = &group->queue;
    while (q->blocks != NULL) {
        struct td_work_block *next = q->blocks->next;
        free(q->blocks);
        q->blocks = next;
    }
    pthread_cond_destroy(&q->wake);
    pthread_cond_destroy(&q->done);
    pthread_mutex_destroy(&q->lock);
}
