/* The network of airbench94 (Jordan 2024) for images [N,3,32,32]: a whitening convolution, three
 * blocks, and scaled logits [N,classes]. docs/speedrun.md trains the network. */
#ifndef TD_NN_MODELS_ZOO_AIRBENCH_H
#define TD_NN_MODELS_ZOO_AIRBENCH_H

#include "nn/nn.h"

TD_BEGIN_C

/* td_airbench(classes, ...). The first weight is frozen: fill it by td_init_whitening_. You free
 * the module by td_module_free. NULL with td_last_error() when memory is short. */
typedef struct td_airbench_options {
    int begin_; /* for the library */
    int64_t classes;
    int64_t widths[3]; /* of the blocks; 0: 64, 256, 256 */
    bool unit_head;    /* for Muon: the last layer begins with standard deviation 1, and the logits
                          are divided by the layer's number of inputs instead of by 9 */
} td_airbench_options;
td_module *td_airbench_at(td_airbench_options options, td_site at);
/* The weight of the whitening convolution, or its bias. The module owns the tensor. */
td_tensor *td_airbench_whiten(td_module *airbench, bool bias);

TD_END_C

/* ---- what you call ---- */

#define td_airbench(...) td_airbench_at((td_airbench_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)

#endif
