/* Resizing pictures by PIL's antialiased bilinear filter, bit for bit: a triangle as wide as the
 * reduction, weights rounded to 22 bits, first along rows and then along columns, each result
 * rounded to a byte. Users do not include this. */
#pragma once

#include "data/images/bitmap.h"

typedef struct td_box {
    int left, top, width, height;
} td_box;

/* The pixels `crop` of a bitmap, as a picture of their own, are resized to width x height; of the
 * result only the part `window` is computed, and written to rgb [window.height][window.width][3].
 * (So a resize with a crop behind it costs what the crop needs, and gives the same bytes.) */
td_status td_resample(const td_bitmap *from, td_box crop, int width, int height, td_box window,
                      uint8_t *rgb);
