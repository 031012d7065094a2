/* The queue of a group, its communication thread, and work handles.
 *
 * At any time at most one thread drives the engine: the communication thread, which takes what is
 * queued in order; or, if nothing is queued or under way, the thread of a blocking call, which
 * saves two changes of threads. Messages (send, receive) that follow each other are under way at
 * the same time, since two ranks may send to each other; everything else goes one after the other.
 *
 * Denormals count as zero in all collectives (tensor/denormals.h). */
#ifndef TD_DIST_WORK_H
#define TD_DIST_WORK_H

#include "dist/backend.h"

#include <pthread.h>
#include <stdatomic.h>

struct td_work {
    td_collective c;
    td_group *group;
    td_work *next; /* in the queue, the list of messages under way, or the list of free ones */
    void *request; /* of a message under way */
    double timeout;
    double queued, begun, ended;
    atomic_bool done;
    struct td_device_engine *device; /* on a GPU; NULL: not */
    uint64_t ticket;                 /* in that engine */
    td_status status;
    char message[512]; /* of a failure that does not break the group */
};

/* Everything under `lock`. */
typedef struct td_queue {
    pthread_mutex_t lock;
    pthread_cond_t wake; /* the communication thread: something is queued, or the engine is free */
    pthread_cond_t done; /* waiters: something has ended, or the engine is free */
    pthread_t thread;
    bool started, stops;
    bool busy;            /* a thread drives the engine */
    bool in_messages;     /* and it is in the loop over messages */
    td_work *head, *tail; /* queued */
    td_work *active;      /* messages under way */
    int outstanding;      /* calls that have not ended: queued, being started, under way */
    td_work *unused;      /* work handles for the next calls */
    struct td_work_block *blocks;
    uint64_t collectives, messages; /* numbers given out */

    /* What is under way, for the watchdog. */
    td_collective current;
    double current_begun; /* 0: nothing */
    uint64_t begun;       /* counts what has begun */
} td_queue;

/* A thread is started if the group has an engine. */
td_status td_queue_init(td_group *group);
/* Ends the thread; what is outstanding fails. While it waits for that the watchdog must still run,
 * which uses the queue: td_queue_free comes after both. */
void td_queue_stop(td_group *group);
void td_queue_free(td_group *group);

/* Runs a collective, or queues it if work is not NULL. Gives it its number. timeout 0: the
 * group's. */
td_status td_submit(td_group *group, td_collective *c, double timeout, td_work **work);

/* A handle for a collective that a GPU has been asked for (engine NULL: there was nothing to do).
 * NULL with td_last_error() when memory is short. */
td_work *td_work_of_device(td_group *group, const td_collective *c, struct td_device_engine *engine,
                           uint64_t ticket);

/* Waits until no thread drives the engine, and keeps it so until td_engine_release. */
void td_engine_acquire(td_group *group);
void td_engine_release(td_group *group);

/* ---- drive.c ---- */

bool td_is_message(td_collective_kind kind); /* send, receive */
/* Whether the group's engine does this by start and poll. */
bool td_is_polled(const td_group *group, td_collective_kind kind);
/* For the watchdog: c has begun. With the lock. */
void td_note_begin(td_queue *queue, const td_collective *c, double now);
/* Runs what the engine does in one call. Without the lock, but `busy`. */
td_status td_run_collective(td_group *group, const td_collective *c, double begun);
/* Drives messages until one of them is done (NULL: all). With the lock, which is given up on the
 * way, and `busy`. */
void td_drive_messages(td_group *group, const td_work *until, bool background);
/* The end of a work, with the lock. */
void td_finish_work(td_group *group, td_work *work, td_status status);
/* The end of `busy`, with the lock. */
void td_engine_is_free(td_queue *queue);
/* The communication thread of a td_group. */
void *td_communicate(void *group);

#endif
