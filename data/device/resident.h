/* Pictures in memory whose bytes stay on a GPU, which cuts a batch out of them itself: crop, flip
 * and normalisation are the CPU's, bit for bit. Not for users. */
#ifndef TD_DATA_DEVICE_RESIDENT_H
#define TD_DATA_DEVICE_RESIDENT_H

#include "data/device/batch.h"

typedef struct td_resident td_resident;

/* Sends a dataset's pictures to a device, for batches of so many samples and a last one of `tail`
 * (0: there is none). NULL with td_last_error(): TD_E_UNSUPPORTED if these are no pictures in
 * memory, TD_E_NOMEM if they do not fit on the device. */
td_resident *td_resident_new(const td_dataset *dataset, td_device device, int64_t batch_size,
                             int64_t tail);
void td_resident_free(td_resident *resident); /* NULL is fine */

/* Draws how samples index[0..n-1] are cut in this epoch: td_resident_make makes of it what fetch
 * would give. The tensors are the device's: the same for all batches of n. */
void td_resident_draw(td_resident *resident, const int64_t *index, int64_t n, uint64_t epoch,
                      td_tensor **x, td_tensor **y);
/* Fills the tensors, as part of the device's work; in a captured step, with what has been drawn by
 * the time of each replay. */
void td_resident_make(td_resident *resident);

#endif
