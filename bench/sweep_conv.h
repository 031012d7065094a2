/* A pass of a convolution in f32 on random data: some elements are compared with sums in double
 * precision, and it is timed in turns with oneDNN's, where that is there. */
#pragma once

#include "bench/sweep.h"

enum { SWEEP_PASSES = 3 }; /* those with products: forward, backward-data, backward-weights */

/* Fills in the output's size; false if there is none. */
bool sweep_conv_finish(td_conv2d_desc *desc);

/* Multiply-adds that do not meet padding, times two: of any of the passes. */
double sweep_conv_flops(const td_conv2d_desc *desc);

/* Takes about 3 * ms. */
sweep_row sweep_conv_measure(const td_conv2d_desc *desc, td_conv2d_pass pass, td_pool *pool,
                             double ms, uint64_t seed);
