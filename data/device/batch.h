/* A batch's tensors on a device whose memory the host cannot touch. Not for users. */
#ifndef TD_DATA_DEVICE_BATCH_H
#define TD_DATA_DEVICE_BATCH_H

#include "data/loader_ring.h"

typedef struct td_device_batch td_device_batch;

/* Memory on the device for a batch of a dataset, of batch_size samples or `tail` (0: never).
 * NULL with td_last_error(). */
td_device_batch *td_device_batch_new(const td_dataset *dataset, td_device device,
                                     int64_t batch_size, int64_t tail);
void td_device_batch_free(td_device_batch *batch); /* NULL is fine */

/* The tensors of a batch of n samples. All batches have the same memory. */
void td_device_batch_tensors(td_device_batch *batch, int64_t n, td_tensor **x, td_tensor **y);

#endif
