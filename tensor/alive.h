/* Which step runs on this thread, and which tensors are alive: those of that step and persistent
 * ones, as long as they have memory. For step.c. */
#ifndef TD_TENSOR_ALIVE_H
#define TD_TENSOR_ALIVE_H

#include "tensor/tensor.h"

/* Headers and tape nodes of a step are overwritten this many steps later. Until then a stale tensor
 * still has its name and its step's number, and can be reported. Three, because after three steps
 * nothing may grow any more. */
enum { TD_STEP_ROTATION = 3 };

/* A step begins on this thread; returns its number. It ends. */
uint64_t td_step_enter(void);
void td_step_leave(void);

/* As td_check_alive, but lets pass what a scope has released and backward still needs. */
void td_check_memory(const td_tensor *t, td_site at);

#endif
