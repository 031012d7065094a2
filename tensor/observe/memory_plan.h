/* The plan of step memory: every block of a training step, with its address and the kernels between
 * which the block lives. The plan is recorded while steps run, and printed or drawn afterwards.
 * docs/memory.md reads a plan. */
#pragma once

#include "tensor/tensor.h"

TD_BEGIN_C

typedef enum td_block_kind {
    TD_BLOCK_FORWARD,  /* allocated in forward: an activation, or what an operation saves for
                          backward */
    TD_BLOCK_BACKWARD, /* allocated in backward: a gradient */
    TD_BLOCK_SCRATCH,  /* scratch memory of one kernel */
} td_block_kind;

typedef struct td_memory_block {
    size_t offset, bytes; /* offset: from the start of the step memory */
    int from, to; /* kernels of the step, counted from 0: the kernel that the block was allocated
                     for, and the last kernel that ran before the block was released */
    td_block_kind kind;
} td_memory_block;

typedef struct td_memory_op {
    const char *kernel; /* "conv2d" */
    char module[80];    /* "" outside of modules */
    bool backward;
} td_memory_op;

typedef struct td_memory_plan {
    const td_memory_block *blocks; /* in the order of allocation */
    int block_count;
    const td_memory_op *ops; /* the step's kernels */
    int op_count;
    size_t peak;   /* the most bytes in use at a time */
    int peak_op;   /* the kernel at which the peak was reached */
    size_t extent; /* the end of the highest block: the size of the arena, holes included */
} td_memory_plan;

/* Starts to record the calling thread's steps; td_memory_plan_stop ends that. The plan of the last
 * step with a backward is kept. Recording calls malloc. */
void td_memory_plan_start(void);
void td_memory_plan_stop(void);

/* The plan that was kept; op_count 0: none. The library owns the arrays, which are valid until the
 * next td_memory_plan_start. */
td_memory_plan td_memory_plan_get(void);

/* Prints a table: the peak, the blocks that live at the peak, and all blocks of at least `least`
 * bytes. */
void td_memory_plan_print(FILE *out, size_t least);
/* Writes the plan as an SVG image: time to the right, addresses upwards. TD_E_IO: writing failed.
 */
td_status td_memory_plan_draw(const char *path);

TD_END_C
