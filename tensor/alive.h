/* Which step runs on this thread, and which tensors are alive, that is, can be read now: persistent
 * tensors and those of the running step, as long as they have memory. For step.c. */
#pragma once

#include "tensor/tensor.h"

/* Headers and tape nodes of a step are overwritten this many steps later. Until then a message can
 * tell a stale tensor's name and step. (Each of the three sets grows in its own first step, so from
 * the fourth step on nothing grows.) */
enum { TD_STEP_ROTATION = 3 };

uint64_t td_step_enter(void); /* a step begins on this thread; returns its number */
void td_step_leave(void);     /* it ends */

/* Like td_check_alive, but accepts tensors that a scope has released while backward still needs
 * them. */
void td_check_memory(const td_tensor *t, td_site at);
