/* Tells watchers of each call of a kernel. */
#include "tensor/observe/watch.h"
#include "tensor/clock.h"

#include "tensor/hooks.h"
#include "tensor/observe/timed.h"
#include "tensor/extend.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static _Atomic(td_watcher *) watchers;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for changing the list */

static _Thread_local int depth; /* kernels that run on this thread */

/* The tables that tell, in front of the devices' own while somebody watches. */
static const td_kernels *watched_of(td_device device, const td_kernels *own)
{
    (void)own;
    return device.type == TD_DEVICE_CPU ? td_watched_kernels() : td_timed_kernels(device);
}

/* What a GPU has done by the end of a step is reported then. A step that a fatal error has ended
 * inside of a kernel has left that kernel, too. */
static void watch_step_ended(double begin, double end, void *user)
{
    (void)begin, (void)end, (void)user;
    depth = 0;
    td_timed_tell(false);
}

static void span(const char *name, double begin, double end, void *user)
{
    (void)user;
    td_watch_tell(&(td_watched_call){
        .kernel = name, .span = true, .begin = begin, .end = end, .thread = pthread_self() });
}

static td_step_observer own_observer = { .ended = watch_step_ended, .span = span };

void td_watch(td_watcher *watcher)
{
    pthread_mutex_lock(&lock);
    if (atomic_load(&watchers) == NULL) {
        td_kernels_set_wrap(watched_of);
        td_observe_steps(&own_observer);
    }
    watcher->next = atomic_load(&watchers);
    atomic_store(&watchers, watcher);
    pthread_mutex_unlock(&lock);
}

void td_unwatch(td_watcher *watcher)
{
    td_timed_tell(true);
    pthread_mutex_lock(&lock);
    td_watcher *first = atomic_load(&watchers);
    if (first == watcher) {
        atomic_store(&watchers, watcher->next);
    }
    for (; first != NULL; first = first->next) {
        if (first->next == watcher) {
            first->next = watcher->next;
        }
    }
    if (atomic_load(&watchers) == NULL) {
        td_kernels_set_wrap(NULL);
        td_ignore_steps(&own_observer);
    }
    pthread_mutex_unlock(&lock);
}

/* What runs on this thread: the innermost name is a module's in the forward, and in the backward
 * "backward" with the operation and its module around it. */
static td_watched_call watch_describe(const char *kernel)
{
    td_watched_call call = { .kernel = kernel, .thread = pthread_self(), .device = TD_CPU };
    const char *top = td_context_at(0);
    call.backward = top != NULL && strcmp(top, "backward") == 0;
    call.module = call.backward ? td_context_at(2) : top;
    return call;
}

void td_watch_tell(const td_watched_call *call)
{
    for (td_watcher *w = atomic_load(&watchers); w != NULL; w = w->next) {
        if (w->called != NULL) {
            w->called(call, w->user);
        }
    }
}

bool td_watch_begins(const char *kernel, td_watched_call *call)
{
    if (depth++ > 0) {
        return false;
    }
    *call = watch_describe(kernel);
    for (td_watcher *w = atomic_load(&watchers); w != NULL; w = w->next) {
        if (w->begins != NULL) {
            w->begins(call, w->user);
        }
    }
    return true;
}

bool td_watch_returns(void)
{
    if (--depth > 0) {
        return false;
    }
    td_watched_call call = { .thread = pthread_self() };
    for (td_watcher *w = atomic_load(&watchers); w != NULL; w = w->next) {
        if (w->returned != NULL) {
            w->returned(&call, w->user);
        }
    }
    return true;
}

double td_watch_enter(const char *kernel)
{
    td_watched_call call;
    return td_watch_begins(kernel, &call) ? td_clock() : 0.0;
}

void td_watch_leave(const char *kernel, double begin, td_cost cost)
{
    double end = td_clock();
    if (td_watch_returns()) {
        td_watched_call call = watch_describe(kernel);
        call.begin = begin;
        call.end = end;
        call.cost = cost;
        td_watch_tell(&call);
    }
}
