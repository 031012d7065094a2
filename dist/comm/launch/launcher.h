/* The launcher's parts. On each node an agent starts and watches that node's workers. One node's
 * launcher, the host, also has the store and a coordinator. The coordinator decides for all nodes:
 * which nodes take part, when workers start, stop and start again, and the exit code. Agents and
 * coordinator send each other messages through the store (link.h).
 *
 * A round is one start of all workers. Rounds are counted from 0 and never reused. The round's
 * number is the attempt in the workers' environment, the prefix of their keys and their log folder.
 */
#pragma once

#include "dist/comm/launch/children.h"
#include "dist/comm/store.h"
#include "dist/comm/token.h"

#include <sys/types.h>

enum {
    TD_LAUNCH_MAX_NODES = 4096,
    TD_LAUNCH_MAX_WORKERS = 1024, /* of a node */
    TD_LAUNCH_STDOUT = 1,
    TD_LAUNCH_STDERR = 2,
    TD_LAUNCH_PATH_BYTES = 3584
};

typedef struct td_launch_options {
    int min_nodes, max_nodes;
    int workers;      /* number of workers on this node */
    const char *mesh; /* TANDEM_MESH of the workers, which must fit all (dist/comm/mesh.h); NULL */
    int node_rank;    /* -1: in the order of arrival */
    bool hosts;       /* this node has the store and the coordinator */
    bool may_host;    /* this node has them if nobody listens at the port yet */
    const char *host; /* the store's host, as all nodes reach it */
    int port;         /* 0: a free one (one node only) */
    const char *run_id; /* "": a random one */
    td_token token;     /* the job's; all nodes have the same */
    int max_restarts;
    double monitor_interval; /* seconds between checks of the workers; fewer on the host */
    double join_timeout;     /* seconds for which nodes wait for each other */
    double grace;            /* seconds from SIGTERM to SIGKILL */
    const char *log_dir;     /* NULL: a temporary one */
    /* Which streams of a local rank go to a file only, or to a file and the console. */
    unsigned char redirects[TD_LAUNCH_MAX_WORKERS], tee[TD_LAUNCH_MAX_WORKERS];
    unsigned char quiet[TD_LAUNCH_MAX_WORKERS]; /* 1: a local rank prints nothing on the console */
    char **argv;                                /* the program and its arguments, ending in NULL */
} td_launch_options;

/* Runs the launcher. Returns the exit code: 0, that of the worker that failed first, or 128 +
 * signal. Signals stay blocked, so that one that comes later does not change the exit code: only
 * the end of this process may follow. */
int td_launch(const td_launch_options *options);

/* Whether a run's name can be a folder's. */
bool td_run_id_is_valid(const char *run_id);

/* The worker that failed first, and why. */
typedef struct td_worker_failure {
    double when; /* on this host's td_clock(); on its way it is how long ago that was */
    int rank, local_rank, node;
    long pid;
    int status; /* from waitpid */
    char host[128];
    char log[512]; /* the worker's log folder; "": its streams went to the console */
    char message[1500];
} td_worker_failure;

/* The failure as a text on its way to the coordinator, and back. */
void td_failure_pack(const td_worker_failure *failure, char *text, size_t size);
bool td_failure_unpack(const char *text, td_worker_failure *failure);
/* As people read it: "rank 1 failed first: exit code 3\n  host ..., pid ..., ...\n  message..." */
void td_failure_text(const td_worker_failure *failure, int round, char *text, size_t size);

/* ---- the workers of one node (workers.c) ---- */

/* One round, as this node sees it. */
typedef struct td_round {
    int number, restarts;
    int node, nodes, first_rank, world_size;
    char run_id[128];
} td_round;

typedef struct td_workers td_workers;
/* Call it before any thread is started. */
td_status td_workers_open(const td_launch_options *options, td_workers **workers);
/* The workers' MASTER_ADDR and MASTER_PORT: the store's. host must stay valid. */
void td_workers_meet_at(td_workers *w, const char *host, int port);
/* A worker that cannot be started counts as one that failed. */
void td_workers_start(td_workers *w, const td_round *round, td_signal_watch *watch);
/* Reaps ended workers. true: a worker has failed, the first of the round; *failure describes it. */
bool td_workers_look(td_workers *w, td_worker_failure *failure);
/* Whether workers of an elastic run (dist/elastic/elastic.h: this process and its workers have
 * TANDEM_ELASTIC) have been ended by a signal; and starts other workers in their places. world: the
 * latest that the run has made. After many deaths without a new world dead workers are not
 * replaced, and td_workers_look reports them. */
bool td_workers_struck(const td_workers *w);
void td_workers_replace(td_workers *w, int world, td_signal_watch *watch);
/* The workers, to count, stop and signal them; w keeps the list. */
td_children *td_workers_children(const td_workers *w);
/* keep_logs: keeps a temporary log folder if a worker's output is in it. */
void td_workers_close(td_workers *w, bool keep_logs);

/* ---- a temporary folder (remains.c) ---- */

/* Makes a folder in $TMPDIR. */
td_status td_launch_folder_make(char path[TD_LAUNCH_PATH_BYTES]);
bool td_launch_folder_remove(const char *path); /* with all that is in it */

/* ---- a process that ends the workers if the launcher dies (remains.c) ---- */

/* A worker dies with its parent, but processes that the worker has started do not. The guard sees
 * the list of workers in shared memory. When its pipe closes, the guard kills the process groups of
 * those that run, and removes the temporary folder, unless td_guard_end was called. A process in
 * another group or session outlives the launcher's SIGKILL. */
typedef struct td_guard {
    pid_t pid;
    int pipe;
    uint64_t start_time; /* as td_process_state's */
} td_guard;
/* Inside a signal watch, before any thread is started. folder: the temporary one, "": none. */
td_status td_guard_start(td_guard *guard, const td_children *workers, const char *folder);
void td_guard_end(td_guard *guard);

/* ---- processes that workers have left (remains.c) ---- */

/* From here on, processes whose parents have ended become children of this one, in whatever session
 * they are. Without it, they become those of init. */
void td_orphans_adopt(void);
/* Reaps those that have ended: all children of this process but its own and the guard. With `end`
 * kills the others, too, if they are younger than the guard, and waits for their ends, 2 seconds at
 * most. */
void td_orphans_look(const td_children *own, const td_guard *guard, bool end);

/* ---- output (output.c) ---- */

/* Prints a line of the launcher's own. Waits 2 seconds for somebody to read the console, after a
 * signal (which has come already if `stopped`) only a moment. false: the line is lost. */
bool td_launch_say(const td_signal_watch *watch, bool stopped, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Threads that copy lines from pipes to files and the console, one for each pipe. */
typedef struct td_output td_output;
td_status td_output_start(td_output **output);
/* Makes a pipe and returns its writing end, for a worker; negative: td_status. Lines from the pipe
 * go to the file (which the output closes) and, as "[rank] line", to the console descriptor. */
int td_output_add(td_output *o, int rank, int file, int console);
/* Waits until all pipes have ended, at most `timeout` seconds. false: they have not. */
bool td_output_flush(td_output *o, double timeout);
void td_output_stop(td_output *o);

/* ---- the coordinator, on the host (coordinator.c) ---- */

typedef struct td_coordinator td_coordinator;
td_coordinator *td_coordinator_new(const td_launch_options *options, td_store *store); /* or NULL */
/* Reads what has come, and decides. */
void td_coordinator_look(td_coordinator *c);
/* The number of missing nodes, if none has come for some seconds; otherwise 0. */
int td_coordinator_missing(const td_coordinator *c, double seconds);
/* NULL is fine. Whether a node was lost, which the end cannot reach. */
bool td_coordinator_free(td_coordinator *c);

/* ---- the agent (agent.c) ---- */

enum {
    TD_AGENT_LOST = -1,  /* the store or its host is gone; no worker runs */
    TD_AGENT_AGAIN = -2, /* the coordinator had given this node up; no worker runs */
};

/* Runs until the coordinator ends the job. Returns the exit code, or one of these. On the host it
 * also runs the coordinator, elsewhere NULL. */
int td_agent_run(const td_launch_options *options, td_store *store, td_workers *workers,
                 td_signal_watch *watch, td_coordinator *coordinator);
