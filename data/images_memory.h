/* Pictures held in memory as bytes: what CIFAR and the synthetic set have in common. Not for users.
 */
#ifndef TD_DATA_IMAGES_MEMORY_H
#define TD_DATA_IMAGES_MEMORY_H

#include "data/augment.h"

typedef struct td_images_memory {
    td_dataset base;
    uint8_t *pixels; /* [length,3,32,32] row-major */
    uint8_t *labels; /* [length] */
    td_image_transform transform;
    td_byte_values values; /* what a byte of each channel becomes; made from transform */
    int transforms;        /* how often the transform was set */
} td_images_memory;

/* A dataset of `length` pictures, still to be filled in, without a transform. The vtable names
 * td_images_memory_fetch and _free. NULL with td_last_error() when memory is short. */
td_images_memory *td_images_memory_new(const td_dataset_vtable *vtable, int64_t length);
void td_images_memory_free(td_dataset *dataset);

/* The pictures behind a dataset or a head of one; NULL: it has none. */
const td_images_memory *td_images_of(const td_dataset *dataset);

td_status td_images_memory_fetch(const td_dataset *dataset, const int64_t *index, int64_t n,
                                 uint64_t epoch, td_tensor *x, td_tensor *y);

#endif
