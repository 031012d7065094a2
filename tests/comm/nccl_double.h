/* Doubles of NCCL and of a device's streams: every call is a line of a log, nothing happens. */
#pragma once

#include "dist/comm/engines/nccl/nccl.h"

#include <stdatomic.h>

typedef struct nccl_double {
    char text[16384]; /* the log */
    size_t length;
    int events, streams;    /* made so far; streams: that are left */
    atomic_int init_state;  /* what async_error says */
    atomic_int polls;       /* how often it was asked */
    atomic_int ready_after; /* polls until the communicator has joined; negative: never */
    atomic_int aborts, destroys;
    atomic_bool graph_lives; /* aborting blocks until it is freed, as NCCL does */
    atomic_bool reached;     /* every event is */
    atomic_int over;         /* events up to this one are reached */
    bool copies;             /* a group of one whose memory is real: what goes in comes out */
    bool quiet;              /* nothing is written */
} nccl_double;

extern nccl_double fake;
extern const td_streams fake_streams;
extern const td_nccl_api fake_nccl;

void fake_forget(void); /* the log */
/* Waits until the communicator has been aborted, by a thread that nobody joins; fails the test if
 * it is not, or more than once. */
void fake_assert_aborted(void);

/* An engine over the doubles, its store in the test's temporary folder. */
td_status fake_engine_new(td_store *store, int rank, int size, double timeout,
                          td_device_engine **engine);
/* Rank 0 of `size`, which joins at the fourth poll. The doubles begin anew. */
td_device_engine *fake_engine_open(int size);
td_store *fake_store_open(void);
