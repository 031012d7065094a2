/* The protocol between bench/run.py and the programs that it compares. A peer says `ready` and a
 * line of facts when it is set up; for each `go N` on its standard input it runs N steps and
 * answers with one line of N times in milliseconds; `quit` ends it. So several peers stay alive,
 * idle, while one runs, and rounds interleave. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline double bench_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Kilobytes of a line of /proc/self/status, such as "RssAnon:". */
static inline long bench_status_kb(const char *key)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    long kb = -1;
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0) {
            kb = strtol(line + strlen(key), NULL, 10);
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return kb;
}

/* Serves the protocol: step(user) is one step. */
static inline void bench_serve(const char *facts, void (*step)(void *user), void *user)
{
    char line[256];
    printf("ready %s\n", facts);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL && strncmp(line, "go ", 3) == 0) {
        long steps = strtol(line + 3, NULL, 10);
        for (long i = 0; i < steps; i++) {
            double begin = bench_now_ms();
            step(user);
            printf("%.6f ", bench_now_ms() - begin);
        }
        printf("| RssAnon %ld\n", bench_status_kb("RssAnon:"));
        fflush(stdout);
    }
}
