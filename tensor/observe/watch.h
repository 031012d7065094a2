/* Watching kernels run: who calls which, for which module, for how long, and how much work it was.
 * The profiler, the memory plan and the timeline are watchers; without one the kernels are called
 * as they are. */
#ifndef TD_TENSOR_WATCH_H
#define TD_TENSOR_WATCH_H

#include "tensor/extern_c.h"
#include "tensor/kernels.h"
#include "tensor/observe/cost.h"

#include <pthread.h>

TD_BEGIN_C

/* One call of a kernel, or a stretch of time that somebody has named (td_tell_span). */
typedef struct td_watched_call {
    const char *kernel; /* "conv2d_grad_input", static */
    const char *module; /* "layer1.0.conv1 (Conv2d)"; NULL: outside of modules */
    bool backward;
    bool span;         /* no kernel: waiting for data, marking gradients */
    double begin, end; /* seconds on CLOCK_MONOTONIC */
    pthread_t thread;  /* that called it */
    td_device device;  /* that did it; spans: the CPU */
    td_cost cost;
} td_watched_call;

typedef struct td_watcher {
    /* Each may be NULL. On the thread that calls a kernel: when it begins (name and module
     * are known then), and when the call returns (only the thread is). */
    void (*begins)(const td_watched_call *call, void *user);
    void (*returned)(const td_watched_call *call, void *user);
    /* It is over. A CPU's kernels: on that thread, at once. A GPU's: on any thread, some steps
     * later, in the order of its work. */
    void (*called)(const td_watched_call *call, void *user);
    void *user;
    struct td_watcher *next; /* the list's */
} td_watcher;

/* Adds a watcher, and takes it out again, told of all that was called. Not while kernels are
 * called. */
void td_watch(td_watcher *watcher);
void td_unwatch(td_watcher *watcher);

/* The table whose functions tell the watchers and call the device's. */
const td_kernels *td_watched_kernels(void);

/* For the watched table: around a kernel. Kernels that kernels call are part of these. */
double td_watch_enter(const char *kernel);
void td_watch_leave(const char *kernel, double begin, td_cost cost);

/* For timed.c: the same in parts. Whether a kernel begins that is no part of another one, which is
 * described then; whether it returns; telling that a call is over. */
bool td_watch_begins(const char *kernel, td_watched_call *call);
bool td_watch_returns(void);
void td_watch_tell(const td_watched_call *call);

TD_END_C

#endif
