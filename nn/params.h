/* Flat parameters, seen from inside: for optimizers. Users do not include this. */
#ifndef TD_NN_PARAMS_H
#define TD_NN_PARAMS_H

#include "nn/nn.h"
#include "tensor/kernel_types.h"

/* Ends a layout; its leaves go on living in the flat memory that they share. NULL is fine. */
void td_params_free(td_params *params);

/* order[k]: which parameter is the k-th in memory. */
const int *td_params_order(const td_params *params);

/* How often the order in memory has changed. */
int td_params_reorders(const td_params *params);

/* The layout of m's parameters; NULL: they are not laid out. */
td_params *td_params_laid_out(const td_module *m);

/* State of optimizers, zeroed: a flat tensor like the parameters', which td_params_reorder
 * rearranges along with them; or a count (i64, on the CPU) for each parameter, in the order of
 * registration. NULL when memory is short. Given back by td_params_drop_state; NULL is fine. */
td_tensor *td_params_new_flat(td_params *params);
td_tensor *td_params_new_counts(td_params *params);
void td_params_drop_state(td_params *params, td_tensor *state);

/* All of it: what ranks of the same model have in the same order. */
int td_params_state_count(const td_params *params);
td_tensor *td_params_state(const td_params *params, int i);

/* The loss scaler whose decisions captured steps of these parameters follow: its numbers, f64
 * [TD_SCALE_NUMBERS]; NULL: there is none. A header is made for `numbers`. */
const td_tensor *td_params_scaling(const td_params *params);
td_status td_params_set_scaling(td_params *params, const td_tensor *numbers);
/* How many captured steps the device has skipped for a scaler, ever; who counts steps counts these,
 * too, until it asks here. Waits for the device. */
int64_t td_params_skipped(const td_params *params);
/* Lets the slice of a captured step ask the scaler, if there is one. step: the step's number, where
 * all skipped steps but the first `skipped` were counted. */
void td_params_ask(const td_params *params, td_optim_slice *slice, int64_t step, int64_t skipped);

/* Puts the gradients into given memory: flat like td_params_flat, persistent, which belongs to
 * params from now on. Gradients that there are move along. TD_E_NOMEM: nothing has changed. */
td_status td_params_set_grad_memory(td_params *params, td_tensor *flat);

/* A view of one parameter's part of such a tensor, in the parameter's shape and memory order. The
 * caller's to free; NULL when memory is short. */
td_tensor *td_params_view(const td_params *params, td_tensor *flat, int i);

#endif
