/* The launcher's parts. On each node an agent starts that node's workers and looks after them. One
 * node's launcher, the host, also has the store and a coordinator, which decides for all: who takes
 * part, when everybody starts, stops, starts again, and how it ends. Agents and coordinator talk
 * through the store (launcher_link.h).
 *
 * A round is one start of all workers. Rounds are counted from 0 and never reused; a round is the
 * attempt in the workers' environment, the prefix of their keys and their log folder. */
#ifndef TD_DIST_LAUNCHER_H
#define TD_DIST_LAUNCHER_H

#include "dist/children.h"
#include "dist/store.h"

#include <sys/types.h>

enum {
    TD_LAUNCH_MAX_WORKERS = 1024,
    TD_LAUNCH_STDOUT = 1,
    TD_LAUNCH_STDERR = 2,
    TD_LAUNCH_PATH_BYTES = 3584
};

typedef struct td_launch_options {
    int min_nodes, max_nodes;
    int workers;        /* on this node */
    int node_rank;      /* -1: given out in the order of arrival */
    bool hosts;         /* this node has the store and the coordinator ... */
    bool may_host;      /* ... or it has them if nobody listens at the port yet */
    const char *host;   /* where the store is, as all nodes reach it */
    int port;           /* 0: a free one (one node only) */
    const char *run_id; /* "": made up */
    int max_restarts;
    double monitor_interval; /* seconds between looks */
    double join_timeout;     /* seconds that nodes wait for each other */
    double grace;            /* seconds from SIGTERM to SIGKILL */
    const char *log_dir;     /* NULL: a temporary one */
    /* Which streams of a local rank go to a file only, or to a file and the console. */
    unsigned char redirects[TD_LAUNCH_MAX_WORKERS], tee[TD_LAUNCH_MAX_WORKERS];
    bool quiet[TD_LAUNCH_MAX_WORKERS]; /* nothing of this rank on the console */
    char **argv;                       /* the program and its arguments, ending in NULL */
} td_launch_options;

/* Runs it all; returns the exit code: 0, that of the worker that failed first, or 128 + signal. */
int td_launch(const td_launch_options *options);

/* Why it ended, and which worker was first. */
typedef struct td_worker_failure {
    double when; /* wall-clock seconds */
    int rank, local_rank, node;
    long pid;
    int status; /* as of waitpid */
    char host[128];
    char log[512]; /* its log folder, "" if its streams went to the console */
    char message[1500];
} td_worker_failure;

/* ---- the workers of one node (launcher_workers.c) ---- */

/* What one round is, for this node. */
typedef struct td_round {
    int number, restarts;
    int node, nodes, first_rank, world_size;
    char run_id[128];
} td_round;

typedef struct td_workers td_workers;
/* Before there are threads. */
td_status td_workers_open(const td_launch_options *options, td_workers **workers);
/* Where the store is: MASTER_ADDR, MASTER_PORT. The host stays the caller's. */
void td_workers_meet_at(td_workers *w, const char *host, int port);
td_status td_workers_start(td_workers *w, const td_round *round, const td_signal_watch *watch);
/* Notes which have ended; true if one of them failed, the first of the round: *failure. */
bool td_workers_look(td_workers *w, td_worker_failure *failure);
int td_workers_running(const td_workers *w);
/* Begins to stop them: signal, SIGKILL after the grace period; goes on in td_workers_look. Asked
 * again it does nothing; td_workers_hurry ends the grace period of those that are being stopped. */
void td_workers_stop(td_workers *w, int signal, double grace);
void td_workers_hurry(td_workers *w);
/* keep_logs: keep what a temporary folder holds if there is something in it for people. */
void td_workers_close(td_workers *w, bool keep_logs);

/* ---- a temporary folder (launcher_folder.c) ---- */

typedef struct td_launch_folder {
    char path[TD_LAUNCH_PATH_BYTES];
    int lock; /* held as long as this process lives */
} td_launch_folder;
/* In $TMPDIR. Removes those that launchers which were killed have left there. */
td_status td_launch_folder_make(td_launch_folder *folder);
/* Removes it, or leaves it to the user. */
void td_launch_folder_end(td_launch_folder *folder, bool keep);

/* ---- a process that ends the workers if the launcher dies (launcher_guard.c) ---- */

/* A worker dies with its parent, but what it has started itself would not. The guard is told of
 * every worker's process group, and when its pipe closes it kills those that are left. */
typedef struct td_guard {
    pid_t pid;
    int pipe;
} td_guard;
td_status td_guard_start(td_guard *guard); /* before there are threads */
void td_guard_add(const td_guard *guard, pid_t group);
void td_guard_remove(const td_guard *guard, pid_t group);
void td_guard_end(td_guard *guard);

/* ---- output with a prefix (launcher_output.c) ---- */

/* A thread that copies lines from pipes to a file and the console. */
typedef struct td_output td_output;
td_status td_output_start(td_output **output);
/* A pipe whose writing end is returned, for the worker; negative: td_status. What comes goes to the
 * file (which the output closes) and, as "[rank] line", to the console descriptor. */
int td_output_add(td_output *o, int rank, int file, int console);
/* Waits until all pipes are at their end; leaves those whose processes linger. */
void td_output_flush(td_output *o, double timeout);
void td_output_stop(td_output *o);

/* ---- the coordinator's thread, on the host (launcher_coordinator.c) ---- */

typedef struct td_coordinator td_coordinator;
td_status td_coordinator_start(const td_launch_options *options, td_store *store,
                               td_coordinator **coordinator);
/* After the agent of this node has ended: waits until all others have been told. */
void td_coordinator_stop(td_coordinator *c);

/* ---- the agent (launcher_agent.c) ---- */

enum {
    TD_AGENT_LOST = -1,  /* the store or its host is gone; no worker runs any more */
    TD_AGENT_AGAIN = -2, /* the host had given this node up; no worker runs any more */
};

/* Until the coordinator says that it is over: the exit code, or one of these. */
int td_agent_run(const td_launch_options *options, td_store *store, td_workers *workers,
                 const td_signal_watch *watch);

#endif
