/* Pictures in memory whose bytes stay on a GPU, which cuts a batch out of them itself: crop, flip
 * and normalisation are the CPU's, bit for bit. Not for users. */
#ifndef TD_DATA_RESIDENT_H
#define TD_DATA_RESIDENT_H

#include "data/loader_device.h"

typedef struct td_resident td_resident;

/* Sends a dataset's pictures to a device, for batches of so many samples and a last one of `tail`
 * (0: there is none). NULL with td_last_error(): TD_E_UNSUPPORTED if these are no pictures in
 * memory, TD_E_NOMEM if they do not fit on the device. */
td_resident *td_resident_new(const td_dataset *dataset, td_device device, int64_t batch_size,
                             int64_t tail);
void td_resident_free(td_resident *resident); /* NULL is fine */

/* Samples index[0..n-1] as fetch would give them in this epoch. The tensors are the device's, valid
 * until the next call; making them is part of its work. */
void td_resident_fill(td_resident *resident, const int64_t *index, int64_t n, uint64_t epoch,
                      td_tensor **x, td_tensor **y);

#endif
