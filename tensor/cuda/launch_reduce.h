/* reduce.cu: sums and maxima over dimensions. */
#pragma once

#include "tensor/cuda/launch.h"

#include <stdbool.h>

TD_EXTERN_C_BEGIN

typedef enum td_cuda_reduction {
    TD_CUDA_SUM,
    TD_CUDA_MAX,    /* of NaN is NaN */
    TD_CUDA_SQUARES /* the sum of squares */
} td_cuda_reduction;

/* How the threads of a block share its work. */
typedef enum td_cuda_reduce_shape {
    TD_CUDA_BY_BLOCK,  /* a block for each output */
    TD_CUDA_BY_WARP,   /* a warp for each output */
    TD_CUDA_BY_COLUMNS /* neighbouring outputs lie side by side in x: a thread for each */
} td_cuda_reduce_shape;

typedef struct td_cuda_reduce_job {
    td_cuda_reduction kind;
    td_cuda_reduce_shape by;
    td_dtype x_dtype, y_dtype; /* float ones */
    const void *x;
    void *y;              /* = (accumulate: +=) result / divisor */
    td_cuda_walk kept;    /* the outputs: operand 0 is y, 1 is x */
    td_cuda_walk reduced; /* what is added up for each: operand 0 is x */
    /* The reduced elements are cut into segments of so many; more than one: partial sums go through
     * partial[segments][outputs], and counters (td_cuda_counters) has one for each tile of outputs.
     */
    int64_t segment, segments;
    double *partial;
    unsigned *counters;
    double divisor;
    bool accumulate;
} td_cuda_reduce_job;

/* The most outputs that a block has, by td_cuda_reduce_shape. */
int td_cuda_reduce_outputs(td_cuda_reduce_shape by);

void td_cuda_launch_reduce(const td_cuda_reduce_job *job, cudaStream_t stream);

TD_EXTERN_C_END
