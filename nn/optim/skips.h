/* Captured steps that the device has skipped for a loss scaler (nn/extra/scaler.h). */
#pragma once

#include "nn/params.h"

/* Lets a loss scaler decide on the device, by its numbers f64 [TD_SCALE_NUMBERS], whether captured
 * steps of these parameters are skipped. */
td_status td_params_scale_by(td_params *params, const td_tensor *numbers);
/* What the host knows of skipped steps. It counts every captured step that it launches; the device
 * may skip some of them, which are taken off its count later. Zero at first. */
typedef struct td_skips {
    int64_t seen; /* steps that the device had skipped when the host's count was right */
    bool counted; /* captured steps since; set by whoever counts them, as is: */
    bool begun;   /* a step was made, captured or not */
} td_skips;

/* How many steps the host has counted that were skipped; the caller takes them off, and its count
 * is right then. Waits for the device. */
int64_t td_skips_settle(td_skips *s, const td_params *params);
/* Before a step is counted. Of an eager step, td_skips_settle's number; of a captured one 0. */
int64_t td_skips_step(td_skips *s, const td_params *params);

/* If there is a scaler: lets the slice's kernel, in a captured step, read the scaler's decision and
 * its count of skipped steps. step: the step's number as the host counts it. */
void td_skips_ask(const td_skips *s, const td_params *params, td_optim_slice *slice, int64_t step);
