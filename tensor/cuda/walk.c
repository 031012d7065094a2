/* Sorts and merges the dimensions of a kernel's operands. */
#include "tensor/cuda/cuda.h"

/* One dimension of all operands. */
typedef struct dimension {
    int64_t size;
    int64_t stride[TD_CUDA_MAX_OPERANDS];
} dimension;

/* Whether a belongs outside of b: larger strides first, in the order of the operands. */
static bool is_outer(const dimension *a, const dimension *b, int operands)
{
    for (int i = 0; i < operands; i++) {
        if (a->stride[i] != b->stride[i]) {
            return a->stride[i] > b->stride[i];
        }
    }
    return false;
}

/* Whether walking outer and inner is walking one dimension, for all operands. */
static bool joins(const dimension *outer, const dimension *inner, int operands)
{
    for (int i = 0; i < operands; i++) {
        if (outer->stride[i] != inner->size * inner->stride[i]) {
            return false;
        }
    }
    return true;
}

/* The dimensions that matter, outermost first. */
static int sort_dimensions(dimension *sorted, int operands, const td_tensor *const *tensors)
{
    int count = 0;
    for (int d = 0; d < tensors[0]->ndim; d++) {
        dimension next = { .size = tensors[0]->shape[d] };
        for (int i = 0; i < operands; i++) {
            next.stride[i] = tensors[i]->stride[d];
        }
        if (next.size == 1) {
            continue;
        }
        int at = count++;
        for (; at > 0 && is_outer(&next, &sorted[at - 1], operands); at--) {
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = next;
    }
    return count;
}

td_cuda_walk td_cuda_walk_of(int operands, const td_tensor *const *tensors)
{
    dimension dims[TD_MAX_DIMS];
    int count = sort_dimensions(dims, operands, tensors);
    int joined = 0; /* dims[0..joined-1] are done */
    for (int d = 0; d < count; d++) {
        if (joined > 0 && joins(&dims[joined - 1], &dims[d], operands)) {
            dims[d].size *= dims[joined - 1].size;
            joined--;
        }
        dims[joined++] = dims[d];
    }
    if (joined == 0) { /* a single element */
        dims[joined++] = (dimension){ .size = 1 };
    }
    td_cuda_walk walk = { .ndim = joined, .count = td_numel(tensors[0]) };
    for (int d = 0; d < joined; d++) {
        walk.shape[d] = dims[d].size;
        for (int i = 0; i < operands; i++) {
            walk.stride[i][d] = dims[d].stride[i];
        }
    }
    return walk;
}
