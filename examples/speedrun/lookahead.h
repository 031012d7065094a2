/* Lookahead (Zhang et al. 2019): slow weights follow the trained (fast) weights, and every few
 * steps the fast weights are set to the slow ones. */
#pragma once

#include "nn/nn.h"

typedef struct lookahead lookahead;

/* Makes slow weights that begin as the model's parameters and float buffers (running statistics).
 * Free them before the model. NULL with td_last_error() when memory is short. */
lookahead *lookahead_new(td_module *model);
void lookahead_free(lookahead *lookahead); /* NULL is fine */

/* Sets the decay of later updates, 0 at first. In a captured step (tensor/graph/captured.h) the
 * decay that is set when the step runs counts. */
void lookahead_set_decay(lookahead *lookahead, double decay);
/* Computes slow = decay slow + (1 - decay) fast, then fast = slow. Call lookahead_update every
 * few steps, after td_optim_step; and once at the end of a run with decay 1, which gives the model
 * the slow weights. Captured steps with an update are a kind of their own (td_captured_run_kind).
 */
void lookahead_update(lookahead *lookahead);
