/* Batches on a device whose memory the host cannot touch: they are assembled in CPU memory and then
 * sent. Not for users. */
#ifndef TD_DATA_LOADER_DEVICE_H
#define TD_DATA_LOADER_DEVICE_H

#include "data/loader_ring.h"

typedef struct td_device_batch td_device_batch;

/* Memory on the device for one batch of a ring. NULL with td_last_error(). */
td_device_batch *td_device_batch_new(const td_ring *ring, td_device device);
void td_device_batch_free(td_device_batch *batch); /* NULL is fine */

/* Sends a batch of the ring, and puts the device's tensors in place of the ring's. The ring's can
 * be filled again at once; the device's are valid until the next call. The copy is part of the
 * device's work: what uses the tensors comes after it, and it comes after what uses the batch
 * before. */
void td_device_batch_fill(td_device_batch *batch, td_tensor **x, td_tensor **y);

#endif
