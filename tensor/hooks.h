/* Two ways to follow steps. The functions of an observer (tensor/observe/) are called when steps
 * end and when their memory changes. A recorder (tensor/graph/) records a step as a graph of the
 * device. */
#pragma once

#include "tensor/tensor.h"

TD_BEGIN_C

/* ---- observers of the steps of all threads. The functions run on the step's thread; each may be
 * NULL ---- */

typedef struct td_step_observer {
    /* A step has ended, or was abandoned (td_step_abandon). Times are seconds on CLOCK_MONOTONIC.
     */
    void (*ended)(double begin, double end, void *user);
    /* A block of step memory was allocated, or released. bytes are rounded up as the arena does.
     * Blocks that are in use when the step ends are not reported as released: `ended` releases all
     * of them. */
    void (*taken)(const void *arena, td_device device, size_t offset, size_t bytes, void *user);
    void (*given)(const void *arena, size_t offset, void *user);
    /* A named span of time outside of kernels, such as waiting for data, has ended. */
    void (*span)(const char *name, double begin, double end, void *user);
    /* A part of a step with its kernels, such as forward, or a transfer of `sent` bytes (0: no
     * transfer) has ended. */
    void (*part)(const char *name, double begin, double end, int64_t sent, void *user);
    void *user;
    struct td_step_observer *next; /* the list's */
} td_step_observer;

/* Adds or removes an observer. No thread may run a step meanwhile. All threads pass the same
 * `user`. */
void td_observe_steps(td_step_observer *observer);
void td_ignore_steps(td_step_observer *observer);
bool td_steps_observed(void);

/* Tells the observers of a span of time outside of kernels. */
void td_tell_span(const char *name, double begin, double end);
/* Tells the observers of a part of a step, or of a transfer. */
void td_tell_part(const char *name, double begin, double end, int64_t sent);

/* For step.c and arena.c: tell the observers. */
void td_tell_ended(double begin, double end);
void td_tell_taken(const void *arena, td_device device, size_t offset, size_t bytes);
void td_tell_given(const void *arena, size_t offset);

/* ---- the recorder of a thread's steps ---- */

typedef void (*td_fill_fn)(void *user, void *numbers);

typedef struct td_recorder td_recorder;
struct td_recorder {
    bool recording; /* the device records kernels and does not run them; false: a warm-up step, in
                       which kernels run */
    /* These serve td_not_recordable, td_step_numbers and td_checked_by_device. */
    void (*not_recordable)(td_recorder *r, const char *why);
    void *(*numbers)(td_recorder *r, size_t bytes, td_fill_fn fill, void *user);
    /* Where the device finds numbers that td_step_numbers has returned. NULL: host is not among
     * these numbers. */
    const void *(*on_device)(const td_recorder *r, const void *host, size_t bytes);
    bool (*check_indices)(td_recorder *r, const td_tensor *index, int64_t limit, const char *op,
                          const char *what, td_site at);
    /* Memory of the thread's step was allocated, as td_step_observer's `taken` says. */
    void (*taken)(td_recorder *r, td_device device, size_t offset, size_t bytes);
    /* The step was abandoned (td_step_abandon): r is no longer the thread's recorder. */
    void (*abandoned)(td_recorder *r);
};
td_recorder *td_recorder_now(void); /* NULL: steps run as usual */
void td_recorder_set(td_recorder *r);
void td_recorder_abandon(void); /* ends it by its `abandoned`, if there is one */

/* Says why the running step cannot be recorded: the host reads a value, for example. */
void td_not_recordable(const char *format, ...) __attribute__((format(printf, 1, 2), cold));

/* Asks the device to check that the elements of an index (i64) are in [0, limit). If one is not,
 * that is a fatal error when the host next reads a value of the device. The host does not wait for
 * the check, so kernels that read the index must not crash on a wrong one. false: the device does
 * not check, so call kernels->indices_in_range, which waits. */
bool td_checked_by_device(const td_tensor *index, int64_t limit, const char *op, const char *what,
                          td_site at);

/* Numbers that kernels read and that change from step to step, such as learning rates. Calls
 * fill(user, place), which writes the numbers, and returns the place: `own`, or memory of the
 * recorder, which calls fill again before each replay. */
const void *td_step_numbers(void *own, size_t bytes, td_fill_fn fill, void *user);

/* Whenever this thread calls td_step_abandon, fn runs and resets what is open on the thread (each
 * td_no_grad_begin). Autograd is the only client: fn replaces the function that was set before. */
void td_on_abandon(void (*fn)(void));

/* by 1: this thread's step memory must not be released, because a graph uses its addresses. by -1:
 * it may be released again. */
void td_step_pin(int by);

TD_END_C
