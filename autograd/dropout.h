/* Dropout whose counter is told by reference, for steps that are captured: nn's layers. Not for
 * users: td_dropout is. */
#ifndef TD_AUTOGRAD_DROPOUT_H
#define TD_AUTOGRAD_DROPOUT_H

#include "autograd/autograd.h"

/* td_dropout with the counter that is at `counter` when the kernels run: one of
 * td_capture_numbers (tensor/capture.h). */
td_tensor *td_dropout_by(td_tensor *x, double p, td_philox_key key, const uint64_t *counter,
                         td_site at);

#endif
