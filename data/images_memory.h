/* Pictures held in memory as bytes: what CIFAR and the synthetic set have in common. Not for users.
 */
#pragma once

#include "data/augment.h"

typedef struct td_images_memory {
    td_dataset base;
    td_dataset_vtable vtable; /* base.vtable */
    uint8_t *pixels;          /* [length,3,32,32] row-major */
    uint8_t *labels;          /* [length] */
    td_image_transform transform;
    td_byte_values values; /* what a byte of each channel becomes; made from transform */
    int transforms;        /* how often the transform was set */
} td_images_memory;

/* A dataset of `length` pictures of a kind ("cifar10"), still to be filled in, without a transform.
 * NULL with td_last_error() when memory is short. */
td_images_memory *td_images_memory_new(const char *kind, int64_t length);

/* The pictures behind a dataset or a head of one; NULL: it has none. */
const td_images_memory *td_images_of(const td_dataset *dataset);
