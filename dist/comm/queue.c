/* The queue of a group's work, and the communication thread that runs it. */
#include "dist/comm/queue.h"

#include "tensor/clock.h"
#include "dist/comm/group.h"
#include "dist/comm/watchdog.h"
#include "tensor/system/list.h"
#include "tensor/system/thread.h"
#include "tensor/hooks.h"
#include "tensor/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double NAP = 100e-6; /* seconds between polls, if the engine has no idle() */

static void queue_append(td_queue *q, td_work *work)
{
    q->outstanding++;
    work->next = NULL;
    *(q->head == NULL ? &q->head : &q->tail->next) = work;
    q->tail = work;
}

/* ---- running a collective ---- */

static bool is_message(td_collective_kind kind)
{
    return kind == TD_COLLECTIVE_SEND || kind == TD_COLLECTIVE_RECV;
}

/* Notes for the watchdog that c has begun. With the lock. */
static void note_begin(td_queue *q, const td_collective *c, double now)
{
    q->current = *c;
    q->current_begun = now;
    q->begun++;
}

/* Runs a collective by the engine's `run`. Without the lock, with `busy` set. */
static td_status run_collective(td_group *group, const td_collective *c)
{
    const td_engine_type *type = group->engine_type;
    bool memory = c->kind == TD_COLLECTIVE_MEMORY;
    td_status status =
        memory ? type->memory(group->engine, c, c->out) : type->run(group->engine, c);
    return status == TD_OK || (memory && status == TD_E_NOMEM) ? status
                                                               : td_group_fail(group, status);
}

/* Ends a work. With the lock. */
static void finish_work(td_group *group, td_work *work, td_status status)
{
    work->status = status;
    if (status != TD_OK) {
        snprintf(work->message, sizeof work->message, "%s", td_last_error());
    }
    work->ended = td_clock();
    group->queue.outstanding--;
    atomic_store(&work->done, true);
    pthread_cond_broadcast(&group->queue.done);
}

/* The same without the lock; a failure breaks the group. */
static void end_work(td_group *group, td_work *work, td_status status)
{
    status = status == TD_OK ? TD_OK : td_group_fail(group, status);
    pthread_mutex_lock(&group->queue.lock);
    finish_work(group, work, status);
    pthread_mutex_unlock(&group->queue.lock);
}

/* ---- driving the engine: with `busy`, and with the lock, which is released meanwhile ---- */

static void begin_work(td_queue *q, td_work *work, bool background)
{
    work->begun = td_clock();
    work->c.deadline = work->begun + work->timeout;
    work->c.background = background;
    note_begin(q, &work->c, work->begun);
}

static void drive_one(td_group *group)
{
    td_queue *q = &group->queue;
    td_work *work = q->head;
    q->head = work->next;
    begin_work(q, work, true);
    pthread_mutex_unlock(&q->lock);
    td_status status = td_group_check(group);
    status = status == TD_OK ? run_collective(group, &work->c) : status;
    pthread_mutex_lock(&q->lock);
    q->current_begun = 0;
    finish_work(group, work, status);
}

/* Starts the messages at the queue's head. */
static void start_messages(td_group *group, bool background)
{
    td_queue *q = &group->queue;
    while (q->head != NULL && is_message(q->head->c.kind)) {
        td_work *work = q->head;
        q->head = work->next;
        begin_work(q, work, background);
        td_status status = td_group_check(group);
        if (status == TD_OK) {
            status = group->engine_type->start(group->engine, &work->c, &work->request);
        }
        if (status != TD_OK) {
            pthread_mutex_unlock(&q->lock);
            end_work(group, work, status);
            pthread_mutex_lock(&q->lock);
            continue;
        }
        work->next = NULL;
        *TD_LINK_TO(&q->active, NULL) = work;
    }
}

/* Polls all running messages once; true: one has ended. Without the lock, because only the driving
 * thread uses the list. When the last message has ended, the thread that waited for it may end the
 * group. */
static bool poll_messages(td_group *group)
{
    bool ended = false;
    for (td_work **link = &group->queue.active; *link != NULL;) {
        td_work *work = *link;
        bool done = false;
        td_status status = group->engine_type->poll(group->engine, work->request, &done);
        if (status == TD_OK && !done) {
            link = &work->next;
            continue;
        }
        *link = work->next;
        end_work(group, work, status);
        ended = true;
    }
    return ended;
}

/* Drives messages until the message `until` is done (NULL: all). With the lock, which is released
 * in between, and with `busy` set. */
static void drive_messages(td_group *group, const td_work *until, bool background)
{
    td_queue *q = &group->queue;
    q->in_messages = true;
    for (;;) {
        start_messages(group, background);
        if (until != NULL ? atomic_load(&until->done) : q->active == NULL) {
            break;
        }
        pthread_mutex_unlock(&q->lock);
        if (!poll_messages(group)) {
            if (group->engine_type->idle != NULL) {
                group->engine_type->idle(group->engine, 1.0, background);
            } else {
                td_sleep(NAP);
            }
        }
        pthread_mutex_lock(&q->lock);
        if (q->active != NULL) {
            q->current = q->active->c;
            q->current_begun = q->active->begun;
        }
    }
    q->in_messages = false;
    q->current_begun = 0;
}

/* Clears `busy` and wakes who waits for the engine. With the lock. */
static void engine_is_free(td_queue *q)
{
    q->busy = false;
    pthread_cond_broadcast(&q->done);
    if (q->head != NULL || q->active != NULL || q->stops) { /* a needless wake-up costs 3 us */
        pthread_cond_signal(&q->wake);
    }
}

/* The communication thread. */
static void *communicate(void *arg)
{
    td_group *group = arg;
    td_queue *q = &group->queue;
    td_flush_denormals();
    pthread_mutex_lock(&q->lock);
    for (;;) {
        bool idle = q->head == NULL && q->active == NULL;
        if (q->busy || (idle && !q->stops)) {
            pthread_cond_wait(&q->wake, &q->lock);
            continue;
        }
        if (idle) {
            break;
        }
        q->busy = true;
        if (q->active != NULL || is_message(q->head->c.kind)) {
            drive_messages(group, NULL, true);
        } else {
            drive_one(group);
        }
        engine_is_free(q);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

/* ---- a group of one ---- */

void td_run_alone(const td_collective *c, td_device device)
{
    if (c->out != c->in && c->out != NULL && c->in != NULL) {
        td_memory_move(device, c->out, c->in, (size_t)c->count * td_dtype_size(c->dtype));
    }
}

/* ---- submitting ---- */

/* Runs a blocking call on the calling thread. With the lock, while nothing is queued or running. */
static td_status run_here(td_group *group, td_collective *c, double timeout)
{
    td_queue *q = &group->queue;
    double now = td_clock();
    c->deadline = now + timeout;
    q->busy = true;
    q->outstanding++;
    note_begin(q, c, now);
    pthread_mutex_unlock(&q->lock);
    unsigned mode = td_flush_denormals();
    td_status status = run_collective(group, c);
    td_restore_denormals(mode);
    pthread_mutex_lock(&q->lock);
    q->current_begun = 0;
    q->outstanding--;
    engine_is_free(q);
    return status;
}

/* A group of one has no engine and no communication thread: the result is there at once. */
static td_status submit_alone(td_group *group, const td_collective *c, td_work **handle)
{
    td_run_alone(c, TD_CPU);
    if (handle != NULL) {
        *handle = td_work_of_device(group, c, NULL, 0);
    }
    return handle == NULL || *handle != NULL ? TD_OK : TD_E_NOMEM;
}

/* A group's threads start when they are first needed, so that unused groups cost none:
 * the watchdog with the first collective, the communication thread with the first that the caller
 * does not run itself. With the lock. */
static td_status start_threads(td_group *group, bool communicates)
{
    td_queue *q = &group->queue;
    TD_TRY(group->watch.on ? TD_OK : td_watchdog_start(group));
    if (communicates && !q->started) {
        int error = td_thread_start(&q->thread, communicate, group);
        TD_CHECK(error == 0, TD_E_NOMEM, "no thread for communication: %s", strerror(error));
        q->started = true;
    }
    return TD_OK;
}

/* Without the lock. The other ranks wait for a collective that cannot be queued here. */
static td_status fail_submit(td_group *group)
{
    return td_group_fail(
        group, td_fail(TD_E_NOMEM, "%s; the other ranks wait for a collective", td_last_error()));
}

/* ---- engines without threads ---- */

void td_queue_end_work(td_work *work)
{
    td_group *group = work->group;
    end_work(group, work, group->engine_type->end(group->engine, work->request));
}

static td_status submit_at_once(td_group *group, td_collective *c, td_work **handle)
{
    td_queue *q = &group->queue;
    pthread_mutex_lock(&q->lock);
    c->number = is_message(c->kind) ? ++q->messages : ++q->collectives;
    td_work *work = td_work_take(group, c, group->timeout);
    q->outstanding += work != NULL;
    pthread_mutex_unlock(&q->lock);
    if (work == NULL) {
        return fail_submit(group);
    }
    work->begun = work->queued;
    td_status status = group->engine_type->start(group->engine, &work->c, &work->request);
    if (status != TD_OK) {
        end_work(group, work, status);
    }
    return td_work_hand_over(work, handle);
}

td_status td_submit(td_group *group, td_collective *c, double timeout, td_work **handle)
{
    td_queue *q = &group->queue;
    timeout = timeout > 0 ? timeout : group->timeout;
    if (handle != NULL) {
        *handle = NULL;
    }
    TD_TRY(td_group_check(group));
    td_not_recordable("%s of the CPU's memory is done by the host", td_kind_of(c->kind)->name);
    if (group->engine == NULL) {
        return submit_alone(group, c, handle);
    }
    if (group->engine_type->end != NULL) {
        return submit_at_once(group, c, handle);
    }
    pthread_mutex_lock(&q->lock);
    c->number = is_message(c->kind) ? ++q->messages : ++q->collectives;
    bool here = handle == NULL && !q->busy && q->head == NULL && q->active == NULL;
    td_status status = start_threads(group, !here);
    if (status == TD_OK && here && !is_message(c->kind)) {
        status = run_here(group, c, timeout);
        pthread_mutex_unlock(&q->lock);
        return status;
    }
    td_work *work = status == TD_OK ? td_work_take(group, c, timeout) : NULL;
    if (work == NULL) {
        pthread_mutex_unlock(&q->lock);
        return fail_submit(group);
    }
    queue_append(q, work);
    if (here) { /* a message, together with those that other threads queue */
        q->busy = true;
        drive_messages(group, work, false);
        engine_is_free(q);
    } else {
        pthread_cond_signal(&q->wake);
        if (q->in_messages && group->engine_type->nudge != NULL) {
            group->engine_type->nudge(group->engine);
        }
    }
    pthread_mutex_unlock(&q->lock);
    return td_work_hand_over(work, handle);
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
    engine_is_free(&group->queue);
    pthread_mutex_unlock(&group->queue.lock);
}

/* ---- beginning and end ---- */

void td_queue_init(td_queue *q)
{
    pthread_mutex_init(&q->lock, NULL);
    td_condition_init(&q->wake);
    td_condition_init(&q->done);
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
    while (q->newest != NULL) {
        td_work *older = q->newest->older;
        td_staged_free(q->newest->staged);
        free(q->newest);
        q->newest = older;
    }
    pthread_cond_destroy(&q->wake);
    pthread_cond_destroy(&q->done);
    pthread_mutex_destroy(&q->lock);
}
