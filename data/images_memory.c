#include "data/images_memory.h"

#include <stdlib.h>

td_images_memory *td_images_memory_new(const td_dataset_vtable *vtable, int64_t length)
{
    td_images_memory *images = calloc(1, sizeof *images);
    if (images != NULL) {
        images->pixels = calloc((size_t)length, TD_PICTURE_BYTES);
        images->labels = calloc((size_t)length, 1);
    }
    if (images == NULL || images->pixels == NULL || images->labels == NULL) {
        if (images != NULL) {
            td_images_memory_free(&images->base);
        }
        td_fail(TD_E_NOMEM,
                "no memory for %lld images of %d bytes (%.1f MiB): use fewer, or free memory",
                (long long)length, TD_PICTURE_BYTES, (double)length * TD_PICTURE_BYTES / 0x1p20);
        return NULL;
    }
    images->base = (td_dataset){
        .vtable = vtable,
        .length = length,
        .sample_shape = TD_SHAPE(TD_PICTURE_CHANNELS, TD_PICTURE_SIDE, TD_PICTURE_SIDE),
        .dtype = TD_F32,
        .layout = TD_IMAGE,
    };
    td_byte_values_set(&images->values, &images->transform);
    return images;
}

void td_images_memory_free(td_dataset *dataset)
{
    td_images_memory *images = (td_images_memory *)dataset;
    free(images->pixels);
    free(images->labels);
    free(images);
}

/* Asks for pictures that are written next: they lie anywhere in a memory far larger than any cache.
 */
static void prefetch(const td_images_memory *images, const int64_t *index, int64_t n)
{
    for (int64_t i = 0; i < n && i < TD_PICTURE_BLOCK; i++) {
        for (int byte = 0; byte < TD_PICTURE_BYTES; byte += 64) {
            __builtin_prefetch(images->pixels + index[i] * TD_PICTURE_BYTES + byte);
        }
    }
}

td_status td_images_memory_fetch(const td_dataset *dataset, const int64_t *index, int64_t n,
                                 uint64_t epoch, td_tensor *x, td_tensor *y)
{
    const td_images_memory *images = (const td_images_memory *)dataset;
    float *out = td_data_rw(x);
    int64_t *label = td_data_rw(y);
    td_picture block[TD_PICTURE_BLOCK];
    for (int64_t first = 0; first < n; first += TD_PICTURE_BLOCK) {
        int count = n - first < TD_PICTURE_BLOCK ? (int)(n - first) : TD_PICTURE_BLOCK;
        prefetch(images, index + first + count, n - first - count);
        for (int i = 0; i < count; i++) {
            int64_t sample = index[first + i];
            block[i] = td_augment_draw(&images->transform, epoch, (uint64_t)sample);
            block[i].pixels = images->pixels + sample * TD_PICTURE_BYTES;
            label[(first + i) * y->stride[0]] = images->labels[sample];
        }
        td_augment_write(&images->values, block, count, out + first * x->stride[0], x->stride);
    }
    return TD_OK;
}
