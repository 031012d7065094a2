/* Simulated jobs: ranks are threads of one process. They run the real code on real numbers, so
 * their result has the bits of as many processes. Each rank has a clock of its own, which no real
 * time moves: kernels move it by what they would cost, waiting for other ranks by what a network
 * would take. docs/simulation.md says what is simulated, and what is not.
 *
 * With TANDEM_SIM set, as tdrun --sim sets it, td_spawn simulates the ranks of a program. */
#pragma once

#include "dist/comm/comm.h"

TD_BEGIN_C

typedef struct td_sim_options {
    int ranks;                 /* at least 1 */
    double latency, bandwidth; /* of a link: seconds, and bytes a second (above 0) */
    const char *kernels;       /* a file of td_sim_write_kernels; NULL: assumed limits */
    int cores;                 /* cores that the ranks share; 0: each rank has one */
    int killed;                /* the rank that dies at `killed_at` seconds of its clock */
    double killed_at;          /* 0: no rank dies */
} td_sim_options;

/* What a rank has done, by its clock. */
typedef struct td_sim_times {
    double clock;   /* seconds */
    double waited;  /* seconds of waiting for other ranks: communication that was not hidden */
    double sending; /* seconds of the rank's collectives and messages, hidden or not */
    double bytes;   /* that the rank has sent, as docs/simulation.md counts them */
} td_sim_times;

typedef struct td_sim_result {
    td_sim_times whole; /* of the rank whose clock is latest */
    td_sim_times step;  /* the mean over steps and ranks: from the first call of an optimizer to
                           the last */
    int steps;          /* of rank 0; if it is below 2, `step` is 0 */
    double assumed;     /* share of the kernels' time for which the file has no line */
} td_sim_result;

/* Runs fn(rank, arg) on each rank, and waits for all ranks. TD_E_PEER: fn has returned another
 * number than 0; the message is of the rank whose failure is first by the clock, and *result is
 * valid. Other errors, without a result: the file of kernels, or no memory. */
td_status td_sim_run(const td_sim_options *options, int (*fn)(int rank, void *arg), void *arg,
                     td_sim_result *result);

/* The calling rank's clock, in seconds. */
double td_sim_clock(void);

/* Writes what a profile (tensor/observe/profile.h) has measured as a file of kernels' costs. */
td_status td_sim_write_kernels(const char *path);

TD_END_C
