/* The arguments of kernels that are not tensors: plain data, which nvcc can compile, too. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { TD_FEW_ROWS = 8 }; /* of a product that reads a large matrix once */

/* The operations of tensor/kernels/elementwise.def: TD_UNARY_relu, TD_BINARY_add, TD_COMPARE_lt;
 * and of tensor/kernels/updates.def: TD_UPDATE_ADAM. */
typedef enum td_unary_op {
#define TD_UNARY(name, reads, value, slope) TD_UNARY_##name,
#include "tensor/kernels/elementwise.def"
    TD_UNARY_COUNT
} td_unary_op;

typedef enum td_binary_op {
#define TD_BINARY(name, value, grad_a, reads_a, grad_b, reads_b) TD_BINARY_##name,
#include "tensor/kernels/elementwise.def"
    TD_BINARY_COUNT
} td_binary_op;

typedef enum td_update_op {
#define TD_UPDATE(name, states, ...) TD_UPDATE_##name,
#include "tensor/kernels/updates.def"
    TD_UPDATE_COUNT
} td_update_op;
enum { TD_UPDATE_STATES = 3 }; /* at most */

typedef enum td_compare_op {
#define TD_COMPARE(name, whether) TD_COMPARE_##name,
#include "tensor/kernels/elementwise.def"
    TD_COMPARE_COUNT
} td_compare_op;

/* Whether the operation takes integers, too. */
static inline bool td_binary_of_integers(td_binary_op op)
{
    switch (op) {
#define TD_INTEGER(name, value) case TD_BINARY_##name:
#include "tensor/kernels/elementwise.def"
        return true;
    default:
        return false;
    }
}

/* The function that batch normalisation applies to its result in the same pass. */
typedef enum td_norm_activation {
    TD_NORM_LINEAR, /* none */
    TD_NORM_RELU,
    TD_NORM_GELU /* the exact gelu (by erf), of the result rounded to its dtype */
} td_norm_activation;

typedef enum td_reduce_op { TD_REDUCE_SUM, TD_REDUCE_MEAN, TD_REDUCE_MAX } td_reduce_op;

typedef struct td_pool2d_params {
    int kernel[2], stride[2], pad[2];
    bool ceil_mode;         /* only the caller reads it, to find y's size */
    bool count_include_pad; /* average pooling: divide by the whole window (PyTorch's default) */
} td_pool2d_params;

/* Which elements of a larger tensor a tensor has: element i is number first + i / run * pitch + i %
 * run there. All are multiples of 4. run 0: the tensor is whole. */
typedef struct td_numbering {
    int64_t first, run, pitch;
} td_numbering;

/* Cross-entropy. */
typedef struct td_entropy_params {
    double smoothing;
    int64_t ignore; /* rows with this label do not count; TD_IGNORES_NONE: all rows count */
    bool sum;       /* a scalar loss is the sum of the rows' instead of their mean */
} td_entropy_params;
#define TD_IGNORES_NONE INT64_MIN

/* The widest head for which GPUs have a kernel. */
enum { TD_GPU_ATTENTION_WIDTH = 256 };

/* Rotary positions: pair j of the token at position p turns by p scale base^(-2 j / h). */
typedef struct td_rope_params {
    int64_t past; /* position of the first token */
    double base, scale;
    bool interleaved; /* pair j: elements 2 j and 2 j + 1, otherwise j and j + h / 2 */
    bool backwards;   /* turns back: the gradient */
} td_rope_params;

/* One slice of an optimizer's flat memory (nn/optim). */
typedef struct td_optim_slice {
    int64_t begin, count;       /* elements of the state */
    int64_t to_values;          /* element i of the state belongs to value i + to_values ... */
    int64_t to_grads;           /* ... and to gradient i + to_grads */
    bool skip;                  /* no gradient: parameter and state stay as they are */
    bool first;                 /* SGD: momentum starts as the gradient */
    double lr, weight_decay;    /* each constant is rounded to the element type once, as PyTorch
                                   does */
    double momentum, dampening; /* SGD */
    bool nesterov;
    double beta1, beta2, eps; /* for updates.def, which also reads momentum */
    int64_t step;             /* t: the number of this step, from 1; 0: nothing depends on it */
    double bias1, bias2;      /* 1 - beta1^t, 1 - beta2^t */
    bool decoupled;           /* p *= 1 - lr*weight_decay first, as in AdamW; any optimizer */

    /* Packed state (tensor/kernels/packed.h) is rounded stochastically: element e, counted from
     * `element`, a multiple of 16, draws Philox's word e % 4 of the counter (step, e / 4). key:
     * td_philox_mixed_key. */
    struct {
        uint64_t key;
        int64_t element;
    } rounding;

    /* scale: NULL, or the numbers of a loss scaler in the device's memory. The device then decides
     * whether this step is skipped. It also corrects `step`, which counts steps that the device
     * skipped and the host has not seen: scale[TD_SCALE_UNSEEN] - unseen of them
     * (tensor/kernels/scaling.h). average: an average's decay, which grows to this value with
     * `step`, and from which the device computes lr; 0: lr is given. */
    struct {
        const double *scale;
        int64_t unseen;
        double average;
    } device;
} td_optim_slice;

/* The numbers of a loss scaler. */
enum {
    TD_SCALE_FACTOR,  /* the loss is multiplied by it */
    TD_SCALE_GOOD,    /* number of steps since the factor changed */
    TD_SCALE_SKIPS,   /* number of all skipped steps */
    TD_SCALE_OUTCOME, /* of the latest step: a td_scale_outcome */
    TD_SCALE_UNSEEN,  /* number of skipped steps that the host has counted as taken, because they
                         were captured steps */
    TD_SCALE_NUMBERS
};
typedef enum td_scale_outcome {
    TD_SCALE_TAKEN,
    TD_SCALE_SKIPPED, /* a gradient was not finite */
    TD_SCALE_HOPELESS /* skipped although the factor was at its smallest already */
} td_scale_outcome;

/* How the factor changes. */
typedef struct td_scale_rule {
    double growth, backoff, least, most;
    int64_t patience;
    bool unseen; /* the host does not read the outcome: a captured step */
} td_scale_rule;

/* How an image is cropped: y[h][w] = image[h + down][w + right]. Outside of the image the byte is
 * 0, or, with reflect, that of the pixel as far inside from the edge. flip then mirrors y. */
typedef struct td_picture_cut {
    int64_t picture;
    int32_t down, right; /* with reflect: less than the image's height and width */
    int32_t label;
    bool flip, reflect;
} td_picture_cut;
