/* What the passes of depthwise convolutions share. */
#ifndef TD_TENSOR_CPU_CONV_DEPTHWISE_H
#define TD_TENSOR_CPU_CONV_DEPTHWISE_H

#include "tensor/cpu/conv_internal.h"
#include "tensor/cpu/depthwise_kernels.h"

enum {
    TD_DEPTHWISE_LANES = 16, /* of the widest vector */
    TD_DEPTHWISE_WANTED_TASKS = 32,
    TD_DEPTHWISE_COST = 4, /* of a multiply-add here, in those of a product of matrices */
};

/* The pictures and channels at a pixel as rows: channels are taken several times over (`replicas`,
 * of as many pictures), so that vectors are full. */
typedef struct td_depthwise_plan {
    const td_conv_problem *problem;
    const td_depthwise_kernels *kernels;
    td_conv_taps h, w;
    int64_t channels, replicas;
    int64_t width; /* replicas * channels: elements of a row */
} td_depthwise_plan;

/* With one replica. */
td_depthwise_plan td_depthwise_plan_make(const td_conv_problem *problem, bool backward,
                                         td_conv_space *space);

/* Backward-weights of rows [row, end) of pixels, `columns` channels from `column` on: patch by
 * patch, where that is faster (conv_depthwise_patches.c). Adds to total[tap*channels + c] of the
 * first of these channels. */
typedef struct td_depthwise_patches {
    const td_depthwise_plan *plan;
    const void *x, *dy;
    int64_t row, end;
    int64_t column, columns;
} td_depthwise_patches;

bool td_depthwise_patches_win(const td_depthwise_plan *plan);
void td_depthwise_sum_patches(const td_depthwise_patches *p, double *total);

/* The pool, or NULL where the work is too little to wake it. */
td_pool *td_depthwise_pool(td_pool *pool, const td_depthwise_plan *plan);

#endif
