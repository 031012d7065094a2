/* The NCCL engine from inside. */
#ifndef TD_DIST_NCCL_INTERNAL_H
#define TD_DIST_NCCL_INTERNAL_H

#include "dist/nccl/nccl.h"

#include <pthread.h>
#include <stdatomic.h>

/* Collectives under way are remembered with their events, in a ring: a slot is used again when its
 * collective is known to be over, and the ring grows where there is none. */
enum { TD_NCCL_SLOTS = 64 }; /* at first */

typedef struct td_nccl_slot {
    uint64_t ticket; /* 0: never used */
    td_collective c;
    double begun;
    void *ready, *done; /* events */
    bool in_graph;      /* it was recorded: it never ran by itself */
} td_nccl_slot;

typedef struct td_nccl_engine {
    td_device_engine base; /* first */
    const td_nccl_api *api;
    const td_streams *streams;
    int rank, size;
    bool (*broken)(void *user);
    void *user;
    td_nccl_comm comm;
    void *stream;
    pthread_mutex_t lock; /* of what follows, and of launches */
    td_nccl_slot *slots;  /* that of a ticket: ticket % slot_count */
    uint64_t slot_count;
    uint64_t launched, joined; /* tickets */
    uint64_t reached;          /* all up to this one are known to be over */
    uint64_t recorded;         /* while a graph is recorded: those after this one are its own, */
    uint64_t joined_before;    /* and so many were joined when it began */
    bool recording;
    atomic_bool aborted;
} td_nccl_engine;

void td_nccl_engine_init(td_nccl_engine *e, const td_nccl_api *api, const td_streams *streams,
                         const td_nccl_options *o);

/* Waits for a call that is in progress (the communicator is non-blocking), until the deadline. */
td_status td_nccl_settle(td_nccl_engine *e, int result, double deadline, const char *what);

#endif
