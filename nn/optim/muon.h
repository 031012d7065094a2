/* Muon (Jordan 2024): the update of a filter bank is made orthogonal. */
#ifndef TD_NN_OPTIM_MUON_H
#define TD_NN_OPTIM_MUON_H

#include "nn/nn.h"

TD_BEGIN_C

/* Muon for filters [O,I,KH,KW], Nesterov SGD for all else (see nn/optim/muon.c for the formulas).
 * Keeps a second flat buffer for the updates. */
typedef struct td_muon_options {
    int begin_;
    td_params *params;
    double lr, momentum; /* of the filters, which have no weight decay */
    int rounds;          /* of Newton-Schulz; 0: 5 */
    bool no_nesterov;
    bool no_renormalise; /* otherwise a filter bank's norm is brought to sqrt(O) before each step */
    double sgd_momentum; /* of the others; their learning rates are those of their groups */
    double weight_decay; /* of the others, in group 0 */
} td_muon_options;
td_optim *td_muon_at(td_muon_options options, td_site at);

TD_END_C

#define td_muon(...) td_muon_at((td_muon_options){ .begin_ = 0, __VA_ARGS__ }, TD_HERE)

#endif
