/* bf16 and f16 are computed in float: pieces of a run are converted on the way in and out. */
#pragma once

#include "tensor/f16.h"

enum { TD_HALF_PIECE = 256 }; /* elements of the buffers that callers keep on their stack */

/* n elements, `stride` apart, of an array of dtype TD_BF16 or TD_F16. */
static inline void td_half_load(td_dtype dtype, int64_t n, float *out, const void *array,
                                int64_t stride)
{
    const uint16_t *h = array;
    if (dtype == TD_F16 && stride == 1) {
        td_f16_widen(n, out, h);
    } else if (dtype == TD_BF16) {
        for (int64_t i = 0; i < n; i++) {
            out[i] = td_bf16_to_f32(h[i * stride]);
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            out[i] = td_f16_to_f32(h[i * stride]);
        }
    }
}

static inline void td_half_store(td_dtype dtype, int64_t n, void *array, int64_t stride,
                                 const float *values)
{
    uint16_t *h = array;
    if (dtype == TD_F16 && stride == 1) {
        td_f16_narrow(n, h, values);
    } else if (dtype == TD_BF16) {
        for (int64_t i = 0; i < n; i++) {
            h[i * stride] = td_f32_to_bf16(values[i]);
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            h[i * stride] = td_f32_to_f16(values[i]);
        }
    }
}
