/* What the passes of depthwise convolutions share. */
#pragma once

#include "tensor/cpu/conv_internal.h"
#include "tensor/cpu/depthwise_kernels.h"

enum {
    TD_DEPTHWISE_LANES = 16, /* of the widest vector */
    TD_DEPTHWISE_WANTED_TASKS = 32,
    TD_DEPTHWISE_COST = 4, /* of a multiply-add here, in those of a product of matrices */
};

typedef struct td_depthwise_plan {
    const td_conv_problem *problem;
    const td_depthwise_kernels *kernels;
    td_conv_taps h, w;
    int64_t channels;
} td_depthwise_plan;

td_depthwise_plan td_depthwise_plan_make(const td_conv_problem *problem, bool backward,
                                         td_conv_space *space);

/* The pool, or NULL where the work is too little to wake it. */
td_pool *td_depthwise_pool(td_pool *pool, const td_depthwise_plan *plan);
