/* From a decoded picture to the square that a model sees: what is drawn, and what is done. Users do
 * not include this. */
#pragma once

#include "data/images/images.h"
#include "data/images/jitter.h"
#include "data/images/resample.h"

/* What training draws for a sample. */
typedef struct td_picture_draw {
    td_box crop;
    bool flip;
    int jitters; /* how many of: */
    td_jitter_kind kind[TD_JITTER_KINDS];
    double factor[TD_JITTER_KINDS];
} td_picture_draw;

/* Fills in the defaults; TD_E_ARG says what is out of range. */
td_status td_image_folder_transform_check(td_image_folder_transform *t);

/* Where numbers in [0,1) come from: Philox in use, PyTorch's in tests. */
typedef double (*td_uniform_source)(void *user);

/* torchvision's RandomResizedCrop.get_params: up to 10 tries of an area and a ratio, each with two
 * numbers and, if the box fits, two more for its place; otherwise the largest box in the middle, of
 * at least one pixel (torchvision's may be empty, which is an error there). */
td_box td_draw_crop(int width, int height, const td_image_folder_transform *t,
                    td_uniform_source next, void *user);

/* All draws of a sample in an epoch: Philox, key (seed, "picture"), counter (epoch, sample). */
td_picture_draw td_picture_draw_for(const td_image_folder_transform *t, int width, int height,
                                    uint64_t epoch, uint64_t sample);

/* Decodes and transforms one picture file to rgb [size][size][3]. */
td_status td_picture_load(const td_image_folder_transform *t, td_encoded *picture, uint64_t epoch,
                          uint64_t sample, uint8_t *rgb);
