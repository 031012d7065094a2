/* The gates of an LSTM's step, composed of other kernels of a device (tensor/kernels/kernels.def:
 * lstm_gates, lstm_gates_grad). Not for users. */
#ifndef TD_TENSOR_KERNELS_LSTM_H
#define TD_TENSOR_KERNELS_LSTM_H

#include "tensor/kernels/kernels.h"

void td_lstm_gates(const td_kernels *kernels, td_tensor *gates, td_tensor *cells, td_tensor *h,
                   const td_tensor *c);
void td_lstm_gates_grad(const td_kernels *kernels, td_tensor *dgates, td_tensor *dc,
                        const td_tensor *dh, const td_tensor *gates, const td_tensor *cells,
                        const td_tensor *c);

#endif
