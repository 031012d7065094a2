/* Starts threads with signals blocked, and waits on conditions with a deadline. */
#include "tensor/system/thread.h"

#include <errno.h>
#include <signal.h>
#include <time.h>

int td_thread_start(pthread_t *thread, void *(*function)(void *), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, function, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

void td_condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

bool td_condition_await(pthread_cond_t *condition, pthread_mutex_t *lock, double deadline)
{
    struct timespec end = { .tv_sec = (time_t)deadline };
    end.tv_nsec = (long)((deadline - (double)end.tv_sec) * 1e9);
    return pthread_cond_timedwait(condition, lock, &end) != ETIMEDOUT;
}
