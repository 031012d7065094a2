/*
 * Winograd's transforms F(4x4, 3x3), over plain pointers to floats. A tile of 6x6 pixels of x, a
 * filter of 3x3 and a tile of 4x4 pixels of y become 36 numbers each ("points"), of which
 *
 *     forward:           points of y  =  points of x * points of w      (4x4 out of 6x6, 3x3)
 *     backward-weights:  points of w  =  points of x * points of dy     (3x3 out of 6x6, 4x4)
 *
 * and since channels are independent of each other here, all loops go along channels.
 *
 * Each transform is M a M^T for a small matrix M:
 *
 *     B^T = 4  0 -5  0  1  0     A^T = 1  1  1  1  1  0     G = 1/4    0    0
 *           0 -4 -4  1  1  0           0  1 -1  2 -2  0        -1/6 -1/6 -1/6
 *           0  4 -4 -1  1  0           0  1  1  4  4  0        -1/6  1/6 -1/6
 *           0 -2 -1  2  1  0           0  1 -1  8 -8  1         1/24 1/12  1/6
 *           0  2 -1 -2  1  0                                    1/24 -1/12 1/6
 *           0  4  0 -5  0  1                                     0    0    1
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
    TD_WINO_OUT = 4,  /* pixels of y in a tile, each way */
    TD_WINO_IN = 6,   /* pixels of x that it depends on */
    TD_WINO_TAPS = 3, /* of the filter, each way */
    TD_WINO_POINTS = 36,
};

/* Rows of `count` floats: pixel i of picture n at pixel[i] + n*image; NULL: pixels that do not
 * exist, read as zero and not written. Point p of picture n at points + p*step + n*row. */
typedef struct td_wino_tile {
    float *pixel[TD_WINO_POINTS];
    int64_t image, images;
    float *points;
    int64_t step, row;
    int64_t count;
    const float *bias; /* from_points: `count` floats that are added, or NULL */
    bool accumulate;   /* from_points: add to what is there */
} td_wino_tile;

typedef struct td_wino_kernels {
    void (*x_to_points)(const td_wino_tile *tile);   /* B^T x B; 36 pixels */
    void (*y_from_points)(const td_wino_tile *tile); /* A^T p A; 16 pixels */
    void (*dy_to_points)(const td_wino_tile *tile);  /* A dy A^T; 16 pixels */

    /* to[p*to_step + i] = (G w G^T)[p] with w[tap] at from[tap*from_step + i], for i < count. */
    void (*w_to_points)(float *to, int64_t to_step, const float *from, int64_t from_step,
                        int64_t count);
    /* dw[tap*dw_step + i] = or += (G^T s G)[tap] with s[p] at from[p*step + i], for i < count. */
    void (*dw_from_points)(float *dw, int64_t dw_step, const float *from, int64_t step,
                           int64_t count, bool accumulate);
} td_wino_kernels;

/* On the instruction set in use. */
const td_wino_kernels *td_wino_kernels_now(void);
