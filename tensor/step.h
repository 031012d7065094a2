/* Steps.
 *
 * Operations run between td_step_begin and td_step_end (elsewhere an operation is a fatal error);
 * their results are allocated in the calling thread's step memory, one arena per device, and are
 * gone at td_step_end. You do not free them. You may read a result (loss, logits) after
 * td_backward, until td_step_end. Tensors that a module makes inside its forward, except the one
 * that it returns, are released earlier: when that forward returns, or, if backward needs them,
 * when backward has used them. If you use a tensor after it is gone, the program stops, and the
 * message names the tensor. The check works for the three steps after the tensor's own; a pointer
 * kept longer may silently show a newer tensor.
 *
 * The arena grows during the first step. Later steps of the same shapes need no malloc, and each
 * tensor gets the same address again; a larger step makes the arena grow once more. In builds with
 * TD_DEBUG, new and released memory is filled with 0xff (NaN for every float dtype). */
#pragma once

#include "tensor/tensor.h"

TD_BEGIN_C

void td_step_begin_at(td_site at);
void td_step_end_at(td_site at);
#define td_step_begin() td_step_begin_at(TD_HERE)
#define td_step_end() td_step_end_at(TD_HERE)

/* TD_STEP { ... } is td_step_begin, the block, and td_step_end. `continue` ends the step and runs
 * the code after the block; it does not continue a loop around the block. Leaving the block by
 * break, return or goto is a mistake: the step stays open, and the next td_step_begin says so. */
#define TD_STEP                                                                                    \
    for (bool td_step_runs_ = (td_step_begin(), true); td_step_runs_;                              \
         td_step_runs_ = (td_step_end(), false))

TD_END_C
