/* The plan of backward-weights: made by conv_reduce_plan.c, run by conv_reduce.c and, where x has a
 * handful of channels, conv_reduce_few.c. */
#ifndef TD_TENSOR_CPU_CONV_REDUCE_H
#define TD_TENSOR_CPU_CONV_REDUCE_H

#include "tensor/cpu/conv_classes.h"

enum {
    TD_REDUCE_ROWS = 128,     /* of dy in a block: they stay in the L1 cache */
    TD_REDUCE_TILE = 128,     /* input channels of a tile, at most; then whole register blocks */
    TD_REDUCE_FEW_ROWS = 400, /* channels of x times taps, at most, of products of all taps */
};

typedef struct td_reduce_plan {
    const td_conv_reduce *reduce;
    const td_conv_problem *problem;
    td_conv_taps h, w;
    bool few;                                     /* all taps are rows of one product */
    td_conv_classes classes;                      /* then: blocks of rows that meet the same taps */
    int64_t a_col;                                /* to the next row of x in a run */
    int64_t panels, tiles;                        /* of output and input channels, of a group */
    int64_t span_groups, span_panels, span_tiles; /* in a task */
    int64_t spans;                                /* tasks of a piece */
    int64_t rows, blocks;                         /* of dy */
    int64_t pieces, per_piece;                    /* blocks */
    bool packs;   /* rows of dy are copied, as they are read often */
    bool fetches; /* the next block's rows, from memory */
    int64_t dw_size;
    char *partial; /* [piece][as dw], or NULL */
} td_reduce_plan;

td_reduce_plan td_reduce_plan_make(const td_conv_reduce *reduce, td_conv_space *space);

/* Rows of x beside rows of dy, as terms of a product: runs that go on in equal steps. */
typedef struct td_run_list {
    td_gemm_term terms[TD_REDUCE_ROWS];
    int count;
    int64_t x_step, dy_step; /* bytes */
} td_run_list;

/* Adds k rows, to the last run if that ends here. */
static inline void td_run_add(td_run_list *runs, const char *x, const char *dy, int64_t k)
{
    td_gemm_term *last = runs->count > 0 ? &runs->terms[runs->count - 1] : NULL;
    if (last && (const char *)last->a + last->k * runs->x_step == x &&
        (const char *)last->b + last->k * runs->dy_step == dy) {
        last->k += k;
    } else {
        runs->terms[runs->count++] = (td_gemm_term){ x, dy, k };
    }
}

/* A task where x has few channels: a piece of the blocks, and one panel. */
void td_reduce_few_task(void *plan, int64_t task);

#endif
