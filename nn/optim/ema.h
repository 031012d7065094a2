/* An exponential moving average of a model's weights: what is evaluated and shipped at the end of a
 * long run is often better than the last step's weights (Polyak, Juditsky 1992). */
#ifndef TD_NN_OPTIM_EMA_H
#define TD_NN_OPTIM_EMA_H

#include "nn/nn.h"
#include "tensor/extern_c.h"

TD_BEGIN_C

typedef struct td_ema td_ema;

/* average += (1 - decay) (value - average) at every update. */
typedef struct td_ema_options {
    int begin_;
    td_module *model;
    double decay; /* between 0 and 1: 0.999 looks back some 1,000 updates; 0: 0.9999 */
    bool warmup;  /* the n-th update's decay (n from 0) is min(decay, (1 + n) / (10 + n)), so that
                     the first weights, which are random, are soon forgotten */
} td_ema_options;

/* The averages begin as the model's values. Averaged are the parameters of td_parameters(model) and
 * the float buffers (running statistics); integer buffers are copied. Made after td_module_to and
 * after td_ddp; freed before the model. NULL with td_last_error() when memory is short.
 *
 * Under DDP every rank keeps its own: parameters, and so their averages, have the same bits on all
 * ranks. Running statistics are each rank's own between steps, and so are their averages; rank 0's
 * count, as theirs do. */
td_ema *td_ema_new_at(td_ema_options options, td_site at);
void td_ema_free(td_ema *ema); /* NULL is fine */

/* After td_optim_step. */
void td_ema_update(td_ema *ema);

/* The model's values and the averages change places: evaluate or save then, and swap back before
 * training goes on (an update or a checkpoint of both in between is a programming mistake). */
void td_ema_swap(td_ema *ema);
bool td_ema_swapped(const td_ema *ema);

int64_t td_ema_updates(td_ema *ema); /* so far */
double td_ema_decay(td_ema *ema);    /* that the next update will take */

#define td_ema_new(...) td_ema_new_at((td_ema_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)

TD_END_C

#endif
