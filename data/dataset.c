/* What all datasets share, and the view of a dataset's beginning. */
#include "data/data.h"
#include "data/images_memory.h"

#include <math.h>
#include <stdlib.h>

void td_dataset_free(td_dataset *dataset)
{
    if (dataset != NULL) {
        dataset->vtable->free(dataset);
    }
}

/* ---- the first samples of another dataset ---- */

typedef struct dataset_head {
    td_dataset base;
    const td_dataset *whole;
} dataset_head;

static td_status head_fetch(const td_dataset *dataset, const int64_t *index, int64_t n,
                            uint64_t epoch, td_tensor *x, td_tensor *y)
{
    const td_dataset *whole = ((const dataset_head *)dataset)->whole;
    return whole->vtable->fetch(whole, index, n, epoch, x, y);
}

static void head_free(td_dataset *dataset)
{
    free(dataset);
}

static const td_dataset_vtable head_vtable = { "head of a dataset", head_fetch, head_free };

td_dataset *td_dataset_head(const td_dataset *dataset, int64_t n)
{
    if (n < 0) {
        td_fail(TD_E_ARG, "td_dataset_head: %lld samples were asked for; give 0 or more",
                (long long)n);
        return NULL;
    }
    dataset_head *head = malloc(sizeof *head);
    if (head == NULL) {
        td_fail(TD_E_NOMEM, "td_dataset_head: no memory");
        return NULL;
    }
    *head = (dataset_head){ .base = *dataset, .whole = dataset };
    head->base.vtable = &head_vtable;
    head->base.length = n < dataset->length ? n : dataset->length;
    return &head->base;
}

/* ---- pictures in memory ---- */

const td_images_memory *td_images_of(const td_dataset *dataset)
{
    while (dataset->vtable == &head_vtable) {
        dataset = ((const dataset_head *)dataset)->whole;
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
        return td_fail(
            TD_E_UNSUPPORTED,
            "transforms are for pictures in memory (CIFAR, synthetic), and this is a %s%s",
            dataset->vtable->kind,
            td_images_of(dataset) != NULL ? ": set it on the whole dataset" : "");
    }
    TD_TRY(check_transform(transform));
    td_images_memory *images = (td_images_memory *)dataset;
    images->transform = *transform;
    td_byte_values_set(&images->values, transform);
    return TD_OK;
}
