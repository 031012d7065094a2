/* The plan of backward-weights: made by conv_reduce_plan.c, run by conv_reduce.c. */
#pragma once

#include "tensor/cpu/conv_internal.h"

enum {
    TD_REDUCE_ROWS = 128, /* of dy in a block: they stay in the L1 cache */
    TD_REDUCE_TILE = 128, /* input channels of a tile, at most; then whole register blocks */
};

/* Sums are over the rows of dy. Blocks are TD_REDUCE_ROWS of them; a piece, which has tasks of its
 * own, is some blocks, and its tasks are run in stages of fewer blocks. */
typedef struct td_reduce_cut {
    int64_t rows, blocks;
    int64_t pieces, per_piece; /* blocks in a piece */
    int64_t stage, done;       /* blocks of a piece in a stage, and in the stages that are over */
} td_reduce_cut;

typedef struct td_reduce_plan {
    const td_conv_reduce *reduce;
    const td_conv_problem *problem;
    td_conv_taps h, w;
    int64_t groups, x_channels, y_channels; /* channels of a group; sharing groups are one */
    td_gemm_lanes lanes;                    /* if groups share a vector */
    int64_t a_col;                          /* elements to the next row of x in a run */
    int64_t panels, tiles;                  /* of output and input channels, of a group */
    int64_t width;                          /* columns of a panel of packed dy */
    struct {
        int64_t groups, panels, tiles; /* in a span: the part of dw that is a task's */
        int64_t count;                 /* of spans: tasks of a piece */
    } span;
    td_reduce_cut cut;
    bool packs; /* rows of dy are copied, as they are read often */
    int64_t dw_size;
    char *partial; /* [piece][as dw], or NULL */
} td_reduce_plan;

td_reduce_plan td_reduce_plan_make(const td_conv_reduce *reduce, td_conv_space *space);
