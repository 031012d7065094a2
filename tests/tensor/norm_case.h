/* Cases of batch normalisation: their shapes, tensors, and values in double. */
#pragma once

#include "tests/tensor/reference.h"

typedef struct norm_case {
    td_shape shape; /* [N,C] or [N,C,H,W] */
    td_layout layout;
    double offset; /* added to all of x */
    bool relu, add, affine, training, accumulate, scattered;
} norm_case;

/* Tensors of a case and their values in double. */
typedef struct norm_data {
    int64_t n, channels, inner; /* elements, channels, pixels */
    td_tensor *x, *add, *weight, *bias, *mean, *var;
    double *xv, *addv, *weightv, *biasv, *meanv, *varv;
    double *batch_mean, *batch_var, *used_mean, *inv_std; /* [channels] */
    double *y;
} norm_data;

enum { NORM_CASES = 14 };
extern const norm_case norm_cases[NORM_CASES];

void norm_make(norm_data *d, const norm_case *c, td_dtype dtype);
void norm_free(norm_data *d);

/* The dtype of what is per channel: f32 beside 16 bits. */
td_dtype norm_per_channel(td_dtype dtype);

/* The channel of row-major element i. */
int64_t norm_channel(const norm_data *d, int64_t i);

/* Random numbers plus offset, in the case's shape and layout. */
td_tensor *norm_input(const norm_case *c, td_dtype dtype, uint64_t seed, double offset);

/* A tensor that holds 0.5 everywhere; in the case's layout unless it is per channel. */
td_tensor *norm_filled(const norm_case *c, td_shape shape, td_dtype dtype);
