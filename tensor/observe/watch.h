/* Watchers: observers of kernels. A watcher's functions are called for each call of a kernel, with
 * its name, its module, its time, and its work. The profiler, the memory plan and the timeline are
 * watchers. While there is a watcher, td_kernels_of returns a table whose functions call the
 * watchers and the device's kernel. */
#pragma once

#include "tensor/observe/cost.h"

#include <pthread.h>

TD_BEGIN_C

/* One call of a kernel, or a named span of time (td_tell_span). */
typedef struct td_watched_call {
    const char *kernel; /* "conv2d_grad_input", static */
    const char *module; /* "layer1.0.conv1 (Conv2d)"; NULL: outside of modules */
    bool backward;
    bool span;         /* not a kernel: waiting for data, for example */
    double begin, end; /* seconds on CLOCK_MONOTONIC */
    pthread_t thread;  /* the thread that called the kernel */
    td_device device;  /* the device that ran the kernel; for spans, the CPU */
    td_cost cost;
} td_watched_call;

typedef struct td_watcher {
    /* Each may be NULL. These two run on the thread that calls the kernel: before the call, when
     * kernel, module and backward are set; and after the call, when only thread is set. */
    void (*begins)(const td_watched_call *call, void *user);
    void (*returned)(const td_watched_call *call, void *user);
    /* The kernel has run; all fields are set. For a CPU, this is called on the same thread right
     * after the call; for a GPU, on any thread, some steps later, in the order of the GPU's work.
     */
    void (*called)(const td_watched_call *call, void *user);
    void *user;
    struct td_watcher *next; /* the list's */
} td_watcher;

/* Adds or removes a watcher; td_unwatch first waits for GPUs and reports all calls so far to the
 * watcher. No thread may call a kernel meanwhile. */
void td_watch(td_watcher *watcher);
void td_unwatch(td_watcher *watcher);

/* The table whose functions tell the watchers and call the device's. */
const td_kernels *td_watched_kernels(void);

/* For the watched table: before and after a kernel. A kernel that another kernel calls counts as a
 * part of that one. */
double td_watch_enter(const char *kernel);
void td_watch_leave(const char *kernel, double begin, td_cost cost);

/* For timed.c, the same in three parts. td_watch_begins describes the call in *call, and returns
 * false if the kernel is a part of another one; td_watch_returns likewise. td_watch_tell tells the
 * watchers of a call that is over. */
bool td_watch_begins(const char *kernel, td_watched_call *call);
bool td_watch_returns(void);
void td_watch_tell(const td_watched_call *call);

TD_END_C
