/* The table that a communication engine for CPU memory implements: shm, gloo, mpi. The core
 * (group.c) owns the queue, the communication thread, the work handles, the watchdog and the
 * sequence numbers; an engine moves bytes. */
#ifndef TD_DIST_BACKEND_H
#define TD_DIST_BACKEND_H

#include "dist/dist.h"
#include "dist/store.h"

typedef enum td_collective_kind {
    TD_COLLECTIVE_ALL_REDUCE,
    TD_COLLECTIVE_BROADCAST,
    TD_COLLECTIVE_REDUCE,
    TD_COLLECTIVE_ALL_GATHER,
    TD_COLLECTIVE_REDUCE_SCATTER,
    TD_COLLECTIVE_GATHER,
    TD_COLLECTIVE_SCATTER,
    TD_COLLECTIVE_ALL_TO_ALL,
    TD_COLLECTIVE_SEND,
    TD_COLLECTIVE_RECV,
    TD_COLLECTIVE_BARRIER,
    TD_COLLECTIVE_MEMORY, /* td_group_memory: count is in bytes, out points to a void * */
    TD_COLLECTIVE_REPLAY, /* a captured step with all its collectives; of GPUs alone */
    TD_COLLECTIVE_COUNT
} td_collective_kind;

typedef struct td_collective {
    td_collective_kind kind;
    td_dtype dtype;
    td_reduction op;
    int peer;       /* root, or the other side of send/recv */
    const void *in; /* in == out: in place */
    void *out;
    int64_t count;   /* elements per rank: of a piece where there are `size` pieces */
    uint64_t number; /* in its group, from 1; sends and receives are counted apart */
    double deadline; /* seconds on CLOCK_MONOTONIC */
    bool background; /* on the communication thread: do not spin, the cores are for computing */
} td_collective;

/* What a rank has entered last, for reports. */
typedef struct td_entered {
    uint64_t number; /* 0: nothing yet */
    td_collective_kind kind;
    td_dtype dtype;
    td_reduction op;
    int peer;
    int64_t count;
    char note[96]; /* what else is known, or "": "its process, pid 123, is stopped" */
} td_entered;

enum {
    TD_BACKEND_CPU = 1,      /* works on CPU memory; GPUs' is for device_engine.h */
    TD_BACKEND_BLOCKING = 4, /* run() returns when done: the core gives it its thread */
    TD_BACKEND_POLL = 16,    /* start() and poll() instead of run() (mpi) */
    TD_BACKEND_TIMEOUT = 32, /* keeps the deadline itself; otherwise the watchdog aborts */
    TD_BACKEND_ABORT = 64,   /* abort() frees a stuck call and leaves the process usable */
};

typedef struct td_comm_backend_init {
    int rank, size;
    td_store *store;     /* under the group's own prefix */
    const char *address; /* of this host, for peers; NULL: unknown */
    double timeout;
} td_comm_backend_init;

typedef struct td_comm_backend {
    const char *name;
    unsigned flags;
    td_status (*init)(void **engine, const td_comm_backend_init *init);
    td_status (*run)(void *engine, const td_collective *c);
    /* With TD_BACKEND_POLL for everything. Otherwise for sends and receives, which must not hold
     * each other up, or NULL: run() does them one after the other. c lives until poll says done. */
    td_status (*start)(void *engine, const td_collective *c, void **request);
    td_status (*poll)(void *engine, void *request, bool *done);
    /* Between polls: waits until something may have changed, at most for so long. NULL: the core
     * sleeps for 100 us. */
    void (*idle)(void *engine, double seconds, bool background);
    void (*nudge)(void *engine); /* ends an idle() of another thread; NULL if idle is */
    /* Fails whatever runs, here and as far as possible on the other ranks, and everything later.
     * The first reason counts. Any thread, any number of times. */
    void (*abort)(void *engine, td_status status, const char *reason);
    /* What another rank has entered last, if the engine sees that. NULL: the core asks through the
     * store. Any thread, also while run() runs. */
    bool (*entered)(void *engine, int rank, td_entered *entered);
    /* Fails if another rank has died. NULL: that is noticed in collectives alone. Any thread. */
    td_status (*look)(void *engine);
    /* CPU seconds that threads of the engine's own have used. NULL: it has none. Any thread. */
    double (*cpu_seconds)(void *engine);
    /* Memory for collectives without copies: zeroed, on every rank (a collective, of kind
     * TD_COLLECTIVE_MEMORY). NULL: none of its own. If it returns TD_E_NOMEM, it does so on all
     * ranks, and the group lives on; other failures break it. */
    td_status (*memory)(void *engine, const td_collective *c, void **memory);
    void (*memory_free)(void *engine, void *memory);
    void (*destroy)(void *engine);
} td_comm_backend;

extern const td_comm_backend td_shm_backend;

/* "shm", "gloo", "mpi". NULL with td_last_error(): what to install, or what names there
 * are. */
const td_comm_backend *td_comm_backend_find(const char *name);

/* CPU seconds that a group's communication has used in threads of its own. */
double td_group_cpu_seconds(const td_group *group);

#endif
