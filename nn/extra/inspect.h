/* The state of optimizers, averages of weights and loss scalers: for checkpoints, tools and
 * captured steps. tandem.h does not include this header. */
#pragma once

#include "nn/extra/ema.h"
#include "nn/optim/optim.h"
#include "nn/extra/scaler.h"

TD_BEGIN_C

/* The size of the optimizer's state (momentum, Adam's moments) in bytes. */
size_t td_optim_state_bytes(const td_optim *optim);

bool td_ema_swapped(const td_ema *ema); /* the model holds the averages now: td_ema_swap */
int64_t td_ema_updates(td_ema *ema);    /* the number of updates so far */
double td_ema_decay(td_ema *ema);       /* the decay of the next update */

/* The outcome of the latest step, as a scalar on the device, for the results of a captured step: 0:
 * taken; 1: skipped; 2: skipped, and td_scaler_gives_up is true. The scaler owns the tensor. Call
 * td_scaler_outcome after td_scaler_loss. */
td_tensor *td_scaler_outcome(const td_scaler *scaler);

/* True if the last step was skipped although the scale already had its smallest value: the
 * gradients are not finite for another reason, and every later step would be skipped. scaler NULL:
 * false. */
bool td_scaler_gives_up(td_scaler *scaler);

/* The part of a scaler that checkpoints save (their option `scaler`). */
typedef struct td_scaler_state {
    double scale;
    int64_t good;    /* steps since the scale changed */
    int64_t skipped; /* all steps that were skipped */
} td_scaler_state;
td_scaler_state td_scaler_now(td_scaler *scaler); /* waits for captured steps */
void td_scaler_set(td_scaler *scaler, const td_scaler_state *state);

TD_END_C
