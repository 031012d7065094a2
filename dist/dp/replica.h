/* A copy of a model on another device, with its own thread, for DataParallel. The thread has its
 * own step and tape, which live as long as the calling thread's step.
 *
 * One command at a time: start a forward or a backward, then wait for it. */
#pragma once

#include "nn/nn.h"
#include "nn/module.h"

typedef struct td_replica td_replica;

/* Replica `number` (from 1) of a model. NULL with td_last_error(). */
td_replica *td_replica_new(const td_module *model, td_device device, int number);
/* Ends the thread and the copy. NULL is fine. */
void td_replica_free(td_replica *r);

/* Copies parameters, buffers and modes from the model (state: its td_module_state). Replicas on
 * CPUs share the memory of a CPU model's parameters instead; gradients and buffers are their own.
 * While a forward of the running step waits for its backward, only what has changed is copied: the
 * replica's tape may have saved the rest. */
void td_replica_load(td_replica *r, td_module *model, const td_state_list *state);

/* Starts the forward of a batch. The batch must not change until td_replica_wait. */
void td_replica_forward(td_replica *r, const td_tensor *x);
/* After td_replica_wait: the output of the last forward, and (*input) the copy of x if x needs
 * gradients, otherwise NULL. They belong to the thread's step: read their memory only. */
td_tensor *td_replica_output(const td_replica *r, td_tensor **input);

/* Starts the backward of an output from its gradient, which must not change until td_replica_wait.
 * The replica's gradients are then those of this output alone. */
void td_replica_backward(td_replica *r, td_tensor *output, const td_tensor *gradient);
/* The gradient of parameter `index` of td_module_state's list; NULL: none. */
const td_tensor *td_replica_grad(const td_replica *r, int index);

/* Waits for the running command. Returns the message of the programming mistake that ended it, or
 * NULL. */
const char *td_replica_wait(td_replica *r);
