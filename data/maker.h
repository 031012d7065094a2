/* What assembles a loader's batches: a ring of batches in CPU memory, which workers fill, or a
 * maker for GPUs (device/). Not for users. */
#pragma once

#include "data/dataset.h"

typedef struct td_batch_plan {
    const td_dataset *dataset;
    int64_t batch_size;
    int64_t samples; /* of an epoch's batches */
    int64_t batches; /* all but the last are full; 0: the sampler gives no samples */
    int workers;     /* 0: take assembles */
    int prefetch;    /* batches ahead per worker */
    td_device device;
    bool streamed; /* images are not kept on the device */
} td_batch_plan;

/* Sets the number of an epoch's samples: the rest of an epoch that was begun elsewhere has fewer.
 */
void td_batch_plan_fit(td_batch_plan *plan, int64_t samples);
/* The number of samples in a batch. */
int64_t td_batch_samples(const td_batch_plan *plan, int64_t batch);

typedef struct td_batch_maker td_batch_maker;
typedef struct td_batch_maker_type {
    /* An epoch of `samples` samples begins, or goes on elsewhere, with batch `first`. */
    void (*start)(td_batch_maker *m, const int64_t *order, int64_t samples, uint64_t epoch,
                  int64_t first);
    /* Puts workers to rest and drops what they have assembled. NULL: there are none. */
    void (*rest)(td_batch_maker *m);
    /* Waits for a batch. The tensors are valid until the next take, rest or start. */
    td_status (*take)(td_batch_maker *m, int64_t batch, td_tensor **x, td_tensor **y);
    /* NULL: take fills the tensors. Otherwise take draws, and make fills the tensors with the batch
     * that was drawn last, as part of the device's work; in a captured step, at each replay. */
    void (*make)(td_batch_maker *m);
    void (*free)(td_batch_maker *m);
} td_batch_maker_type;

struct td_batch_maker {
    const td_batch_maker_type *type;
    td_batch_plan plan;
    const int64_t *order; /* of the running epoch */
    uint64_t epoch;
    double waited; /* seconds that take has waited */
};

/* The maker for a plan's device. NULL with td_last_error(). */
td_batch_maker *td_batch_maker_new(const td_batch_plan *plan);

/* Memory of a batch: seen as a full batch, and as the last one that was not full (NULL: none yet).
 */
typedef struct td_batch_memory {
    td_tensor *x, *y, *tail_x, *tail_y;
    td_layout layout; /* of x, in the order of memory of */
    td_device device;
} td_batch_memory;
/* false with td_last_error(); td_batch_memory_free is needed then, too. */
bool td_batch_memory_make(td_batch_memory *memory, const td_batch_plan *plan, td_device device);
void td_batch_memory_free(td_batch_memory *memory);
/* The tensors of a batch of n samples. */
void td_batch_memory_of(td_batch_memory *memory, int64_t n, td_tensor **x, td_tensor **y);

/* ---- the ring: batch b lies in slot b % count; the consumer takes the batches in order ---- */

td_batch_maker *td_ring_new(const td_batch_plan *plan);
/* Whether the workers have assembled a batch; then its tensors. Not for a batch before the last
 * one that was taken. */
bool td_ring_look(td_batch_maker *ring, int64_t batch, td_tensor **x, td_tensor **y);
/* The memory of a slot. All are alike. */
const td_batch_memory *td_ring_memory(const td_batch_maker *ring);
