/* Muon (Jordan 2024): an optimizer that makes the update of each filter bank orthogonal. */
#pragma once

#include "nn/optim/optim.h"

TD_BEGIN_C

/* A factor of each update, in addition to the learning rate. rows and columns: of the parameter as
 * a matrix O x (the product of its other sizes). */
typedef enum td_muon_scale {
    TD_MUON_UNSCALED,
    TD_MUON_BY_SHAPE, /* sqrt(max(1, rows / columns)): torch.optim.Muon's "original" */
    TD_MUON_AS_ADAMW, /* 0.2 sqrt(max(rows, columns)): "match_rms_adamw"; takes AdamW's rates */
} td_muon_scale;

/* td_muon(params, ...): Muon for filters [O,I,KH,KW], or for the parameters that you choose
 * (hidden matrices), and Nesterov SGD for all other parameters.
 * nn/extra/muon.c has the formulas. The state is two numbers per parameter: momentum and update.
 * Free the optimizer by td_optim_free. NULL with td_last_error() when memory is short. */
typedef struct td_muon_options {
    int begin_; /* for the library */
    td_params *params;
    double lr, momentum;
    double filter_weight_decay; /* decoupled: p *= 1 - lr * this */
    td_muon_scale scale;
    /* Chooses Muon's parameters, of two or more dimensions; NULL: all parameters of four
     * dimensions. */
    bool (*belongs)(const td_param *param, void *user);
    void *user;
    int rounds; /* of the Newton-Schulz iteration; 0: 5 */
    bool no_nesterov;
    bool no_renormalise; /* otherwise each step first scales a filter bank to the norm sqrt(O) */
    double sgd_momentum; /* for other parameters; their learning rates are their groups' */
    double weight_decay; /* for other parameters in group 0 */
} td_muon_options;
td_optim *td_muon_at(td_muon_options options, td_site at);

TD_END_C

/* ---- what you call ---- */

#define td_muon(...) TD_CALL(td_muon, TD_OPT1(params, __VA_ARGS__))
