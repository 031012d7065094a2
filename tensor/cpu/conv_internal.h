/* What the passes of the convolution share: how taps connect pixels, and how images lie. */
#pragma once

#include "tensor/cpu/conv.h"
#include "tensor/cpu/gemm_kernels.h"
#include "tensor/cpu/turns.h"

/* One of the two dimensions: pixel `o` of y meets, at `tap`, pixel o*stride - pad + tap*dilation of
 * x, if that lies in [0, in). */
typedef struct td_conv_axis {
    int64_t in, out;
    int kernel, stride, pad, dilation;
} td_conv_axis;

/* How many pixels of y meet the tap; and the sum over all taps. */
int64_t td_conv_tap_meets(const td_conv_axis *axis, int tap);
int64_t td_conv_meetings(const td_conv_axis *axis);

/* Element (n, c, h, w) of the images lies at h*row + w*column + n*image + c. */
typedef struct td_conv_strides {
    int64_t row, column, image;
} td_conv_strides;

/* A convolution as the passes see it. */
typedef struct td_conv_problem {
    td_dtype dtype;
    const td_gemm_kernels *kernels; /* of dtype; of bf16 also for f32 that is split */
    int64_t n, groups;
    int64_t ic, oc; /* of one group */
    int64_t oc_all;
    int64_t sharing; /* groups that are computed side by side in one vector (conv_groups.c), or 0 */
    td_conv_axis h, w;
    td_conv_strides x, y;
} td_conv_problem;

td_conv_problem td_conv_problem_of(const td_conv2d_desc *desc);

/* Columns of a packed panel, where a group has so many channels of the result: as a panel of the
 * kernels, or fewer whole vectors. */
static inline int64_t td_conv_panel_width(const td_gemm_kernels *kernels, int64_t channels)
{
    return td_min64(td_divide_up(channels, kernels->lanes) * kernels->lanes, kernels->panel);
}

/* Workspace given out from its start, in whole cache lines. With base NULL it only measures. */
typedef struct td_conv_space {
    char *base;
    int64_t used;
} td_conv_space;

static inline void *td_conv_take(td_conv_space *space, int64_t bytes)
{
    void *taken = space->base ? space->base + space->used : NULL;
    space->used += (bytes + 63) / 64 * 64;
    return taken;
}

/*
 * One axis as a table. Forward, source[q*kernel + tap] is the pixel of x that pixel q of y meets at
 * that tap; backward it is the pixel of y that pixel q of x meets; -1 where there is none.
 * rank[tap] numbers the taps that meet anything at all, -1 for the others; `alive` counts them.
 * A tap meets the pixels q in [first[tap], end[tap]): forward all, backward one in every stride.
 */
typedef struct td_conv_taps {
    int64_t size; /* pixels q */
    int kernel;
    int alive;
    int32_t *source;
    int32_t *rank;
    int32_t *first, *end;
} td_conv_taps;

/* Takes the table's memory, and fills it unless the space only measures; `alive` is known either
 * way. */
td_conv_taps td_conv_taps_make(const td_conv_axis *axis, bool backward, td_conv_space *space);

/*
 * The pass that builds images: forward (source x, result y) and backward-data (source dy, result
 * dx). Both are, for every pixel of the result, a sum over taps of source pixel times weights.
 */
typedef struct td_conv_apply {
    const td_conv_problem *problem;
    bool backward;
    const void *source;
    const void *weights;
    const void *bias; /* forward only, or NULL */
    void *result;
    bool accumulate;
    const struct td_conv_mixed *mixed; /* with kernels of bf16; otherwise NULL */
} td_conv_apply;

/* The source is bf16, perhaps a copy with padded channels; the problem's strides are the copy's. */
typedef struct td_conv_mixed {
    int64_t depth; /* channels of a group of the source with their padding */
    int64_t low;   /* elements to the source's low parts, if it is split; otherwise 0 */
    td_dtype weights, result;
} td_conv_mixed;

/* The order of its tasks. */
td_turns td_conv_turns(const td_conv_problem *problem, const td_conv_taps *h, const td_conv_taps *w,
                       int64_t blocks, int64_t panels, int threads);

/* Takes its memory from `space`; computes nothing if that only measures. So do the passes below. */
void td_conv_apply_run(td_pool *pool, const td_conv_apply *apply, td_conv_space *space);

/* The pass that builds weights: dw = x^T dy for every tap, summed over pixels and images. */
typedef struct td_conv_reduce {
    const td_conv_problem *problem;
    const void *x;
    const void *dy;
    void *dw;
    bool accumulate;
} td_conv_reduce;

/* The end of that pass. dw = (accumulate ? dw : 0) + the pieces in order, unless partial is NULL.
 * Taps that meet nothing are undefined in the pieces; in dw they become 0 unless `accumulate`. */
typedef struct td_conv_combine {
    td_dtype dtype;
    const td_conv_taps *h, *w;
    int64_t tap_size; /* elements of dw at one tap */
    void *dw;
    const void *partial; /* [piece][as dw] */
    int64_t pieces;
    bool accumulate;
} td_conv_combine;

void td_conv_combine_run(td_pool *pool, const td_conv_combine *combine);

void td_conv_reduce_run(td_pool *pool, const td_conv_reduce *reduce, td_conv_space *space);

/* How many groups should share a vector, 0: none. */
int64_t td_conv_groups_sharing(const td_conv_problem *problem);
/* Which channel of the source each lane of the result meets then. `from`, `to`: channels of a group
 * of the source, of the result. */
td_gemm_lanes td_conv_groups_lanes(int64_t sharing, int64_t from, int64_t to);

/* Depthwise convolutions: one input and one output channel in each group. */
void td_conv_depthwise_apply(td_pool *pool, const td_conv_apply *apply, td_conv_space *space);
void td_conv_depthwise_reduce(td_pool *pool, const td_conv_reduce *reduce, td_conv_space *space);
