/* For .cu files: element types and conversions, the same as tensor/element.h's; places in walks. */
#ifndef TD_TENSOR_CUDA_ELEMENT_CUH
#define TD_TENSOR_CUDA_ELEMENT_CUH

#include "tensor/cuda/kernel.cuh"
#include "tensor/cuda/launch.h"

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

/* The place of element i of a walk (counted with the last dimension fastest) in an operand. */
__host__ __device__ static inline int64_t td_cuda_place(const td_cuda_walk &walk, int operand,
                                                        int64_t i)
{
    int64_t place = 0;
    for (int d = walk.ndim - 1; d > 0; d--) {
        int64_t outer = i / walk.shape[d];
        place += (i - outer * walk.shape[d]) * walk.stride[operand][d];
        i = outer;
    }
    return place + i * walk.stride[operand][0];
}

/* Any element as the widest number of its kind. */
__host__ __device__ static inline double td_cuda_wide(float x)
{
    return x;
}
__host__ __device__ static inline double td_cuda_wide(double x)
{
    return x;
}
__host__ __device__ static inline double td_cuda_wide(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
__host__ __device__ static inline double td_cuda_wide(__half x)
{
    return __half2float(x);
}
__host__ __device__ static inline int64_t td_cuda_wide(int64_t x)
{
    return x;
}
__host__ __device__ static inline int64_t td_cuda_wide(int32_t x)
{
    return x;
}
__host__ __device__ static inline int64_t td_cuda_wide(uint8_t x)
{
    return x;
}

/* Truncates towards zero and clamps; NaN becomes 0. */
__host__ __device__ static inline int64_t td_cuda_integer(double x, double low, double high)
{
    if (!(x > low)) {
        return x == x ? (int64_t)low : 0;
    }
    return x < high ? (int64_t)x : high < 9223372036854775808.0 ? (int64_t)high : INT64_MAX;
}
__host__ __device__ static inline int64_t td_cuda_integer(int64_t x, double low, double high)
{
    return (double)x <= low               ? (int64_t)low
           : (double)x < high             ? x
           : high < 9223372036854775808.0 ? (int64_t)high
                                          : INT64_MAX;
}

template <class T> struct td_cuda_store;
template <> struct td_cuda_store<float> {
    template <class W> __host__ __device__ static float from(W x)
    {
        return (float)x;
    }
};
template <> struct td_cuda_store<double> {
    template <class W> __host__ __device__ static double from(W x)
    {
        return (double)x;
    }
};
template <> struct td_cuda_store<__nv_bfloat16> {
    template <class W> __host__ __device__ static __nv_bfloat16 from(W x)
    {
        return __float2bfloat16((float)x);
    }
};
template <> struct td_cuda_store<__half> {
    template <class W> __host__ __device__ static __half from(W x)
    {
        return __float2half((float)x);
    }
};
template <> struct td_cuda_store<int64_t> {
    __host__ __device__ static int64_t from(double x)
    {
        return td_cuda_integer(x, -9223372036854775808.0, 9223372036854775808.0);
    }
    __host__ __device__ static int64_t from(int64_t x)
    {
        return x;
    }
};
template <> struct td_cuda_store<int32_t> {
    template <class W> __host__ __device__ static int32_t from(W x)
    {
        return (int32_t)td_cuda_integer(x, -2147483648.0, 2147483647.0);
    }
};
template <> struct td_cuda_store<uint8_t> {
    template <class W> __host__ __device__ static uint8_t from(W x)
    {
        return (uint8_t)td_cuda_integer(x, 0.0, 255.0);
    }
};

/* Rounds to nearest even for float types (16-bit ones by way of f32); integers as above. */
template <class T, class X> __host__ __device__ static inline T td_cuda_convert(X x)
{
    return td_cuda_store<T>::from(td_cuda_wide(x));
}

#endif
