/* Adam with less than 8 bytes a parameter. Groups, state files, sharding, captured steps: as for
 * the optimizers of nn/optim/optim.h. Free it by td_optim_free. NULL with td_last_error() when
 * memory is short. */
#pragma once

#include "nn/optim/optim.h"

TD_BEGIN_C

/* td_adam_compact(params, ...): Adam or AdamW, whose two averages are kept in 8 or 16 bits: 2.5 or
 * 4 bytes a parameter (tensor/kernels/packed.h). They are rounded stochastically. The random
 * numbers depend only on the parameter, the element and the step, so the bits are the same on any
 * number of threads and ranks, and in a resumed run. Parameters are f32. A checkpoint has the
 * averages as f32, under the names of td_adam and td_adamw, so each of the three goes on from the
 * others' files. */
typedef struct td_adam_compact_options {
    int begin_; /* for the library */
    td_params *params;
    int bits;            /* 8 or 16; 0: 8 */
    double lr;           /* 0: 1e-3 */
    double beta1, beta2; /* 0: 0.9 and 0.999 */
    double eps;          /* 0: 1e-8 */
    double weight_decay;
    bool decoupled; /* AdamW: weight_decay shrinks the weights directly */
} td_adam_compact_options;
td_optim *td_adam_compact_at(td_adam_compact_options options, td_site at);

TD_END_C

/* ---- what you call ---- */

#define td_adam_compact(...) TD_CALL(td_adam_compact, TD_OPT1(params, __VA_ARGS__))
