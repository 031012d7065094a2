/*
 * Inside Winograd's convolutions: the plan of one, and its steps (conv_wino_steps.c). A step takes
 * some rows to points, multiplies them, or brings them back.
 */
#pragma once

#include "tensor/cpu/conv_wino.h"
#include "tensor/cpu/wino_kernels.h"

#include <stdatomic.h>

enum {
    TD_WINO_PAD = 16,        /* floats between the points, against cache lines that collide */
    TD_WINO_MAX_DEPTH = 128, /* products in a partial sum, and rows of B in the L1 cache */
};

/* Pictures of `channels` at each of h x w pixels. */
typedef struct td_wino_picture {
    char *data;
    int64_t h, w, channels;
    int64_t width, panels; /* the channels whose points lie together, and how many such panels */
    int64_t step;          /* floats from point to point of a panel */
} td_wino_picture;

/* Memory for each thread that works: it takes a free slot. */
typedef struct td_wino_slots {
    int count;
    float *memory;
    int64_t size; /* of a slot */
    atomic_flag *taken;
} td_wino_slots;

typedef struct td_wino_plan {
    const td_conv2d_call *call;
    const td_conv2d_desc *desc;
    const float *bias; /* forward only, or NULL */
    const td_gemm_kernels *gemm;
    const td_wino_kernels *wino;
    td_wino_picture in, out; /* of 6x6 tiles and of 4x4 tiles */
    int64_t pad;             /* of `in` */
    int64_t tiles_w, rows;   /* a row: a tile of one picture */
    int64_t panels;          /* of `out`, as wide as the micro-kernels' */

    /* Forward and backward-data. */
    float *weights; /* [point][panel][channel of in][panel width] */
    int64_t weights_step;

    bool shared; /* all threads work on one round; otherwise each has rounds of its own */
    int64_t round_rows, rounds;
    float *points;       /* of the shared round */
    float *sums;         /* backward-weights of several rounds: [block of dw][point] */
    td_wino_slots slots; /* of points of a round, or of sums of a block of dw */
} td_wino_plan;

static inline int64_t td_wino_round_up(int64_t x, int64_t unit)
{
    return td_divide_up(x, unit) * unit;
}

static inline float *td_wino_floats(td_conv_space *space, int64_t count)
{
    return td_conv_take(space, count * (int64_t)sizeof(float));
}

/* Slots for as many threads as there can be, `size` floats each. */
td_wino_slots td_wino_make_slots(td_conv_space *space, int64_t tasks, int64_t size);
float *td_wino_take_slot(const td_wino_slots *slots);
void td_wino_give_slot(const td_wino_slots *slots, const float *slot);

/* Rows and channels that a transform is called for, and where their points lie. */
typedef struct td_wino_part {
    int64_t first, rows;
    int64_t channel, channels;
    float *points; /* of the first row and channel */
} td_wino_part;

/* Calls a transform tile by tile: of 6x6 tiles of `in` if `wide`, of 4x4 tiles of `out` otherwise.
 * `tile` holds what concerns the result: bias, accumulate. */
void td_wino_transform(const td_wino_plan *plan, void (*fn)(const td_wino_tile *), bool wide,
                       const td_wino_part *part, td_wino_tile tile);

/* One panel of one point: c = a x b for `rows` rows of all channels of `in`, b a packed panel of n
 * columns. */
void td_wino_multiply(const td_wino_plan *plan, const float *a, const float *b, float *c,
                      int64_t rows, int n);

/* The weights' points. */
void td_wino_weights(td_pool *pool, td_wino_plan *plan);

/* Whether all threads work on one round. */
bool td_wino_shares_rounds(const td_conv2d_desc *desc, td_conv2d_pass pass);
