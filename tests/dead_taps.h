/* For tests of filters of which some taps meet only padding: optimizers and batches for them. */
#ifndef TD_TESTS_DEAD_TAPS_H
#define TD_TESTS_DEAD_TAPS_H

#include "tandem.h"

#include <stdlib.h>

typedef enum dead_taps_optim {
    DEAD_TAPS_SGD,
    DEAD_TAPS_MOMENTUM,
    DEAD_TAPS_ADAM,
    DEAD_TAPS_ADAMW,
    DEAD_TAPS_OPTIMS,
} dead_taps_optim;

/* One that lets weights decay. */
static inline td_optim *dead_taps_open(td_params *params, dead_taps_optim which)
{
    switch (which) {
    case DEAD_TAPS_SGD:
        return td_sgd(params, &(td_sgd_options){ .lr = 0.05, .weight_decay = 0.01 });
    case DEAD_TAPS_MOMENTUM:
        return td_sgd(params,
                      &(td_sgd_options){
                          .lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true });
    case DEAD_TAPS_ADAM:
        return td_adam(params, &(td_adam_options){ .lr = 0.01, .weight_decay = 0.01 });
    default:
        return td_adamw(params, &(td_adam_options){ .lr = 0.01, .weight_decay = 0.1 });
    }
}

/* Forward and backward of batch `number`, images of size x size. */
static inline void dead_taps_backward(td_module *net, int64_t images, int64_t channels, int size,
                                      int number)
{
    td_step_begin();
    td_tensor *x = td_zeros(TD_SHAPE(images, channels, size, size), TD_F32, TD_CPU);
    int64_t count = td_numel(x);
    double *values = malloc((size_t)count * sizeof *values);
    for (int64_t i = 0; values != NULL && i < count; i++) {
        values[i] = (double)((number * 29 + i * 13) % 41 - 20) / 16.0;
    }
    td_write(x, values, TD_F64);
    free(values);
    td_tensor *y = td_forward(net, x);
    td_backward(td_mean(td_mul(y, y)));
    td_step_end();
    td_free(x);
}

#endif
