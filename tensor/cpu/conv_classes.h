/*
 * The pixels of y in classes of those that meet the same taps of x, for products that find their
 * operands in tables (td_gemm_indexed): what each class meets is a matrix. f32, one group.
 */
#ifndef TD_TENSOR_CPU_CONV_CLASSES_H
#define TD_TENSOR_CPU_CONV_CLASSES_H

#include "tensor/cpu/conv_internal.h"

/* Pixels [first, end) of one dimension, which meet taps [tap, tap + taps). */
typedef struct td_conv_span {
    int64_t first, end;
    int tap, taps;
} td_conv_span;

typedef struct td_conv_class {
    td_conv_span h, w;
    int64_t pixels, block; /* of all pictures; number of the first block */
} td_conv_class;

typedef struct td_conv_classes {
    const td_conv_problem *problem;
    td_conv_class *list;
    int64_t count;
    int64_t block; /* pixels of a block, at most; the last of a class may have fewer */
    int64_t blocks;
} td_conv_classes;

/* Takes the list's memory, and fills it unless the space only measures. */
td_conv_classes td_conv_classes_make(const td_conv_problem *problem, int64_t block,
                                     td_conv_space *space);

/* The class that a block is of. */
const td_conv_class *td_conv_class_of(const td_conv_classes *classes, int64_t block);

/* In bytes: where the first tap of pixels [first, first + count) of the class is in x, and where
 * the pixels are in y. */
void td_conv_class_pixels(const td_conv_problem *problem, const td_conv_class *class, int64_t first,
                          int64_t count, int64_t *x_at, int64_t *y_at);

/* Cuts the blocks into pieces of about equal work, a run each: first_block[pieces + 1]. */
void td_conv_classes_cut(const td_conv_classes *classes, int64_t pieces, int64_t *first_block);

/* The width of a panel, whole vectors, so that all panels are about as wide. */
static inline int64_t td_conv_even_width(const td_gemm_kernels *kernels, int64_t channels)
{
    int64_t vectors = td_divide_up(channels, kernels->lanes);
    int64_t panels = td_divide_up(vectors * kernels->lanes, kernels->panel);
    return (panels > 0 ? td_divide_up(vectors, panels) : 1) * kernels->lanes;
}

#endif
