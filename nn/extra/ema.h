/* An exponential moving average (EMA) of a model's weights. At the end of a long run the average is
 * often better than the weights of the last step (Polyak, Juditsky 1992).
 *
 *     td_ema *ema = td_ema_new(net, .decay = 0.999);
 *     ... td_optim_step(optim); td_ema_update(ema); ...
 *     td_ema_swap(ema); td_evaluate(net, test); td_ema_swap(ema);                                */
#pragma once

#include "nn/nn.h"

TD_BEGIN_C

typedef struct td_ema td_ema;

/* Every update computes average += (1 - decay) (value - average). */
typedef struct td_ema_options {
    int begin_; /* for the library */
    td_module *model;
    double decay; /* between 0 and 1: 0.999 averages over about 1,000 updates; 0: 0.9999 */
    bool warmup;  /* update n (from 0) uses the decay min(decay, (1 + n) / (10 + n)), so that the
                     average soon forgets the random initial weights */
} td_ema_options;

/* Makes averages that begin as the model's values. An update averages the parameters of
 * td_parameters(model) and the float buffers (running statistics), and copies integer buffers. Call
 * td_ema_new after td_module_to and td_ddp, and free the averages before the model. NULL with
 * td_last_error() when memory is short.
 *
 * Under DDP every rank keeps its own averages. The averages of parameters have the same bits on all
 * ranks, as the parameters do. Running statistics differ from rank to rank between steps, and so do
 * their averages: use rank 0's. */
td_ema *td_ema_new_at(td_ema_options options, td_site at);
void td_ema_free(td_ema *ema); /* NULL is fine */

/* Updates the averages. Call td_ema_update after td_optim_step. */
void td_ema_update(td_ema *ema);

/* Swaps the model's values and the averages: swap, evaluate or save the model, and swap back. An
 * update, or a checkpoint with both, while they are swapped is a fatal error. */
void td_ema_swap(td_ema *ema);

/* ---- what you call ---- */

#define td_ema_new(...) td_ema_new_at((td_ema_options){ TD_OPT1(model, __VA_ARGS__) }, TD_HERE)

TD_END_C
