/* The plan of forward and backward-data: made by conv_apply_plan.c, run by conv_apply.c. */
#pragma once

#include "tensor/cpu/conv_classes.h"

enum {
    TD_APPLY_ROWS = 132,  /* rows of a block at most: MANY_ROWS, rounded up to tiles */
    TD_APPLY_DEPTH = 256, /* products in a partial sum: short sums have small rounding errors, and
                             their weights stay in a cache */
};

/* A group of channels; groups that share a vector count as one. */
typedef struct td_apply_group {
    int64_t count;                      /* of groups */
    int64_t depth;                      /* products in a tap */
    int64_t source_channels;            /* without padding, which from_channels count */
    int64_t from_channels, to_channels; /* of a group */
    int64_t panels, all_panels;         /* of a group, of all groups */
} td_apply_group;

typedef struct td_apply_plan {
    const td_conv_apply *apply;
    const td_conv_problem *problem;
    td_conv_classes classes;
    td_conv_strides from, to;     /* bytes */
    int64_t weight_size, to_size; /* bytes of an element */
    bool whole;                   /* sums are not cut, as each result is rounded once */
    bool by_taps;                 /* tasks are strips of pixels, tap by tap */
    int64_t strip_pixels;         /* of a strip */
    int64_t blocks;               /* of the result's rows: strips, or those of classes */
    td_apply_group group;
    int64_t width;       /* columns of a packed panel */
    int64_t span;        /* panels in a task */
    int64_t beside;      /* panels computed for one partial sum before the next */
    char *packed;        /* [panel][tap that meets anything][depth][width], or NULL */
    int64_t packed_low;  /* elements to the low parts of split weights, or 0 */
    td_gemm_lanes lanes; /* where groups share a vector */
    bool past;           /* results are written past the caches */
    td_turns turns;
} td_apply_plan;

td_apply_plan td_apply_plan_make(const td_conv_apply *apply, td_conv_space *space);

/* ---- weights (conv_apply_weights.c) ---- */

/* Where a panel is: its first channels of source and result, and its first weight of a tap. */
typedef struct td_apply_place {
    int64_t panel; /* of all */
    int64_t from, to, weight;
    int64_t n; /* columns */
} td_apply_place;

td_apply_place td_apply_place_of(const td_apply_plan *plan, int64_t panel);

/* Whether the weights cannot stay as they are: rows of B must be dense, and as long as a panel. */
bool td_apply_needs_packing(const td_apply_plan *plan);

/* The weights of a tap as they are; and channels [first, first + count) of the source, packed
 * ahead.
 */
const char *td_apply_weights_at(const td_apply_plan *plan, const td_apply_place *at, int kh,
                                int kw);
char *td_apply_packed_at(const td_apply_plan *plan, const td_apply_place *at, int kh, int kw,
                         int64_t first);

/* Packs rows [first, first + count) of a tap's weights, which begin at `from`, for one panel. */
void td_apply_pack(const td_apply_plan *plan, int64_t n, const char *from, int64_t first,
                   int64_t count, char *to);
/* Packs all weights. */
void td_apply_pack_ahead(td_pool *pool, const td_apply_plan *plan);
