/* The NCCL engine, internal view. */
#pragma once

#include "dist/comm/engines/nccl/nccl.h"

#include <pthread.h>
#include <stdatomic.h>

/* A ring of slots has the running collectives and their events. A slot is used again when its
 * collective is known to be done. If no slot is free, the ring grows. */
enum { TD_NCCL_SLOTS = 64 }; /* at first */

typedef struct td_nccl_slot {
    uint64_t ticket; /* 0: never used */
    td_collective c;
    double begun;
    void *ready, *done; /* events */
    bool in_graph;      /* the collective was recorded into a graph and does not run by itself */
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
    pthread_mutex_t lock; /* protects the members below, and launches */
    td_nccl_slot *slots;  /* a ticket's slot: ticket % slot_count */
    uint64_t slot_count;
    uint64_t launched, joined; /* tickets */
    uint64_t reached;          /* all tickets up to this one are known to be done */
    uint64_t recorded;         /* while a graph is recorded: its collectives have later tickets */
    uint64_t joined_before;    /* `joined` when the recording began */
    bool recording;
    atomic_bool aborted;
} td_nccl_engine;

void td_nccl_engine_init(td_nccl_engine *e, const td_nccl_api *api, const td_streams *streams,
                         const td_nccl_options *o);

/* Waits until a call of the non-blocking communicator has ended, at most until the deadline. */
td_status td_nccl_settle(td_nccl_engine *e, int result, double deadline, const char *what);
