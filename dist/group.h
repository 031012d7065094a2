/* A process group from inside. */
#ifndef TD_DIST_GROUP_H
#define TD_DIST_GROUP_H

#include "dist/backend.h"
#include "dist/device_engine.h"
#include "dist/work.h"
#include "tensor/graph/captured.h"

#include <pthread.h>
#include <stdatomic.h>

enum { TD_CAUSE_BYTES = 2048 };

/* Registered memory that is out as tensors. */
typedef struct td_group_lender td_group_lender;

struct td_group {
    int rank, size;
    int index;       /* 0: the world; counts the groups of this init */
    char label[256]; /* in front of messages: "group of ranks 1, 3: "; "" for the world */
    const td_comm_backend *backend;
    void *engine; /* NULL in a group of one */
    td_store *store;
    double timeout;
    bool check_sequence; /* TANDEM_DIST_DEBUG */
    td_queue queue;
    td_group_lender *lenders;

    atomic_int broken; /* td_status */
    char cause[TD_CAUSE_BYTES];

    /* GPUs' collectives (device_engine.h). */
    td_captured_peers captured; /* td_group_captured's */
    char device_wish[16];       /* "nccl" if the group was asked for that; "": the best */
    _Atomic(td_device_engine *) device_engine, device_messages;
    atomic_uint_fast64_t device_collectives; /* numbers given out */

    /* The watchdog's. */
    pthread_t watchdog;
    bool watched;      /* it runs */
    double stall;      /* seconds until it prints a report */
    uint64_t reported; /* of the queue's count of what has begun */
    uint64_t told;     /* the same: the last that the others have been told of */
    pthread_cond_t watchdog_stop;
    bool watchdog_stops;
};

/* NULL: the world. Fatal before td_dist_init. */
td_group *td_group_or_world(td_group *group);

/* Breaks the group: the first cause stays, and goes to the other ranks as far as the engine can.
 * Without the queue's lock. */
void td_group_break(td_group *group, td_status status, const char *cause);

/* Fails with the cause if the group is broken. */
td_status td_group_check(td_group *group);

/* Ends its threads, its engine and itself. What is outstanding fails; the watchdog sees to it that
 * it does. NULL: nothing to do. */
void td_group_end(td_group *group);

/* Memory that was lent and has not come back ends with the group. */
void td_group_forget_memory(td_group *group);

#endif
