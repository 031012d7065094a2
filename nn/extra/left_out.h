/* Steps that a captured step's device leaves out for a loss scaler (nn/extra/scaler.h), and that
 * the host, which does not see it, counts all the same. Not for users. */
#ifndef TD_NN_EXTRA_LEFT_OUT_H
#define TD_NN_EXTRA_LEFT_OUT_H

#include "nn/nn.h"
#include "tensor/kernel_types.h"

/* Of who counts steps: an optimizer, an average. */
typedef struct td_left_out {
    bool pending;                /* some of the counted steps may have been left out */
    int64_t before;              /* what had been left out unseen when that began */
    const struct td_storage *of; /* and by whose numbers */
} td_left_out;

/* Counts are right now: of a new optimizer or average, or of one that has been loaded. Waits for
 * the device if captured steps have been made. */
void td_left_out_begin(td_left_out *l, td_params *params);

/* For a slice that is filled for a captured step: lets the device ask the scaler, if there has been
 * one. step: its number, by the host's count. */
void td_left_out_ask(td_left_out *l, td_params *params, int64_t step, td_optim_slice *slice);

/* How many too many have been counted; from now on the count is right. Waits for the device. */
int64_t td_left_out_settle(td_left_out *l, td_params *params);

#endif
