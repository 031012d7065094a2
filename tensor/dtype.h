/* Element types, and conversions of the 16-bit floats. */
#ifndef TD_TENSOR_DTYPE_H
#define TD_TENSOR_DTYPE_H

#include "tensor/extern_c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

TD_BEGIN_C

typedef enum td_dtype {
    TD_F32 = 0,
    TD_F64 = 1,
    TD_BF16 = 2,
    TD_F16 = 3,
    TD_I64 = 4,
    TD_I32 = 5,
    TD_U8 = 6,
    TD_DTYPE_COUNT
} td_dtype;

/* The size of one element in bytes. */
size_t td_dtype_size(td_dtype dtype);

/* "f32", "bf16", ... The text is static. */
const char *td_dtype_name(td_dtype dtype);

static inline bool td_is_float(td_dtype dtype)
{
    return dtype <= TD_F16;
}

/* The 16-bit floats: activations of mixed precision have one of these dtypes. */
static inline bool td_is_half(td_dtype dtype)
{
    return dtype == TD_BF16 || dtype == TD_F16;
}

/* The bits of a bfloat16 and of an IEEE half. Conversions round to nearest, ties to even; NaN stays
 * NaN. */
typedef uint16_t td_bf16;
typedef uint16_t td_f16;

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

TD_END_C

#endif
