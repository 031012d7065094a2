/* The parts of forward and backward-data: conv_apply.c and its plan, conv_apply_strips.c,
 * conv_apply_gather.c, conv_apply_listed.c. */
#ifndef TD_TENSOR_CPU_CONV_APPLY_H
#define TD_TENSOR_CPU_CONV_APPLY_H

#include "tensor/cpu/conv_internal.h"
#include "tensor/cpu/conv_order.h"

enum {
    TD_APPLY_DEPTH = 128, /* products in a partial sum, at most: short sums are exact sums; and rows
                             of B in a call of the kernel: they must stay in the L1 cache */
    TD_APPLY_TERMS = 64,
    TD_DOTS_DEPTH = 1024, /* the same of `dots`: each lane is a sum of its own */
    TD_GATHERED_DOTS_DEPTH = 256,
    TD_GATHER_ROWS = 48, /* of a gathered or listed block */
};

/* How the result is cut into strips (conv_apply_strips.c). */
typedef struct td_conv_strips {
    int64_t apart;        /* pixels of a line that meet one tap are so far apart */
    int64_t per_pixel;    /* pictures in a line: all, or 1 */
    int64_t images;       /* lines of a row of pixels: 1, or the pictures */
    bool pixels_together; /* rows of the source go on from pixel to pixel */
    int64_t a_row, c_row;
    int64_t lines, line_parts;     /* of a strip; strips below each other */
    int64_t columns, column_parts; /* of a strip; strips beside each other */
} td_conv_strips;

typedef struct td_conv_apply_plan {
    const td_conv_apply *apply;
    const td_conv_problem *problem;
    td_conv_taps h, w;
    int64_t images;  /* 1, or by picture: all of them, each with blocks of its own */
    int64_t per_run; /* pictures in a run: all of them, or by picture: 1 */
    int64_t apart;   /* from one pixel of a run to the next: 1, or the stride, where one in so many
                        meets the same taps */
    int step;        /* from one source pixel to the next then */
    td_conv_strides from, to;
    int64_t groups;                     /* what shares a vector counts as one */
    int64_t from_channels, to_channels; /* of one group */
    int64_t depth;                      /* products in a tap: from_channels, if none share */
    td_gemm_lanes lanes;                /* where some do */
    td_conv_pixels transposed;          /* or are transposed together */
    int64_t panels;                     /* of one group */
    bool dots;                          /* vectors along the sum; weights are as B transposed */
    int64_t width;                      /* of a panel */
    int64_t most_depth;                 /* products in a partial sum */
    bool panels_first;                  /* all weights stay in the cache: the panels of a block
                                           before other blocks, whose source is then read once */
    td_turns turns;                     /* panels are those of all groups */
    td_gemm_store store;                /* of sums that are built in one call */
    int64_t a_row, c_row;               /* from row to row of the source, of the result */
    int64_t block_rows;                 /* at most: more of narrow ones, fewer of short sums */
    td_conv_row_block *blocks;
    int64_t block_count; /* of a row of pixels; gathered or listed: of all */

    /* Where runs are short: all pixels, those that meet the same taps next to each other. Their
     * sources are copied (gathers) or found in tables (lists). */
    td_conv_order order;
    bool gathers, lists;

    bool in_strips;
    td_conv_strips strips;

    /* Panels of weights, [group][panel][tap that is alive][channel of the source][panel width];
     * NULL where the weights serve as they are. */
    char *packed;
} td_conv_apply_plan;

/* The sum that is being built for one block of the result. */
typedef struct td_conv_term_sum {
    const td_gemm_kernels *kernels;
    const td_gemm_lanes *lanes;   /* of groups that share a vector, or NULL */
    const td_conv_pixels *pixels; /* of groups that are transposed together, or NULL */
    bool dots;
    td_gemm_block block;
    int64_t depth, most_depth;
    int64_t b_step; /* elements of B for a channel of the source */
    td_gemm_term terms[TD_APPLY_TERMS];
} td_conv_term_sum;

/* What a task computes. */
typedef struct td_conv_place {
    int64_t block, image, pixel_row, panel, group;
} td_conv_place;

/* Takes the plan's memory, and fills it unless the space only measures. */
td_conv_apply_plan td_conv_apply_plan_make(const td_conv_apply *apply, td_conv_space *space);

/* Builds a sum from what has been collected, and begins anew. */
void td_conv_add_up(td_conv_term_sum *sum);

/* From row to row of the weights. */
int64_t td_conv_apply_b_row(const td_conv_apply_plan *p);

/* The panel of weights of a tap. */
const char *td_conv_apply_weights(const td_conv_apply_plan *p, int64_t group, int64_t panel, int kh,
                                  int kw);

/* Where a task of p->turns is, of blocks in the order [pixel row][image][block of a row]; `images`
 * is 1 where all pictures are in one block. */
td_conv_place td_conv_apply_place(const td_conv_apply_plan *p, int64_t task, int64_t images);

/* Tasks, of the ways of that name. */
void td_conv_gathered_task(void *plan, int64_t task);
void td_conv_listed_task(void *plan, int64_t task);

/* Whether strips can do it; how it is cut then, with block_count = strips.column_parts for each of
 * line_parts; and a task. */
bool td_conv_strips_possible(const td_conv_apply_plan *plan);
td_conv_strips td_conv_strips_make(const td_conv_apply_plan *plan);
/* Rows times taps of a row of pixels, and what else it costs in such. */
double td_conv_strips_cost(const td_conv_apply_plan *plan);
void td_conv_strip_task(void *plan, int64_t task);

#endif
