/* Lookahead (Zhang et al. 2019): slow weights follow the trained (fast) weights, and every few
 * steps the fast weights are set to the slow ones. */
#ifndef TD_NN_EXTRA_LOOKAHEAD_H
#define TD_NN_EXTRA_LOOKAHEAD_H

#include "nn/nn.h"
#include "tensor/extern_c.h"

TD_BEGIN_C

typedef struct td_lookahead td_lookahead;

/* Makes slow weights that begin as the model's parameters and float buffers (running statistics).
 * Free them before the model. NULL with td_last_error() when memory is short. */
td_lookahead *td_lookahead_new(td_module *model);
void td_lookahead_free(td_lookahead *lookahead); /* NULL is fine */

/* Sets the decay of later updates, 0 at first. In a captured step (tensor/graph/captured.h) the
 * decay that is set when the step runs counts. */
void td_lookahead_set_decay(td_lookahead *lookahead, double decay);
/* Computes slow = decay slow + (1 - decay) fast, then fast = slow. Call td_lookahead_update every
 * few steps, after td_optim_step; and once at the end of a run with decay 1, which gives the model
 * the slow weights. Captured steps with an update are a kind of their own (td_captured_run_kind).
 */
void td_lookahead_update(td_lookahead *lookahead);

TD_END_C

#endif
