/* Captured steps that the device has skipped for a loss scaler (nn/extra/scaler.h). */
#ifndef TD_NN_OPTIM_SKIPS_H
#define TD_NN_OPTIM_SKIPS_H

#include "nn/params.h"

/* Lets a loss scaler decide on the device, by its numbers f64 [TD_SCALE_NUMBERS], whether captured
 * steps of these parameters are skipped. */
td_status td_params_scale_by(td_params *params, const td_tensor *numbers);
/* How many captured steps the device has skipped so far. The host counts every captured step that
 * it launches, so it subtracts the difference of two calls from its count. Waits for the device. */
int64_t td_params_skipped(const td_params *params);
/* The same without the running captured step, on which the scaler has decided already. */
int64_t td_params_skipped_before(const td_params *params);
/* If there is a scaler: lets the slice's kernel, in a captured step, read the scaler's decision and
 * its count of skipped steps. step: the step's number as the host counts it; skipped:
 * td_params_skipped when the host's count was right. */
void td_params_ask(const td_params *params, td_optim_slice *slice, int64_t step, int64_t skipped);

#endif
