/* A group's watchdog: a thread that looks at what runs in the group, every PERIOD and at each
 * deadline. Each group has its own watchdog, because a look may take long: it may end a collective,
 * or ask other ranks for a report. */
#include "dist/comm/watchdog.h"

#include "tensor/clock.h"
#include "tensor/system/number.h"
#include "dist/comm/group.h"
#include "dist/comm/process.h"
#include "tensor/system/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double PERIOD = 0.25;     /* seconds between two looks */
static const double STOOD_STILL = 1;   /* a thread that sleeps so much too long did not sleep */
static const double LAST_PATIENCE = 1; /* seconds for a reader of this process's last words */

/* What runs when a look begins. */
typedef struct running {
    td_collective c;
    double begun;   /* 0: nothing runs */
    uint64_t count; /* of collectives that have begun */
} running;

/* With the queue's lock. */
static running running_in(const td_group *group)
{
    const td_queue *q = &group->queue;
    running r = { .begun = q->current_begun, .count = q->begun };
    if (r.begun > 0) {
        double stood = td_watchdog_stood(group, r.begun);
        r.c = q->current;
        r.c.deadline += stood;
        r.begun += stood;
    }
    return r;
}

double td_watchdog_stood(const td_group *group, double begun)
{
    return begun < group->watch.stood_until ? group->watch.stood_for : 0;
}

/* Whether this thread, which was to sleep until `planned`, has stood still, with its whole process.
 * With the queue's lock. */
static void notice_pause(td_group *group, double planned)
{
    struct group_watch *w = &group->watch;
    double now = td_clock(), pause = now - planned;
    if (pause > STOOD_STILL) {
        bool again = group->queue.current_begun > 0 && group->queue.current_begun < w->stood_until;
        w->stood_for = again ? w->stood_for + pause : pause;
        w->stood_until = now;
    }
}

/* Ends a collective that is past its deadline: breaks the group or, if the engine cannot abort,
 * ends the process. */
static void end_it(td_group *group, const running *r)
{
    char text[TD_CAUSE_BYTES];
    td_stall_report(group, &r->c, "timed out", td_clock() - r->begun, text, sizeof text);
    if (group->engine_type->cannot_abort) {
        if (td_stderr_is_read(LAST_PATIENCE)) {
            fprintf(stderr, "tandem: %s; %s cannot end it otherwise, so this process ends\n", text,
                    group->engine_type->name);
        }
        _exit(1);
    }
    td_group_break(group, TD_E_TIMEOUT, text);
}

/* Breaks the group if the engine sees that another rank has died. (A wait for the end of a send,
 * for example, notices nothing by itself.) */
static void watchdog_look_for_dead(td_group *group, const running *r)
{
    const td_engine_type *type = group->engine_type;
    if (r->begun > 0 && type->look != NULL) {
        td_status status = type->look(group->engine);
        if (status != TD_OK) {
            td_group_break(group, status, td_last_error());
        }
    }
}

/* Prints the stall report of a collective, once. This thread ends what is over: it does not wait
 * for a reader. */
static void report(td_group *group, const running *r)
{
    double waited = td_clock() - r->begun;
    if (r->begun > 0 && waited >= group->watch.stall && group->watch.reported != r->count) {
        char text[TD_CAUSE_BYTES];
        group->watch.reported = r->count;
        td_stall_report(group, &r->c, "still waits", waited, text, sizeof text);
        if (td_stderr_is_read(0)) {
            fprintf(stderr, "tandem: %s\n", text);
        }
    }
}

static void watchdog_look(td_group *group, const running *r)
{
    bool over = r->begun > 0 && td_clock() >= r->c.deadline;
    if (over) {
        end_it(group, r);
    }
    watchdog_look_for_dead(group, r);
    td_device_look(group);
    if (!over) { /* last, because a report may wait for other ranks' answers */
        report(group, r);
    }
}

/* ---- the thread ---- */

/* The time of the next look: after PERIOD, or at an earlier deadline. With the queue's lock. */
static double next_look(const td_group *group)
{
    double now = td_clock(), next = now + PERIOD;
    running r = running_in(group);
    return r.begun > 0 && r.c.deadline > now && r.c.deadline < next ? r.c.deadline : next;
}

static void *watch(void *arg)
{
    td_group *group = arg;
    td_queue *q = &group->queue;
    pthread_mutex_lock(&q->lock);
    while (!group->watch.stops) {
        double next = next_look(group);
        if (!td_condition_await(&group->watch.stop, &q->lock, next)) {
            notice_pause(group, next);
            running r = running_in(group);
            pthread_mutex_unlock(&q->lock);
            watchdog_look(group, &r);
            pthread_mutex_lock(&q->lock);
        }
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

td_status td_watchdog_start(td_group *group)
{
    static const double STALL = 10;
    struct group_watch *w = &group->watch;
    const char *text = getenv("TANDEM_DIST_STALL");
    double given = text != NULL ? td_strtod(text, NULL) : 0;
    w->stall = given > 0 ? given : STALL;
    td_condition_init(&w->stop);
    int error = td_thread_start(&w->thread, watch, group);
    if (error != 0) {
        pthread_cond_destroy(&w->stop);
        return td_fail(TD_E_NOMEM, "no thread for the watchdog: %s", strerror(error));
    }
    w->on = true;
    return TD_OK;
}

void td_watchdog_stop(td_group *group)
{
    struct group_watch *w = &group->watch;
    if (!w->on) {
        return;
    }
    pthread_mutex_lock(&group->queue.lock);
    w->stops = true;
    pthread_cond_signal(&w->stop);
    pthread_mutex_unlock(&group->queue.lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->stop);
    w->on = false;
}
