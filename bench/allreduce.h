/* What the all-reduce programs have in common: which sizes, how often, and what is printed. A
 * program is a rank: it calls allreduce_measure with its own all-reduce, in place, of f32 in sum;
 * rank 0 writes a line "BYTES MICROSECONDS" for each size, the median of its calls. C and C++. */
#pragma once

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ALLREDUCE_SMALLEST = 1 << 10, ALLREDUCE_LARGEST = 64 << 20, ALLREDUCE_MOST_CALLS = 300 };

static inline double allreduce_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int allreduce_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* About 128 MB in all, and at least 6 calls. */
static inline int allreduce_calls(size_t bytes)
{
    size_t calls = ((size_t)128 << 20) / bytes;
    return calls > ALLREDUCE_MOST_CALLS ? ALLREDUCE_MOST_CALLS : calls < 6 ? 6 : (int)calls;
}

static inline void allreduce_fail(const char *what)
{
    fprintf(stderr, "all-reduce: %s\n", what);
    exit(1);
}

/* values: of the largest size. reduce returns 0 if it worked. */
static inline void allreduce_measure(int rank, int size, float *values,
                                     int (*reduce)(void *user, float *values, size_t count),
                                     void *user)
{
    static double times[ALLREDUCE_MOST_CALLS];
    for (size_t bytes = ALLREDUCE_SMALLEST; bytes <= ALLREDUCE_LARGEST; bytes *= 4) {
        size_t count = bytes / sizeof(float);
        int calls = allreduce_calls(bytes);
        for (size_t i = 0; i < count; i++) {
            values[i] = (float)(rank + 1);
        }
        if (reduce(user, values, count) != 0 || values[0] != (float)(size * (size + 1) / 2) ||
            values[count - 1] != values[0]) {
            allreduce_fail("it fails, or the sum is wrong");
        }
        for (size_t i = 0; i < count; i++) {
            values[i] = 0;
        }
        for (int i = -5; i < calls; i++) { /* five to warm up */
            double begin = allreduce_now();
            if (reduce(user, values, count) != 0) {
                allreduce_fail("it fails");
            }
            times[i < 0 ? 0 : i] = allreduce_now() - begin;
        }
        qsort(times, (size_t)calls, sizeof times[0], allreduce_compare);
        if (rank == 0) {
            printf("%zu %.2f\n", bytes, times[calls / 2]);
            fflush(stdout);
        }
    }
}
