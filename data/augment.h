/* Random crop, flip and normalisation of 32x32 pictures, from bytes into a batch of floats. Not for
 * users: they call td_dataset_set_transform. */
#pragma once

#include "data/data.h"

enum {
    TD_PICTURE_SIDE = 32,
    TD_PICTURE_CHANNELS = 3,
    TD_PICTURE_BYTES = TD_PICTURE_CHANNELS * TD_PICTURE_SIDE * TD_PICTURE_SIDE,
    TD_PICTURE_BLOCK = 16, /* pictures that td_augment_write takes at a time */
};

/* What a byte becomes: (byte/255 - mean) / std in float, as PyTorch's ToTensor and Normalize round
 * it. A table is exact, and quicker than two divisions. */
typedef struct td_byte_values {
    float of[TD_PICTURE_CHANNELS][256];
} td_byte_values;
void td_byte_values_set(td_byte_values *values, const td_image_transform *transform);

/* One picture and how it is cut: out[h][w] = pixels[h + down][w + right], outside 0 or, with
 * reflect, what lies as far inside; then mirrored if flip. */
typedef struct td_picture {
    const uint8_t *pixels; /* [3,32,32] */
    int down, right;       /* -31 .. 31 */
    bool flip, reflect;
} td_picture;

/* The place inside a picture that place i in -31 .. 62 shows by reflection. */
static inline int td_reflected(int i)
{
    return i < 0 ? -i : i < TD_PICTURE_SIDE ? i : 2 * (TD_PICTURE_SIDE - 1) - i;
}

/* The cut that a sample gets in an epoch; pixels is left NULL. One Philox block per sample: word 0
 * places the crop vertically, word 1 horizontally, word 2 decides the flip. */
td_picture td_augment_draw(const td_image_transform *transform, uint64_t epoch, uint64_t sample);

/* Writes up to TD_PICTURE_BLOCK pictures; out is the address of the first one's element [0,0,0],
 * and stride the batch's (N,C,H,W, in elements). Whole cache lines at a time when the samples of a
 * pixel lie side by side, as in the CPU's layout [H][W][N][C]. */
void td_augment_write(const td_byte_values *values, const td_picture *pictures, int count,
                      float *out, const int64_t *stride);
