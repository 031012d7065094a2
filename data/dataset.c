/* What all datasets share, and the transform of pictures in memory. */
#include "data/dataset.h"
#include "data/images_memory.h"
#include "data/inspect.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- owners and users ---- */

void td_dataset_count_loader(const td_dataset *dataset, int by)
{
    __atomic_add_fetch(&((td_dataset *)(uintptr_t)dataset)->loaders, by, __ATOMIC_RELAXED);
}

void td_dataset_count_part(const td_dataset *dataset, int by)
{
    td_dataset *d = (td_dataset *)(uintptr_t)dataset;
    d->parts += by;
    if (d->parts == 0 && d->freed) {
        d->vtable->free(d);
    }
}

void td_dataset_free(td_dataset *dataset)
{
    if (dataset == NULL) {
        return;
    }
    TD_REQUIRE(
        dataset->loaders == 0, TD_HERE,
        "td_dataset_free: this dataset (%s) has %d open loader%s; call td_loader_close first",
        dataset->vtable->kind, dataset->loaders, dataset->loaders == 1 ? "" : "s");
    TD_REQUIRE(!dataset->freed, TD_HERE, "td_dataset_free: this dataset (%s) was freed before",
               dataset->vtable->kind);
    dataset->freed = true;
    if (dataset->parts == 0) {
        dataset->vtable->free(dataset);
    }
}

/* ---- shapes of a batch ---- */

static td_shape with_batch(int64_t n, td_shape sample)
{
    td_shape shape = { .ndim = sample.ndim + 1, .dim = { n } };
    memcpy(shape.dim + 1, sample.dim, (size_t)sample.ndim * sizeof *shape.dim);
    return shape;
}

td_shape td_batch_shape(const td_dataset *dataset, int64_t n)
{
    return with_batch(n, dataset->sample_shape);
}

td_shape td_batch_y_shape(const td_dataset *dataset, int64_t n)
{
    return dataset->regression ? with_batch(n, dataset->target_shape) : TD_SHAPE(n);
}

td_dtype td_batch_y_dtype(const td_dataset *dataset)
{
    return dataset->regression ? dataset->dtype : TD_I64;
}

/* ---- pictures in memory ---- */

const td_images_memory *td_images_of(const td_dataset *dataset)
{
    for (const td_part *part = td_part_of(dataset); part != NULL && part->index == NULL;
         part = td_part_of(dataset)) {
        dataset = part->whole;
    }
    bool is_images = dataset->vtable->fetch == td_images_memory_fetch;
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
    if (t->crop_padding < 0 || t->crop_padding >= TD_PICTURE_SIDE) {
        return td_fail(TD_E_ARG, "crop padding is %d; it goes from 0 to %d", t->crop_padding,
                       TD_PICTURE_SIDE - 1);
    }
    for (int d = 0; d < 2; d++) {
        if (abs(t->shift[d]) + t->crop_padding >= TD_PICTURE_SIDE) {
            return td_fail(TD_E_ARG,
                           "a shift by %d and crop padding %d reach %d pixels off; %d are possible",
                           t->shift[d], t->crop_padding, abs(t->shift[d]) + t->crop_padding,
                           TD_PICTURE_SIDE - 1);
        }
    }
    if (t->alternate_flip && !t->flip) {
        return td_fail(TD_E_ARG, "alternate_flip says how flip is drawn; set flip as well");
    }
    bool none = true;
    for (int c = 0; c < 3; c++) {
        none = none && t->mean[c] == 0.0f && t->std[c] == 0.0f;
    }
    for (int c = 0; c < 3 && !none; c++) {
        if (!isfinite(t->mean[c]) || !isfinite(t->std[c]) || !(t->std[c] > 0.0f)) {
            return td_fail(TD_E_ARG,
                           "normalisation of channel %d: mean %g, std %g; the mean must be finite "
                           "and the std positive (all zero: no normalisation)",
                           c, (double)t->mean[c], (double)t->std[c]);
        }
    }
    return TD_OK;
}

td_status td_dataset_set_transform(td_dataset *dataset, const td_image_transform *transform)
{
    if (dataset->vtable->fetch != td_images_memory_fetch) {
        const td_dataset *whole = dataset;
        for (const td_part *part; (part = td_part_of(whole)) != NULL;) {
            whole = part->whole;
        }
        return td_fail(TD_E_UNSUPPORTED,
                       "transforms are for images in memory (CIFAR, synthetic), and this is a %s%s",
                       whole->vtable->kind,
                       whole->vtable->fetch == td_images_memory_fetch
                           ? ", in parts: set it on the whole dataset"
                           : "");
    }
    TD_TRY(check_transform(transform));
    td_images_memory *images = (td_images_memory *)dataset;
    images->transform = *transform;
    td_byte_values_set(&images->values, transform);
    return TD_OK;
}
