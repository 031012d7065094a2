/* The watchdog: one thread for all groups of the process. A group is in its list from
 * td_watchdog_start to td_watchdog_stop; the first group starts the thread, and the last one ends
 * it. */
#include "dist/watchdog.h"

#include "tensor/clock.h"
#include "dist/group.h"
#include "dist/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double PERIOD = 0.25; /* seconds between two rounds */

static struct {
    pthread_mutex_t life; /* held while a group enters or leaves; the thread never takes it */
    pthread_mutex_t lock; /* protects the members below; taken before a queue's lock */
    pthread_cond_t left;  /* the thread: the last group has left */
    pthread_cond_t looked;
    pthread_t thread;
    td_group *first;
    const td_group *looks_at; /* a group stays in the list while the thread looks at it */
} dog = { .life = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .looked = PTHREAD_COND_INITIALIZER };

/* ---- looking at a group ---- */

/* The collective that runs. */
typedef struct running {
    td_collective c;
    double begun;   /* 0: nothing runs */
    uint64_t count; /* of collectives that have begun */
} running;

static running running_in(td_group *group)
{
    td_queue *q = &group->queue;
    pthread_mutex_lock(&q->lock);
    running r = { .begun = q->current_begun, .count = q->begun };
    if (r.begun > 0) {
        r.c = q->current;
    }
    pthread_mutex_unlock(&q->lock);
    return r;
}

/* Ends a collective that is past its deadline: breaks the group or, if the engine cannot abort,
 * ends the process. */
static void end_it(td_group *group, const running *r)
{
    char text[TD_CAUSE_BYTES];
    td_stall_report(group, &r->c, "timed out", td_clock() - r->begun, text, sizeof text);
    if (group->engine_type->cannot_abort) {
        fprintf(stderr, "tandem: %s; %s cannot end it otherwise, so this process ends\n", text,
                group->engine_type->name);
        _exit(1);
    }
    td_group_break(group, TD_E_TIMEOUT, text);
}

/* Breaks the group if the engine sees that another rank has died: not all that waits is told. */
static void look_for_dead(td_group *group, const running *r)
{
    const td_engine_type *type = group->engine_type;
    if (r->begun > 0 && type->look != NULL) {
        td_status status = type->look(group->engine);
        if (status != TD_OK) {
            char text[TD_CAUSE_BYTES];
            snprintf(text, sizeof text, "%s", td_last_error());
            td_group_break(group, status, text);
        }
    }
}

/* Always false: the next group has its turn. */
static bool check(td_group *group)
{
    running r = running_in(group);
    if (r.begun > 0 && td_clock() >= r.c.deadline) {
        end_it(group, &r);
    }
    look_for_dead(group, &r);
    td_device_look(group);
    return false;
}

/* Prints the stall report of a collective, once. */
static bool report(td_group *group)
{
    running r = running_in(group);
    double waited = td_clock() - r.begun;
    if (r.begun == 0 || waited < group->watch.stall || group->watch.reported == r.count) {
        return false;
    }
    char text[TD_CAUSE_BYTES];
    group->watch.reported = r.count;
    td_stall_report(group, &r.c, "still waits", waited, text, sizeof text);
    fprintf(stderr, "tandem: %s\n", text);
    return true;
}

/* ---- the thread ---- */

/* Calls look for the groups one after the other, until it returns true. With the lock, which is
 * released meanwhile. */
static void look_at_all(bool (*look)(td_group *group))
{
    bool done = false;
    for (td_group *group = dog.first; group != NULL && !done; group = group->watch.next) {
        dog.looks_at = group;
        pthread_mutex_unlock(&dog.lock);
        done = look(group);
        pthread_mutex_lock(&dog.lock);
        dog.looks_at = NULL;
        pthread_cond_broadcast(&dog.looked);
    }
}

/* The time of the next round: after PERIOD, or at an earlier deadline. With the lock. */
static double next_round(void)
{
    double now = td_clock(), next = now + PERIOD;
    for (td_group *group = dog.first; group != NULL; group = group->watch.next) {
        running r = running_in(group);
        bool sooner = r.begun > 0 && r.c.deadline > now && r.c.deadline < next;
        next = sooner ? r.c.deadline : next;
    }
    return next;
}

/* Reports come after all deadlines, one in a round. */
static void *watch(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&dog.lock);
    while (dog.first != NULL) {
        if (!td_condition_await(&dog.left, &dog.lock, next_round())) {
            look_at_all(check);
            look_at_all(report);
        }
    }
    pthread_mutex_unlock(&dog.lock);
    return NULL;
}

td_status td_watchdog_start(td_group *group)
{
    static const double STALL = 10;
    const char *text = getenv("TANDEM_DIST_STALL");
    group->watch.stall = text != NULL && atof(text) > 0 ? atof(text) : STALL;
    pthread_mutex_lock(&dog.life);
    pthread_mutex_lock(&dog.lock);
    bool starts = dog.first == NULL;
    group->watch.next = dog.first;
    dog.first = group;
    pthread_mutex_unlock(&dog.lock);
    int error = 0;
    if (starts) {
        td_condition_init(&dog.left);
        error = td_thread_start(&dog.thread, watch, NULL);
    }
    if (error != 0) {
        dog.first = NULL;
        pthread_cond_destroy(&dog.left);
    }
    group->watch.on = error == 0;
    pthread_mutex_unlock(&dog.life);
    return error == 0 ? TD_OK
                      : td_fail(TD_E_NOMEM, "no thread for the watchdog: %s", strerror(error));
}

void td_watchdog_stop(td_group *group)
{
    if (!group->watch.on) {
        return;
    }
    group->watch.on = false;
    pthread_mutex_lock(&dog.life);
    pthread_mutex_lock(&dog.lock);
    while (dog.looks_at == group) {
        pthread_cond_wait(&dog.looked, &dog.lock);
    }
    td_group **link = &dog.first;
    while (*link != group) {
        link = &(*link)->watch.next;
    }
    *link = group->watch.next;
    bool last = dog.first == NULL;
    if (last) {
        pthread_cond_signal(&dog.left);
    }
    pthread_mutex_unlock(&dog.lock);
    if (last) {
        pthread_join(dog.thread, NULL);
        pthread_cond_destroy(&dog.left);
    }
    pthread_mutex_unlock(&dog.life);
}
