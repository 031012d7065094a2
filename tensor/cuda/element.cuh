/* For .cu files: element types, and conversions, the same as tensor/kernels/element.h's. */
#pragma once

#include "tensor/cuda/kernel.cuh"
#include "tensor/cuda/launch.h"

/* A function for the host and the GPU. */
#define TD_HD __host__ __device__ static inline

/* A switch's cases of the float dtypes: DO(type) for the C++ type. */
#define TD_CUDA_FLOAT_CASES(DO)                                                                    \
    case TD_F32:                                                                                   \
        DO(float);                                                                                 \
        break;                                                                                     \
    case TD_F64:                                                                                   \
        DO(double);                                                                                \
        break;                                                                                     \
    case TD_BF16:                                                                                  \
        DO(__nv_bfloat16);                                                                         \
        break;                                                                                     \
    case TD_F16:                                                                                   \
        DO(__half);                                                                                \
        break;

/* Runs DO(type) for the C++ type of a dtype. */
#define TD_CUDA_FOR_DTYPE(dtype, DO)                                                               \
    switch (dtype) {                                                                               \
        TD_CUDA_FLOAT_CASES(DO)                                                                    \
    case TD_I64:                                                                                   \
        DO(int64_t);                                                                               \
        break;                                                                                     \
    case TD_I32:                                                                                   \
        DO(int32_t);                                                                               \
        break;                                                                                     \
    case TD_U8:                                                                                    \
        DO(uint8_t);                                                                               \
        break;                                                                                     \
    case TD_DTYPE_COUNT:                                                                           \
        break;                                                                                     \
    }

/* Runs DO(type) for the C++ type of a float dtype. */
#define TD_CUDA_FOR_FLOAT(dtype, DO)                                                               \
    switch (dtype) {                                                                               \
        TD_CUDA_FLOAT_CASES(DO)                                                                    \
    default:                                                                                       \
        break;                                                                                     \
    }

/* Runs DO(type) for an unsigned type of a dtype's size: for elements that only move. */
#define TD_CUDA_FOR_SIZE(dtype, DO)                                                                \
    switch (td_cuda_dtype_size(dtype)) {                                                           \
    case 1:                                                                                        \
        DO(uint8_t);                                                                               \
        break;                                                                                     \
    case 2:                                                                                        \
        DO(uint16_t);                                                                              \
        break;                                                                                     \
    case 4:                                                                                        \
        DO(uint32_t);                                                                              \
        break;                                                                                     \
    default:                                                                                       \
        DO(uint64_t);                                                                              \
        break;                                                                                     \
    }

/* Bytes of an element. */
TD_HD size_t td_cuda_dtype_size(td_dtype dtype)
{
    size_t size = 0;
#define SIZE(S) size = sizeof(S)
    TD_CUDA_FOR_DTYPE(dtype, SIZE)
#undef SIZE
    return size;
}

/* ---- from memory: td_get(x), in the type that elements of x's type are computed in ---- */

template <class S> struct td_computed {
    typedef float type;
};
template <> struct td_computed<double> {
    typedef double type;
};
template <> struct td_computed<int64_t> {
    typedef int64_t type;
};
template <> struct td_computed<int32_t> {
    typedef int32_t type;
};
template <> struct td_computed<uint8_t> {
    typedef int32_t type;
};

template <class S> TD_HD typename td_computed<S>::type td_get(S x)
{
    return x;
}
TD_HD float td_get(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
TD_HD float td_get(__half x)
{
    return __half2float(x);
}

/* ---- and back: td_put<S>(value). Floats are rounded to nearest even, 16-bit ones by way of f32;
 * integers are truncated towards zero and clamped, and NaN becomes 0 ---- */

TD_HD int64_t td_cuda_integer(double x, double low, double high)
{
    if (!(x > low)) {
        return x == x ? (int64_t)low : 0;
    }
    return x < high ? (int64_t)x : high < 9223372036854775808.0 ? (int64_t)high : INT64_MAX;
}

template <class S> struct td_cuda_store {
    template <class T> TD_HD S from(T x)
    {
        return (S)x;
    }
};
template <> struct td_cuda_store<__nv_bfloat16> {
    template <class T> TD_HD __nv_bfloat16 from(T x)
    {
        return __float2bfloat16((float)x);
    }
};
template <> struct td_cuda_store<__half> {
    template <class T> TD_HD __half from(T x)
    {
        return __float2half((float)x);
    }
};
template <> struct td_cuda_store<int64_t> {
    TD_HD int64_t from(double x)
    {
        return td_cuda_integer(x, -9223372036854775808.0, 9223372036854775808.0);
    }
};
template <> struct td_cuda_store<int32_t> {
    TD_HD int32_t from(double x)
    {
        return (int32_t)td_cuda_integer(x, -2147483648.0, 2147483647.0);
    }
};
template <> struct td_cuda_store<uint8_t> {
    TD_HD uint8_t from(double x)
    {
        return (uint8_t)td_cuda_integer(x, 0.0, 255.0);
    }
};
template <class S, class T> TD_HD S td_put(T value)
{
    return td_cuda_store<S>::from(value);
}
