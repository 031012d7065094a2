/* What kernels are told beside tensors: plain data, which a device's own compiler can read, too. */
#ifndef TD_TENSOR_KERNEL_TYPES_H
#define TD_TENSOR_KERNEL_TYPES_H

#include <stdbool.h>
#include <stdint.h>

/* What tensor/elementwise.def has: TD_UNARY_relu, TD_BINARY_add, TD_COMPARE_lt. */
typedef enum td_unary_op {
#define TD_UNARY(name, reads, value, slope) TD_UNARY_##name,
#include "tensor/elementwise.def"
    TD_UNARY_COUNT
} td_unary_op;

typedef enum td_binary_op {
#define TD_BINARY(name, value, grad_a, reads_a, grad_b, reads_b) TD_BINARY_##name,
#include "tensor/elementwise.def"
    TD_BINARY_COUNT
} td_binary_op;

typedef enum td_update_op {
#define TD_UPDATE(name, states, ...) TD_UPDATE_##name,
#include "tensor/updates.def"
    TD_UPDATE_COUNT
} td_update_op;
enum { TD_UPDATE_STATES = 3 }; /* at most */

typedef enum td_compare_op {
#define TD_COMPARE(name, whether) TD_COMPARE_##name,
#include "tensor/elementwise.def"
    TD_COMPARE_COUNT
} td_compare_op;

/* Whether there is an operation of integers. */
static inline bool td_binary_of_integers(td_binary_op op)
{
    switch (op) {
#define TD_INTEGER(name, value) case TD_BINARY_##name:
#include "tensor/elementwise.def"
        return true;
    default:
        return false;
    }
}

/* What batch normalisation does to its result in the same pass. */
typedef enum td_norm_activation {
    TD_NORM_LINEAR, /* nothing */
    TD_NORM_RELU,
    TD_NORM_GELU /* the exact one, of the result as its dtype holds it */
} td_norm_activation;

typedef enum td_reduce_op { TD_REDUCE_SUM, TD_REDUCE_MEAN, TD_REDUCE_MAX } td_reduce_op;

typedef struct td_pool2d_params {
    int kernel[2], stride[2], pad[2];
    bool ceil_mode;         /* for the caller, who knows y's size */
    bool count_include_pad; /* average pooling: divide by the whole window (PyTorch's default) */
} td_pool2d_params;

/* Cross-entropy. */
typedef struct td_entropy_params {
    double smoothing;
    int64_t ignore; /* rows with this label do not count; TD_IGNORES_NONE */
    bool sum;       /* a scalar loss is the sum of the rows' instead of their mean */
} td_entropy_params;
#define TD_IGNORES_NONE INT64_MIN

/* One slice of an optimizer's flat memory (nn/optim). */
typedef struct td_optim_slice {
    int64_t begin, count;       /* elements of the state */
    int64_t to_values;          /* elements from begin to the place of the values */
    int64_t to_grads;           /* the same of the gradients */
    bool skip;                  /* no gradient: leave parameter and state alone */
    bool first;                 /* SGD: momentum starts as the gradient */
    double lr, weight_decay;    /* all constants are rounded to the element type once, as PyTorch */
    double momentum, dampening; /* SGD */
    bool nesterov;
    double beta1, beta2, eps; /* updates; momentum too */
    int64_t step;             /* t: the number of this step, from 1 (0: it does not matter) */
    double bias1, bias2;      /* 1 - beta1^t, 1 - beta2^t */
    bool decoupled;           /* p *= 1 - lr*weight_decay first, as in AdamW; any optimizer */
    uint64_t key; /* of packed state: what it is rounded by (td_philox_mixed_key, counter (step, */
    int64_t element; /* e / 4), lane e % 4), e counting from `element`, a multiple of 16 */

    /* NULL, or a loss scaler's numbers, in the device's memory: it finds out itself whether the
     * step is skipped, and how many of the steps that `step` counts were skipped: those unseen,
     * but for the first `unseen` (tensor/scaling.h). */
    const double *scale;
    int64_t unseen;
    double average; /* an average's decay, which grows to this with `step`; 0: lr is what it is */
} td_optim_slice;

/* The numbers of a loss scaler. */
enum {
    TD_SCALE_FACTOR,  /* of the loss */
    TD_SCALE_GOOD,    /* steps since it has changed */
    TD_SCALE_SKIPS,   /* steps, ever */
    TD_SCALE_OUTCOME, /* of the latest step, a td_scale_outcome */
    TD_SCALE_UNSEEN,  /* steps that captured steps have skipped, which the host counts, ever */
    TD_SCALE_NUMBERS
};
typedef enum td_scale_outcome {
    TD_SCALE_TAKEN,
    TD_SCALE_SKIPPED, /* a gradient was not finite */
    TD_SCALE_HOPELESS /* nor will one be: the factor was at its least already */
} td_scale_outcome;

/* How the factor changes. */
typedef struct td_scale_rule {
    double growth, backoff, least, most;
    int64_t patience;
    bool unseen; /* the host does not look at the outcome */
} td_scale_rule;

/* A picture and how it is cut: y[h][w] = picture[h + down][w + right], outside of the picture 0 (as
 * a byte) or, with reflect, what lies as far inside; then mirrored if flip. */
typedef struct td_picture_cut {
    int64_t picture;
    int32_t down, right; /* reflect: by less than the picture's size */
    int32_t label;
    bool flip, reflect;
} td_picture_cut;

#endif
