/* Seconds for deadlines and measurements. */
#pragma once

#include <time.h>

/* CLOCK_MONOTONIC, in seconds. */
static inline double td_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void td_sleep(double seconds)
{
    if (seconds > 0) {
        struct timespec t = { .tv_sec = (time_t)seconds };
        t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
        nanosleep(&t, NULL);
    }
}

/* What is left until a deadline as poll() wants it: milliseconds, rounded up, 0 when it is over. */
static inline int td_milliseconds_until(double deadline)
{
    double left = (deadline - td_clock()) * 1e3;
    return left <= 0 ? 0 : left > 1e9 ? 1000000000 : (int)left + 1;
}
