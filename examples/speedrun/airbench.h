/* The network of airbench94 (Jordan 2024) for images [N,3,32,32]: a whitening convolution, three
 * blocks, and scaled logits [N,classes]. docs/speedrun.md trains the network. */
#pragma once

#include "nn/nn.h"

/* airbench_new(classes, ...). The first weight is frozen: fill it by whitening_init. You free
 * the module by td_module_free. NULL with td_last_error() when memory is short. */
typedef struct airbench_options {
    int begin_; /* for the library */
    int64_t classes;
    int64_t widths[3]; /* of the blocks; 0: 64, 256, 256 */
    bool unit_head;    /* for Muon: the last layer begins with standard deviation 1, and the logits
                          are divided by the layer's number of inputs instead of by 9 */
} airbench_options;
td_module *airbench_new_at(airbench_options options, td_site at);
/* nn.init.dirac_ for the first `filters` filters of weight [O,I,KH,KW] (at most I of them): filter
 * i passes input channel i on. The other filters keep their values. */
void airbench_dirac(td_tensor *weight, int64_t filters);
/* The weight of the whitening convolution, or its bias. The module owns the tensor. */
td_tensor *airbench_whiten(td_module *airbench, bool bias);

/* ---- what you call ---- */

#define airbench_new(...) airbench_new_at((airbench_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)
