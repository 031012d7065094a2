/* The innermost loops of convolutions whose groups have one channel, over plain pointers to floats
 * or doubles: no products of matrices, each channel meets its own weights only. */
#pragma once

#include "tensor/cpu/gemm_kernels.h"

enum {
    TD_DEPTHWISE_COLUMNS = 64, /* at most, in a call of `sums` */
};

/* y[r][j] = (accumulate ? y[r][j] : 0) + (bias ? bias[i] : 0) + sum over taps of x[r][j] * w[i],
 * for r < rows, j < columns, and i = (phase + j) % period; rows of x are x_step apart, those of y
 * y_step. Where columns pass the end of the period inside a vector, w and bias go on there with
 * their first elements. */
typedef struct td_depthwise_tap {
    const void *x, *w;
} td_depthwise_tap;

typedef struct td_depthwise_block {
    const td_depthwise_tap *taps;
    int count;
    void *y;
    int64_t x_step, y_step, rows, columns;
    bool far; /* x comes from memory: what the rows after these meet is fetched ahead */
    int64_t period, phase;
    const void *bias;
    bool accumulate;
} td_depthwise_block;

typedef struct td_depthwise_kernels {
    size_t size; /* bytes of an element */

    void (*apply)(const td_depthwise_block *block);

    /* sum[j] = the sum over terms and their k rows of a[r][j] * b[r][j], j < columns, at most
     * TD_DEPTHWISE_COLUMNS; rows are `step` apart. */
    void (*sums)(void *sum, const td_gemm_term *terms, int count, int64_t step, int64_t columns);
} td_depthwise_kernels;

/* For TD_F32 or TD_F64, on the instruction set in use. */
const td_depthwise_kernels *td_depthwise_kernels_for(td_dtype dtype);
