/* Runs of f16 to f32 and back. */
#ifndef TD_TENSOR_F16_H
#define TD_TENSOR_F16_H

#include <stdint.h>

#include "tensor/dtype.h"

/* n elements that lie side by side: the values of td_f16_to_f32 and td_f32_to_f16, by the
 * processor's own instructions where it has them (a NaN may carry other bits then). */
void td_f16_widen(int64_t n, float *y, const td_f16 *x);
void td_f16_narrow(int64_t n, td_f16 *y, const float *x);

#endif
