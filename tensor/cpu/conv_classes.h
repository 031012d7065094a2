/*
 * How a convolution is cut into products.
 *
 * A tap is a position (kh, kw) of the filter. A tap is valid for a pixel of the result if the
 * source pixel for this tap is inside the image.
 *
 * A plan is a list of row blocks. A row block is some rows of the result (a row is a pixel of an
 * image) and the taps that are valid for all of them. The distance in memory between the sources of
 * two taps is the same for all these rows. So a row block is one product of matrices: a table says
 * where its rows are, and its inner dimension is taps times channels (tensor/cpu/gemm_tiles.inc).
 *
 * The pixels of an axis are sorted into sets; the same taps are valid for all pixels of a set. A
 * set of rows times a set of columns is a class of pixels, and a class is cut into row blocks. So
 * nothing is ever multiplied by padding, whatever stride and dilation are. */
#pragma once

#include "tensor/cpu/conv_internal.h"

/* Pixels [first, first + count) of the order of an axis. The same `taps` taps are valid for all of
 * them; the first is `tap`. */
typedef struct td_conv_set {
    int64_t first, count;
    int tap, taps;
} td_conv_set;

/* An axis: its taps, and its pixels, set after set. */
typedef struct td_conv_sets {
    td_conv_taps taps;
    int32_t *order;
    td_conv_set *list;
    int64_t most; /* capacity of list */
    int count;
} td_conv_sets;

td_conv_sets td_conv_sets_make(const td_conv_axis *axis, bool backward, td_conv_space *space);

/* A set of rows of pixels times a set of columns, in all images. Its matrix has rows [0, rows); the
 * images of a pixel follow each other. */
typedef struct td_conv_class {
    const td_conv_set *h, *w;
    int64_t rows;
    int64_t each, done, at; /* for the cutting: rows of a block, rows cut, the next block's pixel */
} td_conv_class;

/* Rows [first, first + rows) of a class. */
typedef struct td_conv_block {
    const td_conv_class *of;
    int64_t first, rows;
} td_conv_block;

typedef struct td_conv_classes {
    td_conv_sets h, w;
    int64_t n; /* images */
    td_conv_class *list;
    int64_t count;
    td_conv_class **queue;     /* while they are cut */
    int64_t block_rows;        /* at most, about */
    int64_t unit;              /* a block's rows are a multiple of it, except in a class's last */
    td_conv_block *block_list; /* in the order of the pixels that they begin with */
    int64_t blocks, most;      /* most: capacity of block_list */
} td_conv_classes;

/* Takes the memory, and fills it unless the space only measures. */
void td_conv_classes_make(td_conv_classes *all, const td_conv_problem *problem, bool backward,
                          td_conv_space *space);
/* The first takes memory for the blocks, the second cuts the classes into blocks. */
void td_conv_classes_take(td_conv_classes *all, int64_t block_rows, int64_t unit,
                          td_conv_space *space);
void td_conv_classes_cut(td_conv_classes *all);

/* Where rows [first, first + count) of a class lie: a_row[i] is row i's source at the first tap,
 * and c_row[i] is row i itself; in bytes if the strides are. */
void td_conv_class_rows(const td_conv_classes *all, const td_conv_class *c, int64_t first,
                        int64_t count, const td_conv_strides *from, const td_conv_strides *to,
                        int64_t *a_row, int64_t *c_row);
