/* How the CPU's kernels go over tensors: several tensors of one shape side by side, in the memory
 * order of the first, with neighbouring dimensions merged where all strides allow it. What is left
 * is a handful of long runs; when all tensors are dense and of one order, a single one. */
#pragma once

#include "tensor/cpu/pool.h"
#include "tensor/tensor.h"

enum {
    TD_WALK_OPERANDS = 4,
    TD_INLINE_ELEMENTS = 32768, /* up to here, cheap work stays on the calling thread */
    TD_CHUNK_ELEMENTS = 16384,  /* beyond, it is cut into pieces of this size */
};

typedef struct td_walk {
    int operands;
    int ndim;                                      /* at least 1, unless count is 0 */
    int64_t count;                                 /* elements */
    int64_t size[TD_MAX_DIMS];                     /* [0] varies fastest */
    int64_t stride[TD_WALK_OPERANDS][TD_MAX_DIMS]; /* in elements */
} td_walk;

/* The tensors have equal shapes. NULL may stand for one that is not there. */
void td_walk_init(td_walk *walk, int operands, const td_tensor *const *tensors);

/* Goes over elements [begin, end) of a walk, run by run:
 *
 *     td_cursor c;
 *     for (int64_t n = td_cursor_start(&c, &walk, begin, end); n; n = td_cursor_next(&c))
 *         ... n elements; operand k's begin at c.offset[k], walk.stride[k][0] apart ...
 */
typedef struct td_cursor {
    const td_walk *walk;
    int64_t left; /* elements after the present run, the run included */
    int64_t run;
    int64_t index[TD_MAX_DIMS];
    int64_t offset[TD_WALK_OPERANDS];
} td_cursor;

int64_t td_cursor_start(td_cursor *cursor, const td_walk *walk, int64_t begin, int64_t end);
int64_t td_cursor_next(td_cursor *cursor);

/* Calls fn(ctx, begin, end) for consecutive pieces of [0, count), on the device's threads. Each of
 * the `count` items costs about as much as a copy of `cost` elements. The pieces depend on count
 * and cost alone. */
typedef void (*td_range_fn)(void *ctx, int64_t begin, int64_t end);
void td_parallel(td_device device, int64_t count, int64_t cost, td_range_fn fn, void *ctx);
/* The same in pieces that are `chunk` long but for the last. */
void td_parallel_chunks(td_device device, int64_t count, int64_t chunk, td_range_fn fn, void *ctx);
/* The last ones first: what the pass before has left in the caches. */
void td_parallel_backwards(td_device device, int64_t count, int64_t chunk, td_range_fn fn,
                           void *ctx);

/* y[i*sy] = x[i*sx] for i < n, elements of `size` bytes. */
void td_copy_run(size_t size, int64_t n, void *y, int64_t sy, const void *x, int64_t sx);

/* The chunk for items of `cost` elements each. */
static inline int64_t td_item_chunk(int64_t count, int64_t cost)
{
    int64_t all = count * cost <= TD_INLINE_ELEMENTS ? TD_INLINE_ELEMENTS : TD_CHUNK_ELEMENTS;
    int64_t chunk = cost > 1 ? all / cost : all;
    return chunk > 1 ? chunk : 1;
}

/* Runs CASE(type) for the unsigned type of elements of `size` bytes. */
#define TD_BY_SIZE(size, CASE)                                                                     \
    if ((size) == 1) {                                                                             \
        CASE(uint8_t)                                                                              \
    } else if ((size) == 2) {                                                                      \
        CASE(uint16_t)                                                                             \
    } else if ((size) == 4) {                                                                      \
        CASE(uint32_t)                                                                             \
    } else {                                                                                       \
        CASE(uint64_t)                                                                             \
    }
