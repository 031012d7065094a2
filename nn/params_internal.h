/* The list of parameters, for the files that change it: params*.c and nn/shared/. */
#pragma once

#include "nn/params.h"

enum {
    TD_PARAMS_LINE = 64
}; /* bytes: a cache line, and the widest vector register; every
      parameter begins on one */

typedef struct td_params_extra {
    td_tensor *state;
    bool flat; /* of the parameters' form, so it is rearranged along with them */
} td_params_extra;

struct td_params {
    td_param *items; /* in the order of registration */
    int count;
    int *order;       /* order[k]: the index of the k-th in memory */
    int reorders;     /* how often the order has changed */
    td_tensor **left; /* frozen when the list was made, and not in it */
    int left_count;
    bool trained_only; /* td_params_trained */
    td_tensor **grads; /* headers over flat_grad, one for each leaf */
    td_tensor *flat, *flat_grad;
    td_params_extra *extra; /* optimizer state */
    int extra_count;
    td_params_peers peers;
    td_params_training training;
    const td_staging *staging;        /* NULL: there is one stage */
    const struct td_slicing *slicing; /* nn/shared/slices.h; NULL: there are no slices */
    bool deferred;                    /* there is no memory yet: td_params_spread makes it */
    bool freed;                       /* with its model */
};

/* Where each parameter begins, in the given order, and how long the whole becomes. */
int64_t td_params_place(const td_params *p, td_dtype dtype, const int *order, int64_t *begin);
