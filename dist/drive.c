/* Driving the engine: the communication thread, and the parts that blocking calls use, too. */
#include "dist/clock.h"
#include "dist/group.h"
#include "dist/watchdog.h"
#include "tensor/denormals.h"

#include <stdio.h>

static const double NAP = 100e-6; /* seconds between polls, if the engine has no idle() */

static td_work *pop(td_queue *q)
{
    td_work *work = q->head;
    q->head = work->next;
    return work;
}

/* ---- running ---- */

bool td_is_message(td_collective_kind kind)
{
    return kind == TD_COLLECTIVE_SEND || kind == TD_COLLECTIVE_RECV;
}

bool td_is_polled(const td_group *group, td_collective_kind kind)
{
    const td_comm_backend *b = group->backend;
    return (b->flags & TD_BACKEND_POLL) != 0 || (b->start != NULL && td_is_message(kind));
}

void td_note_begin(td_queue *q, const td_collective *c, double now)
{
    q->current = *c;
    q->current_begun = now;
    q->begun++;
}

/* Breaks the group after a failed collective. Returns the status, with the group's cause as
 * message. */
static td_status fail_collective(td_group *group, const td_collective *c, td_status status,
                                 double begun)
{
    char text[TD_CAUSE_BYTES];
    if (status == TD_E_TIMEOUT && td_clock() >= c->deadline) { /* not another rank's time-out */
        td_stall_report(group, c, "timed out", td_clock() - begun, text, sizeof text);
    } else {
        snprintf(text, sizeof text, "%s", td_last_error());
    }
    td_group_break(group, status, text);
    return td_fail((td_status)atomic_load(&group->broken), "%s", group->cause);
}

td_status td_run_collective(td_group *group, const td_collective *c, double begun)
{
    const td_comm_backend *b = group->backend;
    td_status status = group->check_sequence ? td_check_sequence(group, c) : TD_OK;
    if (status == TD_OK && c->kind == TD_COLLECTIVE_MEMORY) {
        status = b->memory(group->engine, c, c->out);
        if (status == TD_E_NOMEM) {
            return status;
        }
    } else if (status == TD_OK) {
        status = b->run(group->engine, c);
    }
    return status == TD_OK ? TD_OK : fail_collective(group, c, status, begun);
}

void td_finish_work(td_group *group, td_work *work, td_status status)
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

/* ---- driving the engine: with the lock and `busy`, which are given up on the way ---- */

static void begin_work(td_queue *q, td_work *work, bool background)
{
    work->begun = td_clock();
    work->c.deadline = work->begun + work->timeout;
    work->c.background = background;
    td_note_begin(q, &work->c, work->begun);
}

static void drive_one(td_group *group)
{
    td_queue *q = &group->queue;
    td_work *work = pop(q);
    begin_work(q, work, true);
    pthread_mutex_unlock(&q->lock);
    td_status status = td_group_check(group);
    if (status == TD_OK) {
        status = td_run_collective(group, &work->c, work->begun);
    }
    pthread_mutex_lock(&q->lock);
    q->current_begun = 0;
    td_finish_work(group, work, status);
}

/* Starts the messages at the queue's head. */
static void start_messages(td_group *group, bool background)
{
    td_queue *q = &group->queue;
    while (q->head != NULL && td_is_polled(group, q->head->c.kind)) {
        td_work *work = pop(q);
        begin_work(q, work, background);
        td_status status = td_group_check(group);
        if (status == TD_OK) {
            status = group->backend->start(group->engine, &work->c, &work->request);
        }
        if (status != TD_OK) {
            pthread_mutex_unlock(&q->lock);
            status = fail_collective(group, &work->c, status, work->begun);
            pthread_mutex_lock(&q->lock);
            td_finish_work(group, work, status);
            continue;
        }
        td_work **end = &q->active;
        while (*end != NULL) {
            end = &(*end)->next;
        }
        work->next = NULL;
        *end = work;
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
        td_status status = group->backend->poll(group->engine, work->request, &done);
        if (status == TD_OK && !done) {
            link = &work->next;
            continue;
        }
        if (status != TD_OK) {
            status = fail_collective(group, &work->c, status, work->begun);
        }
        *link = work->next;
        pthread_mutex_lock(&group->queue.lock);
        td_finish_work(group, work, status);
        pthread_mutex_unlock(&group->queue.lock);
        ended = true;
    }
    return ended;
}

void td_drive_messages(td_group *group, const td_work *until, bool background)
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
            if (group->backend->idle != NULL) {
                group->backend->idle(group->engine, 1.0, background);
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

void td_engine_is_free(td_queue *q)
{
    q->busy = false;
    pthread_cond_broadcast(&q->done);
    if (q->head != NULL || q->active != NULL || q->stops) { /* a needless wake-up costs 3 us */
        pthread_cond_signal(&q->wake);
    }
}

void *td_communicate(void *arg)
{
    td_group *group = arg;
    td_queue *q = &group->queue;
    td_flush_denormals();
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while ((q->busy || (q->head == NULL && q->active == NULL)) && !q->stops) {
            pthread_cond_wait(&q->wake, &q->lock);
        }
        if (q->busy) {
            pthread_cond_wait(&q->wake, &q->lock);
            continue;
        }
        if (q->head == NULL && q->active == NULL) {
            break;
        }
        q->busy = true;
        if (q->active != NULL || td_is_polled(group, q->head->c.kind)) {
            td_drive_messages(group, NULL, true);
        } else {
            drive_one(group);
        }
        td_engine_is_free(q);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}
