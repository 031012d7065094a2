/* How backward-weights cuts its work. */
#ifndef TD_TENSOR_CPU_CONV_REDUCE_PLAN_H
#define TD_TENSOR_CPU_CONV_REDUCE_PLAN_H

#include "tensor/cpu/conv_internal.h"

enum {
    TD_REDUCE_TILE = 128,       /* input channels in a tile, at most */
    TD_REDUCE_SWEPT_TILES = 64, /* of a result, at most */
};

typedef struct td_conv_reduce_plan {
    const td_conv_reduce *reduce;
    const td_conv_problem *problem;
    td_conv_taps h, w;
    bool by_picture;      /* rows are the pixels of one picture, not the pictures of a pixel */
    int64_t images;       /* pictures in a block of rows; the last one may have fewer */
    int64_t pixels;       /* pixels in a block of rows; the last one may have fewer */
    int64_t pixel_blocks; /* for the same pictures */
    int64_t blocks;       /* all of them, pictures outside, pixels inside */
    int64_t a_col;        /* from row to row of x, within a run */
    int64_t groups;       /* what shares a vector counts as one */
    int64_t x_channels, y_channels; /* of one group */
    td_gemm_lanes lanes;            /* where groups share a vector */
    td_conv_pixels transposed;      /* or are transposed together */
    int64_t panels;                 /* of a group's output channels */
    int64_t tile;                   /* input channels in a tile, at most */
    int64_t tiles;                  /* of a group's input channels */
    int64_t pieces;                 /* of the rows */
    int64_t blocks_per_piece;       /* whole blocks; the last piece may have fewer */
    int64_t tile_tasks;
    bool fetches; /* the next block from memory */
    bool sweeps;  /* a task has all tiles of a piece: each block of rows is read from memory once */
    char *partial; /* [piece][tap that is alive][ic][oc of all groups], or NULL: dw */
} td_conv_reduce_plan;

/* The result is cut into tiles, some input channels times one panel of output channels, all taps.
 * Where there are too few tiles to go round, the list of rows is cut as well, at places that depend
 * on the shapes only; the pieces make partial results, which are added in order afterwards.
 *
 * Tile after tile, x is read once for every panel, and dy for every tile of input channels. Where
 * they do not fit in a cache, but the result does, a task is a piece and goes through its rows
 * once, block by block, with all tiles for each (`sweeps`). */
td_conv_reduce_plan td_conv_reduce_plan_make(const td_conv_reduce *reduce, td_conv_space *space);

/* The first input channel of one of a group's tiles; of the one after the last: their number. */
int64_t td_conv_reduce_channel(const td_conv_reduce_plan *p, int64_t tile);

/* Of all groups. */
int64_t td_conv_reduce_tiles(const td_conv_reduce_plan *p);

#endif
