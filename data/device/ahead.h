/* How batches go to a GPU: on a stream of their own, so that one goes over while the GPU works on
 * the one before. They go as they lie in CPU memory; the GPU puts them in its own order. Not for
 * users. */
#ifndef TD_DATA_DEVICE_AHEAD_H
#define TD_DATA_DEVICE_AHEAD_H

#include "data/loader_ring.h"

typedef struct td_ahead td_ahead;

/* For the batches of a ring. NULL with td_last_error(). */
td_ahead *td_ahead_new(const td_ring *ring, td_device device);
void td_ahead_free(td_ahead *ahead); /* NULL is fine */

/* Starts sending a batch, unless that has been done; two can be under way. When it returns, the
 * ring's tensors may be filled again. */
void td_ahead_send(td_ahead *ahead, int64_t batch, const td_tensor *x, const td_tensor *y);

/* Puts a batch that has been sent into tensors of the device, as part of its work. */
void td_ahead_receive(td_ahead *ahead, int64_t batch, td_tensor *x, td_tensor *y);

/* Another epoch begins: what has been sent is not wanted. */
void td_ahead_forget(td_ahead *ahead);

#endif
