/* The queue of a group, its communication thread, and work handles.
 *
 * At most one thread drives the engine at a time. Usually it is the communication thread, which
 * takes works from the queue in order. If nothing is queued or running, a blocking call drives the
 * engine itself, which saves two thread switches. Messages (send, receive) that follow each other
 * run at the same time, because two ranks may send to each other. All other collectives run one
 * after the other.
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
    td_work *next; /* in the queue, the list of running messages, or the list of unused works */
    void *request; /* the engine's, of a running message */
    double timeout;
    double queued, begun, ended;
    atomic_bool done;
    struct td_device_engine *device; /* NULL: the collective is not on a GPU */
    uint64_t ticket;                 /* the collective's number in that engine */
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
    bool busy;            /* a thread drives the engine */
    bool in_messages;     /* that thread is in the loop over messages */
    td_work *head, *tail; /* queued */
    td_work *active;      /* running messages */
    int outstanding;      /* works that have not ended: queued, being started, running */
    td_work *unused;      /* work handles for the next calls */
    struct td_work_block *blocks;
    uint64_t collectives, messages; /* numbers given out */

    /* For the watchdog: what runs. */
    td_collective current;
    double current_begun; /* 0: nothing runs */
    uint64_t begun;       /* number of collectives that have begun */
} td_queue;

/* Starts the communication thread if the group has an engine. */
td_status td_queue_init(td_group *group);
/* Ends the communication thread. Outstanding works fail. The watchdog must still run meanwhile and
 * uses the queue, so call td_queue_free after both have ended. */
void td_queue_stop(td_group *group);
void td_queue_free(td_group *group);

/* Gives the collective its number and runs it, or queues it if work is not NULL. timeout 0: the
 * group's. */
td_status td_submit(td_group *group, td_collective *c, double timeout, td_work **work);

/* A handle for a collective that was launched on a GPU (engine NULL: there was nothing to do). NULL
 * with td_last_error() when memory is short. */
td_work *td_work_of_device(td_group *group, const td_collective *c, struct td_device_engine *engine,
                           uint64_t ticket);

/* Waits until no thread drives the engine. No thread drives it until td_engine_release. */
void td_engine_acquire(td_group *group);
void td_engine_release(td_group *group);

/* ---- drive.c ---- */

bool td_is_message(td_collective_kind kind); /* send, receive */
/* Whether the group's engine runs this kind by start and poll. */
bool td_is_polled(const td_group *group, td_collective_kind kind);
/* Notes for the watchdog that c has begun. With the lock. */
void td_note_begin(td_queue *queue, const td_collective *c, double now);
/* Runs a collective by the engine's `run`. Call it without the lock, with `busy` set. */
td_status td_run_collective(td_group *group, const td_collective *c, double begun);
/* Drives messages until the message `until` is done (NULL: all). With the lock, which is released
 * in between, and with `busy` set. */
void td_drive_messages(td_group *group, const td_work *until, bool background);
/* Ends a work. With the lock. */
void td_finish_work(td_group *group, td_work *work, td_status status);
/* Clears `busy` and wakes who waits for the engine. With the lock. */
void td_engine_is_free(td_queue *queue);
/* The communication thread's function; its argument is a td_group. */
void *td_communicate(void *group);

#endif
