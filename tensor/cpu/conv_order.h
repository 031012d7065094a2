/* An order of pixels in which those that meet the same taps are next to each other, and its blocks.
 */
#ifndef TD_TENSOR_CPU_CONV_ORDER_H
#define TD_TENSOR_CPU_CONV_ORDER_H

#include "tensor/cpu/conv_internal.h"

/* Pixels [first, first + count) of the order. */
typedef struct td_conv_order_block {
    int64_t first, count;
} td_conv_order_block;

typedef struct td_conv_order {
    td_conv_taps h, w;
    int step_h, step_w; /* pixels so far apart meet the same taps, but for the borders */
    int64_t n;          /* pictures: rows of a pixel */
    int64_t most;       /* pixels in a block */
    int64_t unit;       /* blocks are a multiple of it, but for the last ones */
    bool exact;         /* all pixels of a block meet the same taps; else some may meet fewer */

    int32_t *pixels; /* row * width + column */
    td_conv_order_block *blocks;
    int64_t block_count;
} td_conv_order;

/* Takes the memory; the tables need not be filled yet. */
void td_conv_order_take(td_conv_order *order, td_conv_space *space);
/* `exact` must be possible. */
void td_conv_order_pixels(td_conv_order *order);

/* Rows times taps, those that meet nothing included; INFINITY: exact, there are too many classes.
 */
double td_conv_order_cost(const td_conv_order *order, bool exact);

#endif
