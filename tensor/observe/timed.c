/* Times a GPU's kernels by events on its stream. */
#include "tensor/observe/timed.h"
#include "tensor/clock.h"

#include "tensor/backend.h"
#include "tensor/hooks.h"

#include <pthread.h>
#include <stdlib.h>

enum { MODULE = 80, MOST_CALLS = 1 << 15 }; /* that wait to be told: more are waited for */

/* A call, between two events. */
typedef struct timed_call {
    td_watched_call call;
    char module[MODULE];
    void *begin, *end;
    struct timed_call *next;
} timed_call;

/* A device's calls in the order of its work. */
typedef struct queue {
    timed_call *first, **last;
    int64_t count;
    timed_call *spare;  /* with their events */
    timed_call *before; /* the call that was told last, whose begin was at `time` */
    double time;        /* on CLOCK_MONOTONIC */
} queue;

static queue queues[TD_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for all of them */

static _Thread_local td_device current; /* whose table was asked for last */
static _Thread_local timed_call *running;

static const td_streams *streams_of(td_device device)
{
    return td_backend_of(device)->streams;
}

static bool mark(td_device device, void *event)
{
    const td_streams *streams = streams_of(device);
    return streams->record(device, event, streams->compute(device)) == TD_OK;
}

/* ---- calls ---- */

const td_kernels *td_timed_kernels(td_device device)
{
    current = device;
    return td_timed_table();
}

static timed_call *new_call(td_device device)
{
    timed_call *c = calloc(1, sizeof *c);
    const td_streams *streams = streams_of(device);
    if (c == NULL || streams->clock_new(device, &c->begin) != TD_OK) {
        free(c);
        return NULL;
    }
    if (streams->clock_new(device, &c->end) != TD_OK) {
        streams->event_free(device, c->begin);
        free(c);
        return NULL;
    }
    return c;
}

/* The device's clock and the host's, brought together once: the only time that the host waits.
 * Repeated if the host was delayed meanwhile. */
static bool begin_queue(td_device device, queue *q)
{
    const double soon = 1e-4;
    q->last = &q->first;
    q->before = new_call(device);
    if (q->before == NULL) {
        return false;
    }
    td_backend_of(device)->wait(device);
    double asked;
    int tries = 5;
    do {
        asked = td_clock();
        if (!mark(device, q->before->begin)) {
            q->before->next = q->spare;
            q->spare = q->before;
            q->before = NULL;
            return false;
        }
        td_backend_of(device)->wait(device);
        q->time = td_clock();
    } while (q->time - asked > soon && --tries > 0);
    return true;
}

/* NULL: memory is short. */
static timed_call *take_call(td_device device)
{
    queue *q = &queues[device.index];
    pthread_mutex_lock(&lock);
    bool begun = q->before != NULL || begin_queue(device, q);
    timed_call *c = begun ? q->spare : NULL;
    if (c != NULL) {
        q->spare = c->next;
    }
    pthread_mutex_unlock(&lock);
    return c != NULL || !begun ? c : new_call(device);
}

/* NULL: the call stays unseen. */
static timed_call *begin_call(td_device device, const td_watched_call *call)
{
    if (td_recorder_now() != NULL && td_recorder_now()->recording) {
        return NULL; /* its events would be those of each replay, not of a call */
    }
    timed_call *c = take_call(device);
    if (c != NULL) {
        c->call = *call;
        c->call.device = device;
        snprintf(c->module, sizeof c->module, "%s", call->module != NULL ? call->module : "");
        c->call.module = call->module != NULL ? c->module : NULL;
        (void)mark(device, c->begin);
    }
    return c;
}

const td_kernels *td_timed_enter(const char *kernel)
{
    td_device device = current;
    td_watched_call call;
    if (td_watch_begins(kernel, &call)) { /* others are part of the one that runs */
        running = begin_call(device, &call);
    }
    return td_backend_of(device)->kernels();
}

void td_timed_leave(td_cost cost)
{
    timed_call *c = running;
    if (!td_watch_returns() || c == NULL) {
        return;
    }
    running = NULL;
    c->call.cost = cost;
    c->next = NULL;
    queue *q = &queues[c->call.device.index];
    pthread_mutex_lock(&lock);
    (void)mark(c->call.device, c->end);
    *q->last = c;
    q->last = &c->next;
    bool many = ++q->count >= MOST_CALLS;
    pthread_mutex_unlock(&lock);
    if (many) {
        td_timed_tell(true);
    }
}

/* ---- telling ---- */

/* The first call of a queue, if it is over (or `all`, and the device has been waited for). */
static timed_call *next_over(td_device device, queue *q)
{
    timed_call *c = q->first;
    bool reached = false;
    if (c == NULL || streams_of(device)->reached(device, c->end, &reached) != TD_OK || !reached) {
        return NULL;
    }
    q->first = c->next;
    q->last = q->first == NULL ? &q->first : q->last;
    q->count--;
    return c;
}

/* When it began and ended, by what the device's clock says of it and the one before. */
static void find_times(td_device device, queue *q, timed_call *c)
{
    const td_streams *streams = streams_of(device);
    double since = 0, taken = 0;
    (void)streams->between(device, q->before->begin, c->begin, &since);
    (void)streams->between(device, c->begin, c->end, &taken);
    q->time += since;
    c->call.begin = q->time;
    c->call.end = q->time + taken;
    q->before->next = q->spare;
    q->spare = q->before;
    q->before = c;
}

static void tell_of(td_device device, queue *q, bool all)
{
    if (all && q->first != NULL) {
        td_backend_of(device)->wait(device);
    }
    for (timed_call *c; (c = next_over(device, q)) != NULL;) {
        find_times(device, q, c);
        td_watch_tell(&c->call);
    }
}

void td_timed_tell(bool all)
{
    if (td_recorder_now() != NULL && td_recorder_now()->recording) {
        return; /* a stream that records may be asked nothing */
    }
    pthread_mutex_lock(&lock);
    for (int i = 0; i < TD_MAX_DEVICES; i++) {
        if (queues[i].count > 0) {
            tell_of(TD_CUDA_N(i), &queues[i], all);
        }
    }
    pthread_mutex_unlock(&lock);
}
