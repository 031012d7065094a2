/* For tests of dist/: several ranks as processes, with a limit on their time, so that nothing can
 * hang. In ranks use REQUIRE, not cmocka's asserts, which belong to the parent. */
#pragma once

#include "dist/dist.h"

#include <stdbool.h>
#include <sys/types.h>

enum { PROCS_MAX = 16, PROCS_OUTPUT_BYTES = 8192 };

/* How a rank has ended. */
typedef struct procs_end {
    int code;                        /* exit code, negative if it was killed */
    int signal;                      /* that killed it, or 0 */
    double seconds;                  /* from the start of all ranks to its end */
    char output[PROCS_OUTPUT_BYTES]; /* what it wrote to stderr */
} procs_end;

/* What a rank does; returns its exit code. pids: of all ranks, filled in as they start (shared). */
typedef int (*procs_fn)(int rank, int size, void *arg);

/* Forks `size` ranks and waits for all, at most `limit` seconds: then they are killed. */
void procs_run(int size, double limit, procs_fn fn, void *arg, procs_end *ends);

/* The same, and fails the test unless all end with 0. In a program that mpirun has started, this
 * process is one of the ranks, and the call counts only if there are as many as it wants: so a
 * program is run once for each number of ranks (test_dist_mpi.sh). */
void procs_succeed(int size, double limit, procs_fn fn, void *arg);

/* Whether ranks that procs_succeed is given run in this program: under mpirun, so many only. */
bool procs_would_run(int size);

/* In a rank: td_dist_init over a file store that all ranks of this run share. Fails the rank unless
 * it works. */
void procs_init(int rank, int size, double timeout);
/* The same with other options (init_method, rank and world_size are filled in). */
td_status procs_try_init(int rank, int size, td_dist_options *options);

/* Of the following runs: ranks meet over TCP, at a port that is free now, not in a file. */
void procs_meet_over_tcp(bool over_tcp);

/* In the parent, after a run: fails the test if a process of it is still there, anything of ours in
 * /dev/shm, or a listener of ours on the port where the ranks have met. */
void procs_assert_nothing_left(void);

/* Whether the runs are over this backend ($TANDEM_BACKEND, otherwise shm). */
bool procs_are_over(const char *backend);

/* In a rank: meets the others, as td_dist_init begins, and is killed. */
_Noreturn void procs_meet_and_die(int rank, int size);

/* In a rank: the pid of another, once it has started. */
pid_t procs_pid(int rank);

/* In a rank: this one has come to some point of the test; waits until so many calls of procs_arrive
 * have been made in this run. So a test need not guess how long the others take. */
void procs_arrive(void);
void procs_await(int count);
/* In a rank: waits until another has been stopped (SIGSTOP). */
void procs_await_stopped(int rank);

/* In a rank: ends it with a message unless condition holds. */
#define REQUIRE(condition) procs_require((condition), #condition, __FILE__, __LINE__)
void procs_require(bool holds, const char *condition, const char *file, int line);
#define REQUIRE_OK(expression) procs_require((expression) == TD_OK, #expression, __FILE__, __LINE__)

/* In the parent: fails the test unless the rank's output has the text. */
void procs_assert_says(const procs_end *ends, int rank, const char *text);
