/* One element of any dtype as a double: the slow, simple way in and out of a tensor's memory. i64
 * values beyond 2^53 are rounded. Not for users. */
#pragma once

#include "tensor/f16.h"

/* The element at index (in elements) of an array. */
static inline double td_load_element(const void *array, td_dtype dtype, int64_t index)
{
    switch (dtype) {
    case TD_F32:
        return ((const float *)array)[index];
    case TD_F64:
        return ((const double *)array)[index];
    case TD_BF16:
        return td_bf16_to_f32(((const td_bf16 *)array)[index]);
    case TD_F16:
        return td_f16_to_f32(((const td_f16 *)array)[index]);
    case TD_I64:
        return (double)((const int64_t *)array)[index];
    case TD_I32:
        return ((const int32_t *)array)[index];
    case TD_U8:
        return ((const uint8_t *)array)[index];
    case TD_DTYPE_COUNT:
        break;
    }
    return 0.0;
}

/* Truncates towards zero; what does not fit becomes the nearest value that does, NaN becomes 0 (a
 * plain cast would be undefined behaviour there). */
static inline int64_t td_double_to_integer(double value, double low, double high)
{
    if (!(value > low)) {
        return value == value ? (int64_t)low : 0;
    }
    if (value < high) {
        return (int64_t)value;
    }
    return high < 0x1p63 ? (int64_t)high : INT64_MAX;
}

/* Stores value, rounded to nearest even for float types (bf16 and f16 by way of f32), truncated and
 * clamped for integers. */
static inline void td_store_element(void *array, td_dtype dtype, int64_t index, double value)
{
    switch (dtype) {
    case TD_F32:
        ((float *)array)[index] = (float)value;
        return;
    case TD_F64:
        ((double *)array)[index] = value;
        return;
    case TD_BF16:
        ((td_bf16 *)array)[index] = td_f32_to_bf16((float)value);
        return;
    case TD_F16:
        ((td_f16 *)array)[index] = td_f32_to_f16((float)value);
        return;
    case TD_I64:
        ((int64_t *)array)[index] = td_double_to_integer(value, (double)INT64_MIN, 0x1p63);
        return;
    case TD_I32:
        ((int32_t *)array)[index] = (int32_t)td_double_to_integer(value, INT32_MIN, INT32_MAX);
        return;
    case TD_U8:
        ((uint8_t *)array)[index] = (uint8_t)td_double_to_integer(value, 0, UINT8_MAX);
        return;
    case TD_DTYPE_COUNT:
        return;
    }
}
