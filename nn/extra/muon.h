/* Muon (Jordan 2024): an optimizer that makes the update of each filter bank orthogonal. */
#ifndef TD_NN_EXTRA_MUON_H
#define TD_NN_EXTRA_MUON_H

#include "nn/optim/optim.h"

TD_BEGIN_C

/* td_muon(params, ...): Muon for filters [O,I,KH,KW], and Nesterov SGD for all other parameters.
 * nn/extra/muon.c has the formulas. The state is two numbers per parameter: momentum and update.
 * Free the optimizer by td_optim_free. NULL with td_last_error() when memory is short. */
typedef struct td_muon_options {
    int begin_; /* for the library */
    td_params *params;
    double lr, momentum; /* for filters, which have no weight decay */
    int rounds;          /* of the Newton-Schulz iteration; 0: 5 */
    bool no_nesterov;
    bool no_renormalise; /* otherwise each step first scales a filter bank to the norm sqrt(O) */
    double sgd_momentum; /* for other parameters, whose learning rates are those of their groups */
    double weight_decay; /* for other parameters in group 0 */
} td_muon_options;
td_optim *td_muon_at(td_muon_options options, td_site at);

TD_END_C

/* ---- what you call ---- */

#define td_muon(...) td_muon_at((td_muon_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)

#endif
