/* Dropout and stochastic depth whose counter is told by reference, for steps that are captured and
 * nn's layers. Not for users: td_dropout and td_stochastic_depth are. */
#ifndef TD_AUTOGRAD_DROPOUT_H
#define TD_AUTOGRAD_DROPOUT_H

#include "autograd/autograd.h"

/* With the counter that is at `counter`, up to the end of the step; in a captured step, when the
 * kernels run: it then is one of td_step_numbers (tensor/hooks.h). */
td_tensor *td_dropout_by(td_tensor *x, double p, td_philox_key key, const uint64_t *counter,
                         td_site at);
td_tensor *td_stochastic_depth_by(td_tensor *x, double p, td_philox_key key,
                                  const uint64_t *counter, td_site at);

#endif
