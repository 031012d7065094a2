/* Sizes and names of element types, and conversions of f16. */
#include "tensor/dtype.h"
#include "tensor/f16.h"

#include <string.h>

size_t td_dtype_size(td_dtype dtype)
{
    static const unsigned char size[TD_DTYPE_COUNT] = {
        [TD_F32] = 4, [TD_F64] = 8, [TD_BF16] = 2, [TD_F16] = 2,
        [TD_I64] = 8, [TD_I32] = 4, [TD_U8] = 1,
    };
    return size[dtype];
}

const char *td_dtype_name(td_dtype dtype)
{
    static const char *const name[TD_DTYPE_COUNT] = {
        [TD_F32] = "f32", [TD_F64] = "f64", [TD_BF16] = "bf16", [TD_F16] = "f16",
        [TD_I64] = "i64", [TD_I32] = "i32", [TD_U8] = "u8",
    };
    return (unsigned)dtype < TD_DTYPE_COUNT ? name[dtype] : "unknown dtype";
}

/* IEEE half: 1 sign bit, 5 exponent bits (bias 15), 10 fraction bits; float: 1, 8 (bias 127), 23.
 */
enum { FRACTION_SHIFT = 23 - 10 };

float td_f16_to_f32(td_f16 h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu;
    uint32_t fraction = h & 0x3ffu;
    if (exponent == 0) { /* zero or subnormal: a multiple of 2^-24, exact in a float */
        float magnitude = (float)fraction * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }
    uint32_t wide_exponent = exponent == 0x1f ? 0xffu : exponent + (127 - 15);
    uint32_t bits = sign | wide_exponent << 23 | fraction << FRACTION_SHIFT;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The bits of a positive float below 2^-14 in units of 2^-24, rounded to nearest even. */
static uint32_t f16_subnormal(uint32_t magnitude)
{
    uint32_t exponent = magnitude >> 23;
    uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u; /* value = it * 2^(exponent-150) */
    uint32_t shift = 126 - exponent;
    if (shift > 24) {
        return 0; /* below half of the smallest subnormal */
    }
    uint32_t units = significand >> shift;
    uint32_t rest = significand & ((1u << shift) - 1);
    uint32_t half = 1u << (shift - 1);
    return units + (rest > half || (rest == half && (units & 1u) != 0));
}

td_f16 td_f32_to_f16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) { /* NaN; made quiet, so that it never becomes infinity */
        return (td_f16)(sign | 0x7e00u | ((magnitude >> FRACTION_SHIFT) & 0x3ffu));
    }
    if (magnitude >= 0x477ff000u) { /* 65520 and more round to infinity */
        return (td_f16)(sign | 0x7c00u);
    }
    if (magnitude < 0x38800000u) { /* 2^-14 */
        return (td_f16)(sign | f16_subnormal(magnitude));
    }
    uint32_t odd = (magnitude >> FRACTION_SHIFT) & 1u;
    uint32_t rebased = magnitude - ((127u - 15u) << 23);
    return (td_f16)(sign | (rebased + 0xfffu + odd) >> FRACTION_SHIFT);
}
