/* Ranks that share the optimizer's state, gradients and values (ZeRO): who has which part.
 * Optimizers, clipping and checkpoints ask nn/params.h. */
#pragma once

#include "nn/params.h"

/* Tells a model's checkpoints and optimizers; `staging` stays the caller's. NULL: all of the
 * model's parameters are here. */
void td_module_set_staging(td_module *model, const td_staging *staging);

/* `begin` of a parameter is the parameter's place in the flat space. The flat space is cut into
 * stretches (one, or one for each unit of the model), and each stretch into one piece for each
 * rank, all of one length. The pieces of a rank together are its window. Three ranks and two
 * stretches:
 *
 *     | stretch 0            | stretch 1                      |
 *     | rank 0 rank 1 rank 2 | rank 0   | rank 1   | rank 2   |
 *
 * A rank's optimizer changes the values in the rank's window, and keeps state only for that window.
 * A rank may keep only its window of the gradients and values, too: then td_params_flat_grad and
 * td_params_flat are the window, and the leaves have memory only while it is needed.
 *
 * Call td_params_set_peers before any state is made. peers NULL: there are none any more. */
void td_params_set_peers(td_params *params, const td_params_peers *peers);

/* Moves the gradients, and the values unless `values` is NULL, into given memory: 1-d, zeroed,
 * persistent, both of one length, which may be greater than that of all parameters; the rest stays
 * zero. The memory belongs to params from now on. TD_E_NOMEM: nothing has changed. */
td_status td_params_set_memory(td_params *params, td_tensor *values, td_tensor *grads);

/* td_params_set_peers with another order and other places in the flat space, and with memory for
 * each parameter: values[i] and grads[i] are headers of parameter i's shape and strides. Values are
 * kept (deferred ones are drawn), gradients are not. All tensors belong to params from now on.
 * TD_E_NOMEM: nothing has changed. Call it before any state is made. */
typedef struct td_params_places {
    const int *order;
    const int64_t *begin;
    td_tensor *flat, *flat_grad;
    td_tensor **values, **grads;
} td_params_places;
td_status td_params_spread(td_params *params, const td_params_peers *peers,
                           const td_params_places *places);

/* ---- ranks that follow others ----
 *
 * Ranks that share are followed by others: as many, fewer or more. What is in a rank's window
 * becomes bytes, which the next ranks read, whatever their windows are:
 *
 *     hidden = td_params_hide_state(params);
 *     ...                                             they begin to share: td_ddp
 *     td_params_show_state(params, hidden);
 *     td_params_import(params, bytes);                of each rank of those before
 *     ...
 *     td_params_export(params, bytes);
 *     td_params_unspread(params);                     they do not share any more
 *
 * For parameters on the CPU. */

/* Hides the state from who begins to share; returns how much there is. td_params_show_state: it is
 * zeros, for the present window; TD_E_NOMEM. */
int td_params_hide_state(td_params *params);
td_status td_params_show_state(td_params *params, int hidden);
/* There are no peers any more: each parameter gets memory of its own. What this rank has of the
 * values stays, the rest is zero; state stays as it was. TD_E_NOMEM: the model cannot run. */
td_status td_params_unspread(td_params *params);

/* TD_E_UNSUPPORTED: there is state that is not exported: averages of the weights, whole updates
 * (Muon), or state packed in blocks. */
td_status td_params_check_export(const td_params *params);
/* The values and the state in this rank's window, and the numbers that all ranks have (step
 * counts). The number of bytes is the same on all ranks. Import writes what this rank keeps of
 * another rank's bytes; call td_params_meet before and after. */
int64_t td_params_export_bytes(const td_params *params);
void td_params_export(td_params *params, void *bytes);
void td_params_import(td_params *params, const void *bytes);

/* Copies elements of `from` (row-major, on the CPU) to `part`, 1-d, beginning with element `begin`.
 * Elements are counted in the memory order of `form`, which has the same shape. */
void td_params_read_part(const td_tensor *from, const td_tensor *form, int64_t begin,
                         const td_tensor *part);

/* The parameter t gets the memory and the shape of `own`, which is freed; leaf: it takes gradients
 * then. */
void td_parameter_exchange(td_tensor *t, td_tensor *own, bool leaf);
/* A tensor in the parameter's order of memory, with its dtype and device; NULL: memory is short. */
td_tensor *td_parameter_like(const td_tensor *t, td_shape shape);
/* Gives a deferred parameter memory and its values; others stay. TD_E_NOMEM. */
td_status td_parameter_draw(td_tensor *t);
