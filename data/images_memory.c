/* A dataset of images that are held in memory. */
#include "data/images_memory.h"
#include "data/dataset.h"
#include "data/inspect.h"

#include <math.h>
#include <stdlib.h>

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

static td_status images_fetch(const td_dataset *dataset, const int64_t *index, int64_t n,
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

static void images_free(td_dataset *dataset)
{
    td_images_memory *images = (td_images_memory *)dataset;
    free(images->pixels);
    free(images->labels);
    free(images);
}

td_images_memory *td_images_memory_new(const char *kind, int64_t length)
{
    td_images_memory *images = calloc(1, sizeof *images);
    if (images != NULL) {
        images->pixels = calloc((size_t)length, TD_PICTURE_BYTES);
        images->labels = calloc((size_t)length, 1);
    }
    if (images == NULL || images->pixels == NULL || images->labels == NULL) {
        if (images != NULL) {
            images_free(&images->base);
        }
        td_fail(TD_E_NOMEM,
                "no memory for %lld images of %d bytes (%.1f MiB): use fewer, or free memory",
                (long long)length, TD_PICTURE_BYTES, (double)length * TD_PICTURE_BYTES / 0x1p20);
        return NULL;
    }
    images->vtable = (td_dataset_vtable){ kind, images_fetch, images_free };
    images->base = (td_dataset){
        .vtable = &images->vtable,
        .length = length,
        .sample_shape = TD_SHAPE(TD_PICTURE_CHANNELS, TD_PICTURE_SIDE, TD_PICTURE_SIDE),
        .dtype = TD_F32,
        .layout = TD_IMAGE,
    };
    td_byte_values_set(&images->values, &images->transform);
    return images;
}

/* ---- the dataset behind parts, and its transform ---- */

const td_images_memory *td_images_of(const td_dataset *dataset)
{
    for (const td_part *part = td_part_of(dataset); part != NULL && part->index == NULL;
         part = td_part_of(dataset)) {
        dataset = part->whole;
    }
    bool is_images = dataset->vtable->fetch == images_fetch;
    return is_images ? (const td_images_memory *)dataset : NULL;
}

const uint8_t *td_dataset_pixels(const td_dataset *dataset)
{
    const td_images_memory *images = td_images_of(dataset);
    return images != NULL ? images->pixels : NULL;
}

const uint8_t *td_dataset_labels(const td_dataset *dataset)
{
    const td_images_memory *images = td_images_of(dataset);
    return images != NULL ? images->labels : NULL;
}

static td_status check_transform(const td_image_transform *t)
{
    TD_CHECK(t->crop_padding >= 0 && t->crop_padding < TD_PICTURE_SIDE, TD_E_ARG,
             "crop padding is %d; it goes from 0 to %d", t->crop_padding, TD_PICTURE_SIDE - 1);
    for (int d = 0; d < 2; d++) {
        int64_t reach = llabs((long long)t->shift[d]) + t->crop_padding;
        TD_CHECK(reach < TD_PICTURE_SIDE, TD_E_ARG,
                 "a shift by %d and crop padding %d reach %lld pixels off; %d are possible",
                 t->shift[d], t->crop_padding, (long long)reach, TD_PICTURE_SIDE - 1);
    }
    TD_CHECK(!t->alternate_flip || t->flip, TD_E_ARG,
             "alternate_flip says how flip is drawn; set flip as well");
    bool none = true;
    for (int c = 0; c < 3; c++) {
        none = none && t->mean[c] == 0.0f && t->std[c] == 0.0f;
    }
    for (int c = 0; c < 3 && !none; c++) {
        TD_CHECK(isfinite(t->mean[c]) && isfinite(t->std[c]) && t->std[c] > 0.0f, TD_E_ARG,
                 "normalisation of channel %d: mean %g, std %g; the mean must be finite "
                 "and the std positive (all zero: no normalisation)",
                 c, (double)t->mean[c], (double)t->std[c]);
    }
    return TD_OK;
}

td_status td_dataset_set_transform(td_dataset *dataset, const td_image_transform *transform)
{
    if (dataset->vtable->fetch != images_fetch) {
        const td_dataset *whole = dataset;
        for (const td_part *part; (part = td_part_of(whole)) != NULL;) {
            whole = part->whole;
        }
        return td_fail(
            TD_E_UNSUPPORTED,
            "transforms are for images in memory (CIFAR, synthetic), and this is a %s%s",
            whole->vtable->kind,
            whole->vtable->fetch == images_fetch ? ", in parts: set it on the whole dataset" : "");
    }
    TD_TRY(check_transform(transform));
    td_images_memory *images = (td_images_memory *)dataset;
    images->transform = *transform;
    images->transforms++;
    td_byte_values_set(&images->values, transform);
    return TD_OK;
}
