/* For the emulated GPU: bfloat16, as far as tandem's kernels use it. */
#pragma once

extern "C" {
#include "tensor/dtype.h"
#include "tensor/f16.h"
}

struct __nv_bfloat16 {
    uint16_t bits;
};

static inline float __bfloat162float(__nv_bfloat16 x)
{
    return td_bf16_to_f32(x.bits);
}
static inline __nv_bfloat16 __float2bfloat16(float x)
{
    return { td_f32_to_bf16(x) };
}
static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    return { td_f32_to_bf16(x) };
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x)
{
    return x.bits;
}
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits)
{
    return { bits };
}
