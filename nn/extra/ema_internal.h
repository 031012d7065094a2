/* An average of weights, seen from inside: what a checkpoint reads. Users do not include this. */
#ifndef TD_NN_EXTRA_EMA_INTERNAL_H
#define TD_NN_EXTRA_EMA_INTERNAL_H

#include "nn/extra/average.h"
#include "nn/extra/ema.h"

struct td_ema {
    td_ema_options options;
    td_average of;     /* the averages */
    td_tensor *counts; /* its first number: updates so far */
    int64_t skipped;   /* td_params_skipped when that number was right */
    bool counted;      /* a captured update since then */
    bool begun;        /* an update was made, of whatever kind */
    td_tensor *spare;  /* for swapping */
    bool swapped;
};

int64_t *td_ema_count(const td_ema *ema); /* of updates, to be written */

/* Makes the count right after captured steps (td_optim_settle). */
void td_ema_settle(td_ema *ema);

#endif
