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
    int ranks;
    double latency, bandwidth; /* of a link, in seconds, and bytes a second */
    const char *kernels;       /* a file of td_sim_write_kernels; NULL: assumed limits */
    int cores;                 /* that the ranks share, each rank one; 0: as many as ranks */
    int killed;                /* a rank that dies at `killed_at` seconds; -1: none */
    double killed_at;
} td_sim_options;

/* What a rank has done, by its clock. */
typedef struct td_sim_times {
    double clock;   /* seconds */
    double waited;  /* of these for other ranks: communication that was not hidden */
    double sending; /* that its collectives and messages have taken, hidden or not */
    double bytes;   /* that it has sent */
} td_sim_times;

typedef struct td_sim_result {
    td_sim_times whole; /* of the rank whose clock is latest */
    td_sim_times step;  /* a step's mean, over ranks, too: from the first call of an optimizer to
                           the last */
    int steps;          /* of rank 0; below 2 there is no mean */
    double assumed;     /* share of the kernels' time for which the file has no line */
} td_sim_result;

/* Reads TANDEM_SIM=256, which is needed, and TANDEM_SIM_LINK=25GB/s,5us, _KERNELS=FILE, _CORES=2
 * and _KILL=3@3200us. */
td_status td_sim_read(td_sim_options *options);

/* Runs fn(rank, arg) as each rank. Its failure is that of the rank that failed first by the clock,
 * and the results are there. */
td_status td_sim_run(const td_sim_options *options, int (*fn)(int rank, void *arg), void *arg,
                     td_sim_result *result);

/* The calling rank's clock, in seconds. */
double td_sim_clock(void);

/* Writes what a profile (tensor/observe/profile.h) has measured as a file of kernels' costs. */
td_status td_sim_write_kernels(const char *path);

TD_END_C
