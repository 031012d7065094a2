/* What hangs on steps and their memory: observers, which are told, and a recorder, which notes a
 * step so that a device can repeat it. tensor/observe/ and tensor/graph/ are clients. */
#ifndef TD_TENSOR_HOOKS_H
#define TD_TENSOR_HOOKS_H

#include "tensor/extern_c.h"
#include "tensor/tensor.h"

TD_BEGIN_C

/* ---- observers: of all threads' steps; functions run on the step's thread, each may be NULL ----
 */

typedef struct td_step_observer {
    void (*ended)(double begin, double end, void *user); /* a step; seconds on CLOCK_MONOTONIC */
    /* Memory of a step: bytes are rounded up to the arena's grain. Blocks that are alive at the
     * step's end are not given back one by one: `ended` is the end of all of them. */
    void (*taken)(const void *arena, td_device device, size_t offset, size_t bytes, void *user);
    void (*given)(const void *arena, size_t offset, void *user);
    /* A stretch of time that somebody has named: waiting for data, say. */
    void (*span)(const char *name, double begin, double end, void *user);
    void *user;
    struct td_step_observer *next; /* the list's */
} td_step_observer;

/* Adds and removes an observer, between steps. Threads that run steps share `user`. */
void td_observe_steps(td_step_observer *observer);
void td_ignore_steps(td_step_observer *observer);
bool td_steps_observed(void);

/* A stretch of time outside of kernels; nothing if nobody observes. */
void td_tell_span(const char *name, double begin, double end);

/* For step.c and arena.c: tell the observers. */
void td_tell_ended(double begin, double end);
void td_tell_taken(const void *arena, td_device device, size_t offset, size_t bytes);
void td_tell_given(const void *arena, size_t offset);

/* ---- the recorder of a thread's steps ---- */

typedef void (*td_fill_fn)(void *user, void *numbers);

typedef struct td_recorder td_recorder;
struct td_recorder {
    bool recording; /* kernels are noted instead of run; false: a rehearsal, they run */
    void (*not_recordable)(td_recorder *r, const char *why);
    void *(*numbers)(td_recorder *r, size_t bytes, td_fill_fn fill, void *user);
    const void *(*on_device)(const td_recorder *r, const void *host, size_t bytes);
    bool (*check_indices)(td_recorder *r, const td_tensor *index, int64_t limit, const char *op,
                          const char *what, td_site at);
    /* Memory of the thread's step was allocated, as td_step_observer's `taken` says. */
    void (*taken)(td_recorder *r, td_device device, size_t offset, size_t bytes);
};
td_recorder *td_recorder_now(void); /* NULL: steps run as usual */
void td_recorder_set(td_recorder *r);

/* Says why the running step cannot be repeated by the device: a value comes to the host, say. */
void td_not_recordable(const char *format, ...) __attribute__((format(printf, 1, 2), cold));

/* Whether the device checks that the elements of an index (i64) lie in [0, limit), and an index
 * that does not is a fatal error when a value of the device is next read. Nobody waits for the
 * check, so the kernels that read the index must bear any value. false: ask
 * kernels->indices_in_range. */
bool td_checked_by_device(const td_tensor *index, int64_t limit, const char *op, const char *what,
                          td_site at);

/* Numbers that kernels read and that change from step to step: fill(user, place) writes them, now
 * and before each repetition. The place is `own`, or the recorder's memory. */
const void *td_step_numbers(void *own, size_t bytes, td_fill_fn fill, void *user);

/* Addresses of this thread's step memory are kept by somebody (by: 1, or -1: no longer). */
void td_step_pin(int by);

TD_END_C

#endif
