/* The plan of step memory: each block of a training step, where it lies, which kernel it was made
 * for, and from which to which kernel it lives. Recorded while steps run, for looking at
 * afterwards.
 */
#ifndef TD_TENSOR_MEMORY_PLAN_H
#define TD_TENSOR_MEMORY_PLAN_H

#include "tensor/extern_c.h"
#include "tensor/tensor.h"

TD_BEGIN_C

typedef enum td_block_kind {
    TD_BLOCK_FORWARD,  /* made in forward: an activation, or what an operation keeps beside it */
    TD_BLOCK_BACKWARD, /* made in backward: a gradient */
    TD_BLOCK_SCRATCH,  /* taken and given back inside of one kernel */
} td_block_kind;

typedef struct td_memory_block {
    size_t offset, bytes;
    int from, to; /* kernels of the step, counted from 0: the one that it was made for, the last
                     one that ran before it was given back */
    td_block_kind kind;
} td_memory_block;

typedef struct td_memory_op {
    const char *kernel; /* "conv2d" */
    char module[80];    /* "" outside of modules */
    bool backward;
} td_memory_op;

typedef struct td_memory_plan {
    const td_memory_block *blocks; /* in the order of their making */
    int block_count;
    const td_memory_op *ops; /* the step's kernels */
    int op_count;
    size_t peak;   /* most bytes taken at a time */
    int peak_op;   /* when that was */
    size_t extent; /* the end of the highest block: with holes, what the arena needs */
} td_memory_plan;

/* Records the steps of the calling thread from now on, until td_memory_plan_stop. Of several, the
 * last one with a backward is kept. Recording calls malloc. */
void td_memory_plan_start(void);
void td_memory_plan_stop(void);

/* What was kept; op_count 0: nothing. Good until the next start. */
td_memory_plan td_memory_plan_get(void);

/* The table: peak, what lives then, and all blocks of at least `least` bytes. */
void td_memory_plan_print(FILE *out, size_t least);
/* A picture (SVG): time to the right, addresses upwards. TD_E_IO. */
td_status td_memory_plan_draw(const char *path);

TD_END_C

#endif
