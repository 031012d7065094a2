/* RMSprop, Adagrad and Lion. Groups, state files, sharding, captured steps: as for the optimizers
 * of nn/optim/optim.h. Free them by td_optim_free. NULL with td_last_error() when memory is short.
 */
#pragma once

#include "nn/optim/optim.h"

TD_BEGIN_C

/* td_rmsprop(params, ...): torch.optim.RMSprop (Hinton 2012). g += weight_decay p;
 *     v = alpha v + (1 - alpha) g^2;  m = alpha m + (1 - alpha) g, and v - m^2 for v (centered);
 *     b = momentum b + g / (sqrt(v) + eps);  p -= lr b */
typedef struct td_rmsprop_options {
    int begin_; /* for the library */
    td_params *params;
    double lr;    /* 0: 1e-2 */
    double alpha; /* 0: 0.99; td_optim_set calls it beta2 */
    double eps;   /* 0: 1e-8 */
    double momentum, weight_decay;
    bool centered;
} td_rmsprop_options;
td_optim *td_rmsprop_at(td_rmsprop_options options, td_site at);

/* td_adagrad(params, ...): torch.optim.Adagrad (Duchi, Hazan, Singer 2011) without lr_decay, which
 * is a schedule. g += weight_decay p;  v += g^2;  p -= lr g / (sqrt(v) + eps) */
typedef struct td_adagrad_options {
    int begin_;
    td_params *params;
    double lr;            /* 0: 1e-2 */
    double eps;           /* 0: 1e-10 */
    double initial_value; /* of v; PyTorch: initial_accumulator_value */
    double weight_decay;
} td_adagrad_options;
td_optim *td_adagrad_at(td_adagrad_options options, td_site at);

/* td_lion(params, ...): Lion (Chen et al. 2023).
 *     p *= 1 - lr weight_decay;  p -= lr sign(beta1 m + (1 - beta1) g);
 *     m = beta2 m + (1 - beta2) g */
typedef struct td_lion_options {
    int begin_;
    td_params *params;
    double lr;           /* 0: 1e-4 */
    double beta1, beta2; /* 0: 0.9 and 0.99 */
    double weight_decay;
} td_lion_options;
td_optim *td_lion_at(td_lion_options options, td_site at);

TD_END_C

/* ---- what you call ---- */

#define td_rmsprop(...) TD_CALL(td_rmsprop, TD_OPT1(params, __VA_ARGS__))
#define td_adagrad(...) TD_CALL(td_adagrad, TD_OPT1(params, __VA_ARGS__))
#define td_lion(...) TD_CALL(td_lion, TD_OPT1(params, __VA_ARGS__))
