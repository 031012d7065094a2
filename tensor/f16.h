/* Conversions of the 16-bit floats. tandem.h does not include this header. */
#pragma once

#include "tensor/dtype.h"

#include <string.h>

TD_BEGIN_C

/* Conversions round to nearest, ties to even; NaN stays NaN. */
static inline float td_bf16_to_f32(td_bf16 h)
{
    uint32_t bits = (uint32_t)h << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline td_bf16 td_f32_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (td_bf16)((bits >> 16) | 0x40u); /* quiet, so that no NaN becomes infinity */
    }
    return (td_bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float td_f16_to_f32(td_f16 h);
td_f16 td_f32_to_f16(float value);

/* n elements that lie side by side: the values of td_f16_to_f32 and td_f32_to_f16, by the
 * processor's own instructions where it has them (a NaN may carry other bits then). */
void td_f16_widen(int64_t n, float *y, const td_f16 *x);
void td_f16_narrow(int64_t n, td_f16 *y, const float *x);

TD_END_C
