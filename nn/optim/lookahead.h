/* Lookahead (Zhang et al. 2019): slow weights that follow the ones being trained, and to which
 * those are set back. */
#ifndef TD_NN_OPTIM_LOOKAHEAD_H
#define TD_NN_OPTIM_LOOKAHEAD_H

#include "nn/nn.h"
#include "tensor/extern_c.h"

TD_BEGIN_C

typedef struct td_lookahead td_lookahead;

/* Begins at the model's parameters and float buffers (running statistics) as they are. NULL with
 * td_last_error() when memory is short. */
td_lookahead *td_lookahead_new(td_module *model);
void td_lookahead_free(td_lookahead *lookahead); /* before the model; NULL is fine */

/* slow = decay slow + (1 - decay) fast;  fast = slow. Every few steps; and at the end of a run with
 * decay 1, which leaves the model with the slow weights as they were. In a captured step
 * (tensor/graph/captured.h) the decay is that which is set when the step is run; captured steps
 * that update are another kind than those that do not. */
void td_lookahead_set_decay(td_lookahead *lookahead, double decay); /* 0 at first */
void td_lookahead_update(td_lookahead *lookahead);

TD_END_C

#endif
