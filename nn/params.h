/* Flat parameters, seen from inside: for optimizers. Users do not include this. */
#ifndef TD_NN_PARAMS_H
#define TD_NN_PARAMS_H

#include "nn/nn.h"

/* Ends a layout; its leaves go on living in the flat memory that they share. NULL is fine. */
void td_params_free(td_params *params);

/* order[k]: which parameter is the k-th in memory. */
const int *td_params_order(const td_params *params);

/* A flat tensor like the parameters', zeroed, which td_params_reorder rearranges along with them
 * (optimizer state). NULL when memory is short. Given back by td_params_drop_flat; NULL is fine. */
td_tensor *td_params_new_flat(td_params *params);
void td_params_drop_flat(td_params *params, td_tensor *flat);

/* Puts the gradients into given memory: flat like td_params_flat, persistent, which belongs to
 * params from now on. Gradients that there are move along. TD_E_NOMEM: nothing has changed. */
td_status td_params_set_grad_memory(td_params *params, td_tensor *flat);

/* A view of one parameter's part of such a tensor, in the parameter's shape and memory order. The
 * caller's to free; NULL when memory is short. */
td_tensor *td_params_view(const td_params *params, td_tensor *flat, int i);

#endif
