/* The network of airbench94 (Jordan 2024) for images of 32x32: a whitening convolution, three
 * blocks, scaled logits. docs/speedrun.md trains it. */
#ifndef TD_NN_AIRBENCH_H
#define TD_NN_AIRBENCH_H

#include "nn/nn.h"

TD_BEGIN_C

/* td_airbench(classes, ...). Its first weight is frozen; give it td_init_whitening_. */
typedef struct td_airbench_options {
    int begin_;
    int64_t classes;
    int64_t widths[3]; /* of the blocks; 0: 64, 256, 256 */
    bool unit_head;    /* as with Muon: the last layer starts with standard deviation 1, and logits
                          are divided by the number of its inputs instead of by 9 */
} td_airbench_options;
td_module *td_airbench_at(td_airbench_options options, td_site at);
td_tensor *td_airbench_whiten(td_module *airbench, bool bias); /* the first weight, or its bias */

TD_END_C

#define td_airbench(...) td_airbench_at((td_airbench_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)

#endif
