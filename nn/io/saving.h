/* A file that is being saved, perhaps by a thread of its own. Users do not include this. */
#ifndef TD_NN_IO_SAVING_H
#define TD_NN_IO_SAVING_H

#include "nn/io/checkpoint.h"
#include "nn/io/safetensors.h"
#include "nn/params.h"

#include <pthread.h>
#include <stdatomic.h>

/* What a thread will write: a copy of a tensor's bytes. */
typedef struct td_saving_piece {
    int tensor;
    int64_t offset;
    size_t size;
    void *bytes;
} td_saving_piece;

struct td_saving {
    td_safetensors_out *out;      /* NULL: this rank does not write */
    const td_params_peers *peers; /* the ranks that write the file; NULL: this one */
    td_saving_piece *pieces;
    int count;
    pthread_t thread;
    bool started;
    atomic_bool written;  /* the thread is done: */
    pthread_mutex_t lock; /* of what follows, while the thread writes */
    int next;             /* piece to be written */
    td_status status;
    char message[1024]; /* what failed */
};

/* NULL with td_last_error(). */
td_saving *td_saving_new(const td_params_peers *peers);
/* Memory for bytes of tensor i, which the thread will write. NULL with td_last_error(). */
void *td_saving_room(td_saving *saving, int i, int64_t offset, size_t size);
/* Starts the thread. A failure is told by td_saving_wait. */
void td_saving_start(td_saving *saving);
/* Puts the file in its place if the status is TD_OK on all ranks, and otherwise removes it. All
 * ranks return the same outcome. Frees saving. */
td_status td_saving_end(td_saving *saving, td_status status);
/* Removes the file, without a word to the other ranks. NULL is fine. */
void td_saving_drop(td_saving *saving);

/* TD_OK if that is the status on all ranks; peers NULL: there are no others. */
td_status td_peers_agree(const td_params_peers *peers, td_status status);

#endif
