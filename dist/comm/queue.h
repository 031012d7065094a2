/* The queue of a group, its communication thread, and work handles.
 *
 * At most one thread drives the engine at a time. Usually it is the communication thread, which
 * takes works from the queue in order. If nothing is queued or running, a blocking call drives the
 * engine itself, which saves two thread switches. Messages (send, receive) that follow each other
 * run at the same time, because two ranks may send to each other. All other collectives run one
 * after the other.
 *
 * Denormals count as zero in all collectives (td_flush_denormals). */
#pragma once

#include "dist/comm/engine.h"

#include <pthread.h>
#include <stdatomic.h>

struct td_work {
    td_collective c;
    td_group *group;
    td_work *older; /* links all handles of the queue, for td_queue_free */
    td_work *next;  /* in the queue, the list of running messages, or the list of unused works */
    void *request;  /* the engine's, of a running message */
    double timeout;
    double queued, begun, ended;
    atomic_bool done;
    struct td_device_engine *device; /* NULL: the collective runs on the host */
    uint64_t ticket;                 /* the collective's number in that engine */
    struct td_host_copy *staged;     /* NULL: the data is in the host's memory */
    td_status status;
    char message[512]; /* of a failure that does not break the group */
};

/* `lock` protects all members. */
typedef struct td_queue {
    pthread_mutex_t lock;
    pthread_cond_t wake; /* the communication thread: something is queued, or the engine is free */
    pthread_cond_t done; /* waiting callers: something has ended, or the engine is free */
    pthread_t thread;
    bool started, stops;
    bool busy;                      /* a thread drives the engine */
    bool in_messages;               /* that thread is in the loop over messages */
    td_work *head, *tail;           /* queued */
    td_work *active;                /* running messages */
    int outstanding;                /* works that have not ended: queued, being started, running */
    td_work *unused;                /* work handles for the next calls */
    td_work *newest;                /* all work handles */
    uint64_t collectives, messages; /* numbers given out */

    /* For the watchdog: what runs. */
    td_collective current;
    double current_begun; /* 0: nothing runs */
    uint64_t begun;       /* number of collectives that have begun */
} td_queue;

void td_queue_init(td_queue *q);
/* Ends the communication thread, if there is one. Outstanding works fail. The watchdog must still
 * run meanwhile and uses the queue, so call td_queue_free after both have ended. */
void td_queue_stop(td_group *group);
void td_queue_free(td_group *group);

/* Gives the collective its number and runs it, or queues it if work is not NULL. timeout 0: the
 * group's. */
td_status td_submit(td_group *group, td_collective *c, double timeout, td_work **work);

/* Ends the work of an engine without threads (td_engine_type.end). */
void td_queue_end_work(td_work *work);

/* A collective in a group of one: the result is the input. */
void td_run_alone(const td_collective *c, td_device device);

/* A handle for a collective, used again or new. With the lock. NULL with td_last_error() when
 * memory is short. */
td_work *td_work_take(td_group *group, const td_collective *c, double timeout);

/* A handle for a collective that was launched on a GPU; engine NULL: for a collective that has
 * ended already, in a group of one. NULL with td_last_error() when memory is short. */
td_work *td_work_of_device(td_group *group, const td_collective *c, struct td_device_engine *engine,
                           uint64_t ticket);

/* Gives the caller the work as *handle; handle NULL: waits for the work. */
td_status td_work_hand_over(td_work *work, td_work **handle);

/* Waits until no thread drives the engine. No thread drives it until td_engine_release. */
void td_engine_acquire(td_group *group);
void td_engine_release(td_group *group);
