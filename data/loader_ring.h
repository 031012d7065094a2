/* The loader's ring of batches and the threads that fill it. Not for users.
 *
 * Batch b of an epoch lies in slot b % count. Workers take the batches in order, as far ahead as
 * there are free slots; one consumer takes them in order, and lets a batch go by taking the next.
 */
#ifndef TD_DATA_LOADER_RING_H
#define TD_DATA_LOADER_RING_H

#include "data/data.h"

#include <pthread.h>

typedef struct td_ring_slot {
    td_tensor *x, *y;   /* of a full batch */
    int64_t holds;      /* the batch in it, assembled or failed; -1: none */
    td_status status;   /* of its fetch */
    char message[1024]; /* td_last_error() of the thread that fetched */
} td_ring_slot;

typedef struct td_ring_plan {
    int64_t batch_size;
    int64_t samples; /* of an epoch's batches */
    int64_t batches; /* at least 1; all but the last are full */
    int workers;     /* 0: td_ring_take assembles */
    int prefetch;    /* batches ahead per worker */
    td_device device;
} td_ring_plan;

typedef struct td_ring {
    const td_dataset *dataset;
    td_ring_plan plan;
    td_ring_slot *slots;
    int count;                  /* slots */
    td_tensor *tail_x, *tail_y; /* headers of a last batch that is not full, or NULL */

    /* The running epoch; written while the workers rest. */
    const int64_t *order;
    uint64_t epoch;

    pthread_mutex_t lock; /* guards what follows, and the slots' holds */
    pthread_cond_t work;  /* for workers: there may be a batch to assemble, or stop is set */
    pthread_cond_t done;  /* for the consumer: a worker has finished a batch */
    int64_t next;         /* the batch that the next free worker takes */
    int64_t end;          /* where the epoch ends; next == end: the workers rest */
    int64_t released;     /* batches below this are out of the consumer's hands */
    int busy;             /* workers that assemble */
    bool stop;
    double waited; /* seconds that the consumer has waited */

    int threads; /* that run */
    pthread_t *thread;
} td_ring;

/* NULL with td_last_error(). */
td_ring *td_ring_new(const td_dataset *dataset, const td_ring_plan *plan);
void td_ring_free(td_ring *ring); /* stops the workers; NULL is fine */

/* Lets the workers run from batch `first` to the epoch's end. They must be at rest. */
void td_ring_start(td_ring *ring, const int64_t *order, uint64_t epoch, int64_t first);
/* Puts the workers to rest and drops what they have assembled. */
void td_ring_rest(td_ring *ring);

/* Waits for a batch. The tensors are valid until the next take, rest or start. */
td_status td_ring_take(td_ring *ring, int64_t batch, td_tensor **x, td_tensor **y);

/* Whether the workers have assembled a batch; then its tensors, valid as long as td_ring_take's.
 * Not for a batch that has been let go. */
bool td_ring_look(td_ring *ring, int64_t batch, td_tensor **x, td_tensor **y);

/* The number of samples in a batch. */
int64_t td_ring_batch_samples(const td_ring *ring, int64_t batch);

#endif
