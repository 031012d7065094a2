#include "tensor/watch.h"

#include "tensor/timed.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

static _Atomic(td_watcher *) watchers;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for changing the list */

static _Thread_local int depth; /* kernels that run on this thread */

bool td_watching(void)
{
    return atomic_load_explicit(&watchers, memory_order_acquire) != NULL;
}

void td_watch(td_watcher *watcher)
{
    pthread_mutex_lock(&lock);
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
    pthread_mutex_unlock(&lock);
}

double td_watch_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* What runs on this thread: the innermost name is a module's in the forward, and in the backward
 * "backward" with the operation and its module around it. */
static td_watched_call describe(const char *kernel)
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
    *call = describe(kernel);
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
    return td_watch_begins(kernel, &call) ? td_watch_clock() : 0.0;
}

void td_watch_leave(const char *kernel, double begin, td_cost cost)
{
    double end = td_watch_clock();
    if (td_watch_returns()) {
        td_watched_call call = describe(kernel);
        call.begin = begin;
        call.end = end;
        call.cost = cost;
        td_watch_tell(&call);
    }
}

void td_watch_span(const char *name, double begin, double end)
{
    if (td_watching()) {
        td_watch_tell(&(td_watched_call){
            .kernel = name, .span = true, .begin = begin, .end = end, .thread = pthread_self() });
    }
}

void td_watch_step_ended(double begin, double end)
{
    td_timed_tell(false);
    for (td_watcher *w = atomic_load(&watchers); w != NULL; w = w->next) {
        if (w->step_ended != NULL) {
            w->step_ended(begin, end, w->user);
        }
    }
}

void td_watch_taken(const void *arena, size_t offset, size_t bytes)
{
    for (td_watcher *w = atomic_load(&watchers); w != NULL; w = w->next) {
        if (w->taken != NULL) {
            w->taken(arena, offset, bytes, w->user);
        }
    }
}

void td_watch_given(const void *arena, size_t offset)
{
    for (td_watcher *w = atomic_load(&watchers); w != NULL; w = w->next) {
        if (w->given != NULL) {
            w->given(arena, offset, w->user);
        }
    }
}
