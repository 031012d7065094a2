/* A process group, internal view. */
#pragma once

#include "dist/comm/engine.h"
#include "dist/comm/device_engine.h"
#include "dist/comm/queue.h"

#include <pthread.h>
#include <stdatomic.h>

enum { TD_CAUSE_BYTES = 2048 };

/* Registered memory (td_group_memory) that tensors still use. */
typedef struct td_group_lender td_group_lender;

struct td_group {
    int rank, size;
    int index;       /* 0: the world; counts the groups of this init */
    char label[256]; /* begins messages: "group of ranks 1, 3: "; "" for the world */
    const td_engine_type *engine_type;
    void *engine; /* NULL in a group of one */
    td_store *store;
    double timeout;
    td_queue queue;
    td_group_lender *lenders;

    atomic_int broken; /* td_status */
    char cause[TD_CAUSE_BYTES];

    /* GPUs' collectives (device_engine.h). */
    struct td_captured_peers *captured; /* td_group_captured's; NULL: not asked for yet */
    char device_wish[16];               /* "nccl": the group must use NCCL; "": the best engine */
    _Atomic(td_device_engine *) device_engine;
    atomic_bool stages; /* without such an engine: collectives run on copies in CPU memory */
    td_device staged;   /* the device whose collectives are staged */
    td_host_copy *unused_staged;
    atomic_uint_fast64_t device_collectives; /* numbers given out */

    /* The watchdog. The queue's lock protects `stops`. */
    struct group_watch {
        pthread_t thread;
        pthread_cond_t stop;
        bool on, stops;    /* the thread runs; it is asked to end */
        double stall;      /* seconds until a stall report is printed */
        uint64_t reported; /* td_queue.begun of the last collective that was reported */
        /* Of the watchdog's thread: when this process last went on after it had stood still, and
         * for how long what ran then has stood still. */
        double stood_until, stood_for;
    } watch;
};

/* NULL: the world. Fatal before td_dist_init. */
td_group *td_group_or_world(td_group *group);

/* Breaks the group. The first cause stays, and the engine tells it to the other ranks if it can.
 * Call it without the queue's lock. */
void td_group_break(td_group *group, td_status status, const char *cause);
/* The same with td_last_error(); returns the group's status, with its cause as the message. */
td_status td_group_fail(td_group *group, td_status status);

/* Fails with the cause if the group is broken. */
td_status td_group_check(td_group *group);

/* Ends the group's threads, its engine and the group. Outstanding collectives fail (the watchdog
 * makes sure of it). NULL: nothing to do. */
void td_group_end(td_group *group);

/* collectives.c: rank 0's text on every rank, malloc'ed also if that fails; `length` bytes, which
 * all ranks know. `mine` is read on rank 0 only. A rank without memory ends the group. */
td_status td_text_of_root(td_group *group, const char *mine, int64_t length, char **text);

/* When the group ends: its registered memory that tensors still use ends with it. */
void td_group_forget_memory(td_group *group);
