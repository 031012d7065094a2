/* A second copy of a model's values that follows them: for td_ema and examples/speedrun. The
 * copies of the parameters are flat, like an optimizer's state, so that they move along when the
 * parameters get another order in memory. Users do not include this. */
#pragma once

#include "nn/nn.h"
#include "tensor/kernels/kernel_types.h"

/* A buffer (running statistics) and its copy. */
typedef struct td_average_buffer {
    char *name;       /* its path in the model, the first if it has several; owned */
    td_tensor *value; /* the model's */
    td_tensor *copy;  /* owned; begins as the value is */
} td_average_buffer;

typedef struct td_average {
    td_params *params;
    td_tensor *flat;            /* of the parameters */
    td_average_buffer *buffers; /* each once */
    int buffer_count;
    td_optim_slice *slices; /* of an update: the parameters', and each buffer's */
} td_average;

/* false: memory is short; td_average_end is needed then, too. */
bool td_average_begin(td_average *average, td_module *model);
void td_average_end(td_average *average);

/* The slices of an update copy = decay copy + (1 - decay) value: a step of descent on
 * (copy - value)^2 / 2, whose gradient is copy - value, so that the device's SGD makes it in one
 * pass. Returns how many there are. */
int td_average_fill(const td_average *average, td_optim_slice *slices, double decay);

/* Makes an update by slices that fill(user, ...) writes (tensor/hooks.h: td_step_numbers). What is
 * no float is copied. back: the values then become their copies, and what is no float stays as it
 * is. */
void td_average_update(td_average *average, void (*fill)(void *user, void *slices), void *user,
                       bool back, const char *function);
