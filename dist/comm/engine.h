/* The table that a communication engine for CPU memory implements: shm, gloo, mpi, sim. The core
 * (group.c) owns the queue, the communication thread, the work handles, the watchdog and the
 * sequence numbers; an engine moves bytes. */
#pragma once

#include "dist/comm/comm.h"
#include "dist/comm/store.h"

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

/* What a sender calls a message, for the receiver to compare; zeros: nothing. */
typedef struct td_message_name {
    char text[8]; /* ends with a zero only if it is shorter */
} td_message_name;

typedef struct td_collective {
    td_collective_kind kind;
    td_dtype dtype;
    td_reduction op;
    int peer;       /* root, the other rank of a send or receive, an all-gather's unit */
    const void *in; /* in == out: in place */
    void *out;
    int64_t count;        /* elements per rank; if there are `size` pieces, elements of one piece */
    uint64_t number;      /* in its group, from 1; sends and receives have numbers of their own */
    double deadline;      /* seconds on CLOCK_MONOTONIC */
    bool background;      /* on the communication thread: do not spin, other threads compute */
    td_message_name name; /* of a send or receive */
} td_collective;

/* Which ranks give data to a collective, or take its result. */
typedef enum td_who { TD_NO_RANK, TD_ROOT, TD_EACH_RANK } td_who;

/* What a kind of collective moves. A piece is td_collective.count elements. */
typedef struct td_kind {
    const char *name; /* "all_reduce" */
    td_who gives, takes;
    bool gives_all; /* a piece for each rank; otherwise one piece, the same for all */
    bool takes_all; /* a piece from each rank; otherwise one piece */
    bool reduces;   /* by td_collective.op */
} td_kind;

const td_kind *td_kind_of(td_collective_kind kind);

/* The number of pieces in c->in and in c->out on a rank of a group of `size`: 0, 1 or size. */
int td_pieces_given(const td_collective *c, int rank, int size);
int td_pieces_taken(const td_collective *c, int rank, int size);

/* What a rank has entered, and what all ranks must agree on. */
typedef struct td_entered {
    uint64_t number; /* 0: nothing yet */
    int64_t count;
    td_collective_kind kind;
    td_dtype dtype;
    td_reduction op;
    int peer;
    td_message_name name;
} td_entered;

enum { TD_NOTE_BYTES = 96 };

typedef struct td_engine_init {
    const char *backend; /* the engine's name */
    int rank, size;
    td_store *store;     /* under the group's own prefix; its waits also fail if a rank has died */
    const char *address; /* of this host, for peers; NULL: unknown */
    double timeout;
    double connect; /* seconds: timeout, or fewer, to connect to the other ranks */
    int index;      /* the group's number among those of this td_dist_init; 0: the world */
} td_engine_init;

typedef struct td_engine_type {
    const char *name;
    bool cannot_abort; /* abort() does not end a stuck call: the watchdog ends the process */
    /* If it fails, the group tells the others, whose waits for init->store fail with the cause. If
     * it fails after it has set *engine, destroy is called. A group of one rank has no engine: init
     * is not called, and the core answers by itself. Fields that no comment lets be NULL are
     * needed. */
    td_status (*init)(void **engine, const td_engine_init *init);
    /* All collectives but sends and receives. The watchdog aborts it at c->deadline. */
    td_status (*run)(void *engine, const td_collective *c);
    /* Sends and receives, which must not block each other. c lives until poll says done. */
    td_status (*start)(void *engine, const td_collective *c, void **request);
    td_status (*poll)(void *engine, void *request, bool *done);
    /* Not NULL: the engine needs no communication thread and no watchdog, and run is NULL. start
     * then takes collectives of all kinds and does not block; end waits until one is over, and
     * frees the request; poll may be called in between. */
    td_status (*end)(void *engine, void *request);
    /* Between polls: waits until something may have changed, at most `seconds`. NULL: the core
     * sleeps for 100 us. */
    void (*idle)(void *engine, double seconds, bool background);
    void (*nudge)(void *engine); /* ends another thread's idle(); NULL if idle is NULL */
    /* Makes all running and later collectives fail, also on the other ranks if possible. The first
     * reason stays. Any thread, any number of times. */
    void (*abort)(void *engine, td_status status, const char *reason);
    /* What another rank has entered last; false: unknown. note: "" or more about the rank, "its
     * process, pid 123, is stopped". Any thread, also while run() runs. NULL where `end` is set. */
    bool (*entered)(void *engine, int rank, td_entered *entered, char note[TD_NOTE_BYTES]);
    /* Fails if another rank has died. NULL: only collectives notice a death. Any thread. */
    td_status (*look)(void *engine);
    /* CPU seconds of the engine's own threads, of all groups together. NULL: the engine has none.
     * Any thread. */
    double (*cpu_seconds)(void *engine);
    /* Bytes of data that have come from other ranks so far; in shared memory, what was read from
     * theirs or written into it. NULL: not counted. Any thread. */
    uint64_t (*moved)(void *engine);
    /* A collective (TD_COLLECTIVE_MEMORY): each rank gets zeroed memory that collectives use
     * without copies. NULL: the engine has no such memory. TD_E_NOMEM comes on all ranks, and the
     * group stays usable; other failures break it. */
    td_status (*memory)(void *engine, const td_collective *c, void **memory);
    void (*memory_free)(void *engine, void *memory);
    /* Maps all ranks' parts of such memory into one range of addresses, where cuts[k] to cuts[k +
     * 1] (in elements of `width` bytes) are the parts' k-th pieces side by side: whole pages. The
     * range is there as long as the memory. Not a collective. NULL: the engine cannot. */
    td_status (*weave)(void *engine, void *memory, const int64_t *cuts, int pieces, size_t width,
                       void **woven);
    void (*destroy)(void *engine);
} td_engine_type;

extern const td_engine_type td_shm_engine;
/* "gloo" or "mpi" if its shim can be loaded, otherwise NULL with td_last_error(). */
const td_engine_type *td_p2p_engine_find(const char *name);

/* What td_spawn does in place of starting processes; NULL: nothing. */
typedef td_status (*td_spawn_way)(const td_spawn_options *options);
td_spawn_way td_spawn_way_find(void);

/* Starts ranks as threads (engines/sim). */
td_status td_sim_spawn(const td_spawn_options *options);

/* "shm", "gloo", "mpi". A new engine is a folder in engines/, a declaration above, a branch in
 * registry.c, and its name in the message that tests/comm/test_dist_group.c expects. NULL with
 * td_last_error(): what to install, or which names there are. */
const td_engine_type *td_engine_find(const char *name);

/* CPU seconds of some groups' communication threads and of their engines' threads. A group may be
 * NULL. */
double td_groups_cpu_seconds(td_group *const *groups, int count);

/* What the group's engine has moved, counted where it moves it; GPUs' collectives are not in it. */
uint64_t td_group_moved(const td_group *group);
