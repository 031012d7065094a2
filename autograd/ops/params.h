/* The numbers that operations pass to td_record. Their backward and observers of operations
 * (autograd/tape.h) read them. Operations that are not here record
 *   one int, the dimension: argmax, cumsum, flip, max, max_dim, prod_dim, scatter_add;
 *   an int for each dimension, the order: permute, transpose;
 *   td_conv2d_params or td_pool2d_params (tensor/kernels/kernels.h): convolutions and pooling;
 *   or nothing. */
#pragma once

#include "tensor/kernels/kernels.h"

typedef struct td_unary_params {
    td_unary_op op;
    double p, q;
} td_unary_params;

typedef struct td_reduce_params {
    td_shape kept; /* x's shape with sizes of 1 */
    double scale;
} td_reduce_params;

typedef struct td_softmax_params {
    int dim;
    bool log;
} td_softmax_params;

typedef struct td_cat_params {
    int dim, count;
} td_cat_params;

typedef struct td_slice_params {
    int dim;
    int64_t start, count, step;
} td_slice_params;

typedef struct td_gather_params {
    int dim;
    td_shape shape; /* of the indices, as they are used */
} td_gather_params;

typedef struct td_argsort_params {
    int dim;
    bool descending;
} td_argsort_params;

typedef struct td_pad_params {
    int64_t before[TD_MAX_DIMS];
    double value;
} td_pad_params;

typedef struct td_triangle_params {
    int64_t diagonal;
    bool upper;
} td_triangle_params;

typedef struct td_layer_norm_params {
    double eps;
    int64_t groups; /* of channels (group_norm); 0: over rows */
} td_layer_norm_params;

typedef struct td_batch_norm_params {
    bool training, pools;
    td_norm_activation activation;
    double eps;
    td_pool2d_params max_pool;
} td_batch_norm_params;
