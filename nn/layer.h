/* Layers of one operation: what their files share. Users do not include this. */
#pragma once

#include "nn/internal.h"

/* The type of modules that compute `result` from x, the call's site `at` and their state s. The
 * rest are more fields of the type. */
#define TD_LAYER_BY(name_, state_type, type_name, result, ...)                                     \
    static td_tensor *name_##_forward(td_module *self, td_tensor *x, td_site at)                   \
    {                                                                                              \
        const state_type *s = self->state;                                                         \
        (void)s;                                                                                   \
        return result;                                                                             \
    }                                                                                              \
    static const td_module_type name_##_type = { .name = type_name,                                \
                                                 .forward = name_##_forward,                       \
                                                 __VA_ARGS__ }

/* Of modules whose state is an operation's options, with the module's weights in them: a forward
 * runs td_OPERATION_at with the options and its input as the field `input`. */
#define TD_LAYER(operation, options_type, input, type_name, ...)                                   \
    static td_tensor *operation##_with(options_type options, td_tensor *x, td_site at)             \
    {                                                                                              \
        options.input = x;                                                                         \
        return td_##operation##_at(options, at);                                                   \
    }                                                                                              \
    TD_LAYER_BY(operation, options_type, type_name, operation##_with(*s, x, at), __VA_ARGS__)

/* Adds the parameters "weight", drawn as PyTorch draws a Linear's or a convolution's, and, unless
 * `bias` is NULL, "bias" [outputs]. The pointers to them are for the module's state. */
void td_layer_weights(td_module *m, td_tensor **weight, td_tensor **bias, td_shape shape,
                      int64_t outputs);
/* The same for a normalisation, whose weight (unless NULL) begins as 1 and whose bias as 0. */
void td_layer_scales(td_module *m, td_tensor **weight, td_tensor **bias, td_shape shape);
