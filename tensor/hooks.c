/* Tells observers of steps and memory, and the recorder of what a graph must know. */
#include "tensor/hooks.h"

#include "tensor/backend.h"
#include "tensor/system/number.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>

static _Atomic(td_step_observer *) observers;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for changing the list */
static _Thread_local td_recorder *recorder;

/* ---- observers ---- */

bool td_steps_observed(void)
{
    return atomic_load_explicit(&observers, memory_order_acquire) != NULL;
}

void td_observe_steps(td_step_observer *observer)
{
    pthread_mutex_lock(&lock);
    observer->next = atomic_load(&observers);
    atomic_store(&observers, observer);
    pthread_mutex_unlock(&lock);
}

void td_ignore_steps(td_step_observer *observer)
{
    pthread_mutex_lock(&lock);
    td_step_observer *first = atomic_load(&observers);
    if (first == observer) {
        atomic_store(&observers, observer->next);
    }
    for (; first != NULL; first = first->next) {
        if (first->next == observer) {
            first->next = observer->next;
        }
    }
    pthread_mutex_unlock(&lock);
}

/* Calls the function `what` of each observer that has one. */
#define TELL(what, ...)                                                                            \
    do {                                                                                           \
        for (td_step_observer *o = atomic_load(&observers); o != NULL; o = o->next) {              \
            if (o->what != NULL) {                                                                 \
                o->what(__VA_ARGS__, o->user);                                                     \
            }                                                                                      \
        }                                                                                          \
    } while (0)

void td_tell_ended(double begin, double end)
{
    TELL(ended, begin, end);
}

void td_tell_taken(const void *arena, td_device device, size_t offset, size_t bytes)
{
    if (recorder != NULL) {
        recorder->taken(recorder, device, offset, bytes);
    }
    TELL(taken, arena, device, offset, bytes);
}

void td_tell_given(const void *arena, size_t offset)
{
    TELL(given, arena, offset);
}

void td_tell_span(const char *name, double begin, double end)
{
    TELL(span, name, begin, end);
}

void td_tell_part(const char *name, double begin, double end, int64_t sent)
{
    TELL(part, name, begin, end, sent);
}

/* ---- the recorder ---- */

td_recorder *td_recorder_now(void)
{
    return recorder;
}

void td_recorder_set(td_recorder *r)
{
    recorder = r;
}

void td_recorder_abandon(void)
{
    td_recorder *r = recorder;
    recorder = NULL;
    if (r != NULL) {
        r->abandoned(r);
    }
}

void td_not_recordable(const char *format, ...)
{
    if (recorder != NULL) {
        char why[256];
        va_list arguments;
        va_start(arguments, format);
        td_vsnprintf(why, sizeof why, format, arguments);
        va_end(arguments);
        recorder->not_recordable(recorder, why);
    }
}

bool td_checked_by_device(const td_tensor *index, int64_t limit, const char *op, const char *what,
                          td_site at)
{
    if (recorder != NULL) {
        return recorder->check_indices(recorder, index, limit, op, what, at);
    }
    const td_backend *backend = td_backend_of(td_device_of(index));
    return backend != NULL && backend->check_later(index, limit, op, what, at);
}

const void *td_step_numbers(void *own, size_t bytes, td_fill_fn fill, void *user)
{
    if (recorder != NULL) {
        return recorder->numbers(recorder, bytes, fill, user);
    }
    fill(user, own);
    return own;
}
