/* One pixel of a picture that is cut (td_picture_cut): the same on every device. */
#pragma once

#include "tensor/kernels/kernel_types.h"
#include "tensor/kernels/philox.h"

/* The place inside that place i shows by reflection; the edge is not repeated. */
TD_EVERYWHERE int64_t td_picture_reflected(int64_t i, int64_t size)
{
    return i < 0 ? -i : i < size ? i : 2 * (size - 1) - i;
}

/* The byte of a plane [height][width] that pixel (h, w) of the result gets. */
TD_EVERYWHERE uint8_t td_picture_byte(const td_picture_cut *cut, const uint8_t *plane,
                                      int64_t height, int64_t width, int64_t h, int64_t w)
{
    int64_t row = h + cut->down, column = (cut->flip ? width - 1 - w : w) + cut->right;
    if (cut->reflect) {
        row = td_picture_reflected(row, height);
        column = td_picture_reflected(column, width);
    }
    bool inside = row >= 0 && row < height && column >= 0 && column < width;
    return inside ? plane[row * width + column] : (uint8_t)0;
}
