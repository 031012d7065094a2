/* For the emulated GPU: half precision, as far as tandem's kernels use it. */
#pragma once

extern "C" {
#include "tensor/dtype.h"
#include "tensor/f16.h"
}

struct __half {
    uint16_t bits;
};

static inline float __half2float(__half x)
{
    return td_f16_to_f32(x.bits);
}
static inline __half __float2half(float x)
{
    return { td_f32_to_f16(x) };
}
static inline __half __float2half_rn(float x)
{
    return { td_f32_to_f16(x) };
}
static inline unsigned short __half_as_ushort(__half x)
{
    return x.bits;
}
static inline __half __ushort_as_half(unsigned short bits)
{
    return { bits };
}
