/* Work handles: what td_submit gives for a collective that is under way, and waiting for it. */
#include "tensor/clock.h"
#include "dist/comm/collectives.h"
#include "dist/comm/group.h"
#include "tensor/system/thread.h"
#include "dist/comm/watchdog.h"

#include <stdlib.h>

td_work *td_work_take(td_group *group, const td_collective *c, double timeout)
{
    td_queue *q = &group->queue;
    td_work *work = q->unused;
    if (work != NULL) {
        q->unused = work->next;
    } else {
        work = calloc(1, sizeof *work);
        TD_CHECK_NULL(work != NULL, TD_E_NOMEM, "out of memory for the handle of a collective");
        work->older = q->newest;
        q->newest = work;
    }
    work->c = *c;
    work->group = group;
    work->timeout = timeout;
    work->queued = td_clock();
    work->begun = work->ended = 0;
    work->status = TD_OK;
    work->device = NULL;
    work->staged = NULL;
    atomic_store(&work->done, false);
    return work;
}

td_status td_work_hand_over(td_work *work, td_work **handle)
{
    if (handle == NULL) {
        return td_work_wait(work, 0);
    }
    *handle = work;
    return TD_OK;
}

static void work_give(td_queue *q, td_work *work)
{
    work->next = q->unused;
    q->unused = work;
}

td_work *td_work_of_device(td_group *group, const td_collective *c, td_device_engine *engine,
                           uint64_t ticket)
{
    pthread_mutex_lock(&group->queue.lock);
    td_work *work = td_work_take(group, c, group->timeout);
    pthread_mutex_unlock(&group->queue.lock);
    if (work == NULL) {
        return NULL;
    }
    work->begun = work->queued;
    work->ended = engine == NULL ? work->queued : 0;
    work->device = engine;
    work->ticket = ticket;
    atomic_store(&work->done, engine == NULL);
    return work;
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
    status = status == TD_OK ? work->device->type->join(work->device, work->ticket) : status;
    pthread_mutex_lock(&group->queue.lock);
    work_give(&group->queue, work);
    pthread_mutex_unlock(&group->queue.lock);
    return status;
}

/* Whether an engine without threads has it. */
static bool is_unended(const td_work *work)
{
    const td_group *group = work->group;
    return group->engine != NULL && group->engine_type->end != NULL && !atomic_load(&work->done);
}

td_status td_work_wait(td_work *work, double timeout)
{
    td_group *group = work->group;
    td_queue *q = &group->queue;
    if (work->device != NULL) {
        return join_device(work, timeout);
    }
    if (is_unended(work)) {
        td_queue_end_work(work);
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
    td_host_copy *staged = work->staged;
    work->staged = NULL;
    work_give(q, work);
    pthread_mutex_unlock(&q->lock);
    return staged != NULL ? td_staged_end(group, staged, status) : status;
}

/* ---- looking ---- */

bool td_work_test(const td_work *work)
{
    bool done = false;
    if (is_unended(work)) {
        const td_group *group = work->group;
        return group->engine_type->poll(group->engine, work->request, &done) != TD_OK || done;
    }
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
