/* Element types. */
#pragma once

#include "tensor/extern_c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* The bits of a bfloat16 and of an IEEE half; tensor/f16.h converts them. */
typedef uint16_t td_bf16;
typedef uint16_t td_f16;

TD_END_C
