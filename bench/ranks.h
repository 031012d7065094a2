/* The protocol of bench/peer.h for several ranks: rank 0 speaks with run.py and tells the others.
 */
#pragma once

#include "bench/peer.h"
#include "tandem.h"

#include <unistd.h>

/* `go N` for all ranks; 0 steps: the end. */
static inline int64_t bench_next_steps(void)
{
    char line[64];
    int64_t steps = 0, zero = 0;
    if (td_dist_rank() == 0 && fgets(line, sizeof line, stdin) != NULL &&
        strncmp(line, "go ", 3) == 0) {
        steps = strtol(line + 3, NULL, 10);
    }
    td_tensor *t = td_full(TD_SHAPE(1), (double)steps, TD_I64, TD_CPU);
    td_status status = td_broadcast(NULL, t, 0, NULL);
    steps = status == TD_OK ? (int64_t)td_get(t, &zero) : 0;
    td_free(t);
    return steps;
}

/* commands: the standard input, which spawned processes do not have. */
static inline void bench_serve_ranks(const char *facts, int commands, void (*step)(void *user),
                                     void *user)
{
    bool speaks = td_dist_rank() == 0;
    if (speaks) {
        dup2(commands, STDIN_FILENO);
        printf("ready %s\n", facts);
        fflush(stdout);
    }
    for (int64_t steps; (steps = bench_next_steps()) > 0;) {
        for (int64_t i = 0; i < steps; i++) {
            double begin = bench_now_ms();
            step(user);
            if (speaks) {
                printf("%.6f ", bench_now_ms() - begin);
            }
        }
        if (speaks) {
            printf("| RssAnon %ld\n", bench_status_kb("RssAnon:"));
            fflush(stdout);
        }
    }
}
