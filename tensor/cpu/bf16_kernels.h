/*
 * The micro-kernels of bf16: blocks of 32 by 32 sums in f32, from factors of bf16. Everything that
 * multiplies bf16 is a loop over these. There is one for AVX-512 with bf16 products and one for AMX
 * tiles; both read the same packed factors.
 *
 * A is read in rows whose inner dimension is dense. B is packed: a step of `depth` rows (at most
 * 32, an even number) by 32 columns is stored as depth/2 pairs of rows, element (p, j) at
 * b[(p/2)*64 + j*2 + p%2].
 *
 * An f32 factor can be split into two of bf16, value = high + low, and multiplied three times:
 * high*high + low*high + high*low. The low part of a factor then lies a fixed distance further on.
 */
#ifndef TD_TENSOR_CPU_BF16_KERNELS_H
#define TD_TENSOR_CPU_BF16_KERNELS_H

#include "tensor/cpu/isa.h"
#include "tensor/dtype.h"

enum {
    TD_BF16_BLOCK = 32,     /* rows and columns of a block of sums, and the deepest step */
    TD_BF16_STEP = 32 * 32, /* elements of a full step of packed B, or of packed A */
    TD_BF16_HALF = TD_BF16_BLOCK / 2, /* rows of a tile */
};

/* One term of a sum of products: A m x (steps*depth), B (steps*depth) x n. */
typedef struct td_bf16_term {
    const td_bf16 *a, *b;
    int64_t steps;
} td_bf16_term;

/* C = (accumulate ? C : 0) + (sum over terms of A_t * B_t) + (bias ? bias : 0); a bf16 result is
 * rounded once. Distances count elements. */
typedef struct td_bf16_block {
    const td_bf16_term *terms;
    int count;
    int64_t a_row;  /* from row to row of A, for rows 0 to 15 */
    int64_t a_half; /* from row 0 to row 16, from 1 to 17, ... */
    int64_t a_step; /* from step to step of A; in B, steps follow each other */
    int depth;
    bool split;           /* three products */
    int64_t a_low, b_low; /* to the low parts */
    int m, n;             /* at most 32 */
    void *c;              /* element (i, j) at c[i*c_row + j]; rows from 16 on at c_half */
    int64_t c_row, c_half;
    td_dtype dtype; /* of c: TD_F32 or TD_BF16 */
    bool accumulate;
    const float *bias;      /* n elements, or NULL */
    double *sums, *squares; /* += the columns of what is stored, or NULL */
} td_bf16_block;

/* What the tiles of a thread are set to; on the stack of a task. */
typedef struct td_bf16_tiles {
    int m, depth;
} td_bf16_tiles;

typedef struct td_bf16_kernels {
    /* A task that multiplies begins and ends so; tiles starts as { 0 }. */
    void (*end)(td_bf16_tiles *tiles);
    void (*block)(const td_bf16_block *block, td_bf16_tiles *tiles);
    /* A full step takes no longer than another one, and its rows are whole cache lines. */
    bool full_steps;
} td_bf16_kernels;

/* The kernels of the instruction set in use; NULL if it multiplies no bf16. */
const td_bf16_kernels *td_bf16_kernels_now(void);

/* ---- packing; where there are kernels ---- */

/* Where to read a factor: f32 or bf16, and how far its rows lie apart. */
typedef struct td_bf16_source {
    const void *data;
    td_dtype dtype;
    int64_t stride;
} td_bf16_source;

/*
 * Each of these packs one step, into `to` and, unless low is 0, the low parts into to + low. What
 * lies beyond the given sizes is filled with zeros. `source` is read in rows, `stride` apart.
 *
 * A: 32 rows of 32, element (i, p) at to[i*32 + p]. From rows of A (rows i < m of k elements), or
 * turned, from rows p < k of m elements.
 * B: depth rows, as above. From rows of B (rows p < k of n elements), or turned, from rows j < n of
 * k elements.
 */
void td_bf16_pack_a(td_bf16 *to, int64_t low, const td_bf16_source *source, int m, int k);
void td_bf16_pack_a_turned(td_bf16 *to, int64_t low, const td_bf16_source *source, int m, int k);
void td_bf16_pack_b(td_bf16 *to, int64_t low, const td_bf16_source *source, int k, int n,
                    int depth);
void td_bf16_pack_b_turned(td_bf16 *to, int64_t low, const td_bf16_source *source, int k, int n,
                           int depth);

/* One row of `count` elements, filled with zeros up to `padded`. */
void td_bf16_pack_row(td_bf16 *to, int64_t low, const void *from, td_dtype dtype, int64_t count,
                      int64_t padded);

#endif
