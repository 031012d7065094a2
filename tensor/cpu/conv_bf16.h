/*
 * Convolutions in bf16, for processors that multiply it: the same loops over the pixels that exist,
 * over the kernels of bf16_kernels.h. Pictures are bf16, or f32 that is split in two; weights and
 * their gradients are f32 (master weights, rounded while they are packed) or, as operands, bf16.
 */
#pragma once

#include "tensor/cpu/bf16_kernels.h"
#include "tensor/cpu/conv_internal.h"

/* A pass of conv.h where the description says bf16. */
void td_conv_bf16_run(td_pool *pool, const td_conv2d_call *call, td_conv_space *space);

/*
 * Pictures as the kernels read them: bf16, and the channels of a group in whole steps. Either the
 * caller's memory as it is, or a copy in the workspace that is padded, split in two, or made into
 * rows: in convolutions of few input channels the KW taps of a row become one pixel's channels,
 * zeros where the picture ends.
 */
typedef struct td_bf16_pictures {
    const void *from; /* the caller's */
    td_dtype dtype;
    const td_conv2d_desc *rows; /* of the convolution, if rows are made; otherwise NULL */
    int64_t groups, channels;   /* of a group, real */
    int64_t height, width, images;
    int depth;          /* of a step */
    int64_t steps;      /* of a group */
    td_conv_strides at; /* in `data` */
    td_bf16 *copy;      /* NULL: data is the caller's */
    const td_bf16 *data;
    int64_t low; /* to the low parts; 0: none */
} td_bf16_pictures;

/* Pictures of `groups` times `channels` channels. Takes the copy's memory if there must be one. */
td_bf16_pictures td_bf16_pictures_plan(const void *from, td_dtype dtype, int64_t groups,
                                       int64_t channels, int64_t height, int64_t width,
                                       int64_t images, td_conv_space *space);
/* x as rows. */
td_bf16_pictures td_bf16_rows_plan(const void *x, const td_conv2d_desc *desc, td_conv_space *space);
/* Makes the copy, if any. */
void td_bf16_pictures_run(td_pool *pool, const td_bf16_pictures *pictures);

/* Whether x is made into rows. */
bool td_bf16_uses_rows(const td_conv2d_desc *desc);

/* The convolution, over rows where they are used. */
td_conv_problem td_bf16_problem(const td_conv2d_desc *desc, bool rows);

/* Backward-weights (conv_bf16_reduce.c). */
void td_conv_bf16_reduce_run(td_pool *pool, const td_conv2d_call *call, td_conv_space *space);
