/* Backward-weights in bf16: what its product (conv_bf16_reduce.c) and its packing share. */
#pragma once

#include "tensor/cpu/conv_bf16.h"

/* x or dy, where it is read from. */
typedef struct td_bf16_view {
    const char *data;
    td_dtype dtype;
    td_conv_strides at;
    int64_t low_plane; /* of pictures that have been split: to the low parts, in elements */
} td_bf16_view;

/* x or dy as it is packed. */
typedef struct td_bf16_packed {
    td_bf16 *data;
    int64_t width; /* units in a row */
    int64_t low;   /* elements to the low parts of split numbers, or 0 */
} td_bf16_packed;

/* The part of x and dy that is packed at a time: some blocks at some rows. */
typedef struct td_bf16_slab {
    int64_t most_blocks, most_y_rows, most_x_rows; /* of any slab: the packed memory has room */
    int64_t block, blocks; /* the present slab's first block, and how many */
    int64_t y_row, y_rows;
    int64_t x_row, x_rows;
    bool first; /* of all: no earlier slab has written dw */
} td_bf16_slab;

typedef struct td_bf16_reduce {
    td_conv_problem problem;
    td_bf16_pictures rows; /* x as rows */
    td_bf16_view x, dy;
    float *dw;
    bool accumulate;
    td_conv_taps h, w;
    bool whole_rows;           /* a unit is all pictures at a row of pixels, not at a pixel */
    int64_t planes;            /* copies of x: one for each horizontal tap of whole rows */
    int64_t blocks;            /* of 32 pictures in a unit */
    int64_t ic_blocks, panels; /* of a group's channels */
    bool split;
    td_bf16_packed packed_x, packed_dy;
    uint8_t *used_h, *used_w; /* rows and columns of x that any tap meets */
    td_bf16_slab slab;
} td_bf16_reduce;

/* Where the blocks of a unit of x begin: those of a slab lie [group][block of channels][plane][row]
 * [unit][block of pictures]. */
static inline td_bf16 *td_bf16_reduce_x(const td_bf16_reduce *p, int64_t channels, int64_t plane,
                                        int64_t row, int64_t unit)
{
    int64_t at = ((channels * p->planes + plane) * p->slab.most_x_rows + row - p->slab.x_row) *
                     p->packed_x.width +
                 unit;
    return p->packed_x.data + at * p->slab.most_blocks * TD_BF16_STEP;
}

/* The same for dy: [group][panel][row][unit][block of pictures]. */
static inline td_bf16 *td_bf16_reduce_dy(const td_bf16_reduce *p, int64_t panel, int64_t row,
                                         int64_t unit)
{
    int64_t at = (panel * p->slab.most_y_rows + row - p->slab.y_row) * p->packed_dy.width + unit;
    return p->packed_dy.data + at * p->slab.most_blocks * TD_BF16_STEP;
}

/* Packs the present slab: first the tasks of x, then one for each row of dy and panel. */
int64_t td_bf16_reduce_x_tasks(const td_bf16_reduce *p);
void td_bf16_reduce_pack(void *reduce, int64_t task);
