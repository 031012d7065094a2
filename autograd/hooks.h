/* Hooks, which run when gradients are ready, and the memory of gradients: for optimizers, DDP and
 * others. tandem.h does not include this header. */
#pragma once

#include "autograd/autograd.h"

TD_BEGIN_C

/* A parameter may be used several times in one forward; each use contributes to its gradient. When
 * the last contribution has been added, the parameter's ready hooks run, in the order in which they
 * were added, on the thread that called td_backward. When td_backward ends, the end hooks of that
 * thread run. If a leaf's ready hooks have not run by then, the leaf got no gradient in this
 * backward. Hooks may add and remove hooks and write into the gradient; they must not run backward.
 * td_on_... return an id > 0 for removal, or a negative status when memory is short. */
typedef void (*td_grad_ready_fn)(td_tensor *leaf, void *user);
typedef void (*td_backward_end_fn)(void *user);
int td_on_grad_ready(td_tensor *leaf, td_grad_ready_fn fn, void *user);
void td_remove_grad_hook(td_tensor *leaf, int id);
/* Whether t is a leaf and has this ready hook. False after t was frozen. */
bool td_has_grad_hook(const td_tensor *t, int id);
int td_on_backward_end(td_backward_end_fn fn, void *user); /* of this thread's backwards */
void td_remove_backward_end_hook(int id);

/* The other half of td_backward(..., .rest = &rest), in the same step. Call it once for each rest;
 * without it weights lack gradients. Between the halves other forwards and backwards may run. They
 * and all rests that wait count as one backward: a leaf is ready, and hooks run, when its last
 * contribution of them is there. The gradients have the bits of an undivided td_backward if the
 * rests are run in the order of their backwards. A zero-bubble pipeline sends a stage's gradient on
 * after the first half, and fills idle time with the second. */
void td_backward_rest_at(td_rest *rest, td_site at);
#define td_backward_rest(...) td_backward_rest_at(__VA_ARGS__, TD_HERE)

/* The memory of a leaf's gradient, even if there is no gradient now; made at first use. */
td_tensor *td_grad_buffer(td_tensor *leaf);
/* From now on the leaf's gradient is written into `grad`, a persistent tensor of the leaf's shape,
 * dtype and strides (for example a part of one long array). The caller keeps owning `grad`. What it
 * holds now is ignored: the leaf has no gradient until the next backward. */
void td_set_grad_storage(td_tensor *leaf, td_tensor *grad);
/* Whether the leaf's gradient is written into `grad`. False after the leaf was frozen. */
bool td_has_grad_storage(const td_tensor *leaf, const td_tensor *grad);

/* The leaf has no gradient: the next contribution overwrites the memory instead of adding to it. */
void td_zero_grad_of(td_tensor *leaf);
/* The memory holds a gradient now, written from outside. */
void td_mark_grad(td_tensor *leaf);
/* Whether the leaf has a gradient, or the first contributions to one that is not ready. */
bool td_grad_begun(const td_tensor *leaf);

/* The number of the latest backward, and of the last one that reached the leaf (0: none), counted
 * from 1 in this process. */
uint64_t td_latest_backward(void);
uint64_t td_last_backward_of(const td_tensor *leaf);

/* The number of uses of t on the tapes of running steps whose backward has not run. 0: t is no
 * leaf, or no backward will reach it, so its memory may be moved or exchanged. */
int td_leaf_uses(const td_tensor *t);

TD_END_C
