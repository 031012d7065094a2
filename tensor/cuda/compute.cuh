/* For .cu files: the functions of tensor/kernels/formulas.h, several elements at once, and sums
 * over warps and blocks in a fixed order. */
#pragma once

#include "tensor/cuda/element.cuh"
#include "tensor/kernels/formulas.h"

#include <math.h>

/* ---- tensor/kernels/formulas.h's and elementwise.def's functions ---- */

#define TD_MATH(name) td_math_##name
#define TD_DEFINE_MATH(name)                                                                       \
    TD_HD float td_math_##name(float x)                                                            \
    {                                                                                              \
        return name##f(x);                                                                         \
    }                                                                                              \
    TD_HD double td_math_##name(double x)                                                          \
    {                                                                                              \
        return name(x);                                                                            \
    }
TD_DEFINE_MATH(exp)
TD_DEFINE_MATH(log)
TD_DEFINE_MATH(sqrt)
TD_DEFINE_MATH(tanh)
TD_DEFINE_MATH(erf)
TD_DEFINE_MATH(expm1)
TD_DEFINE_MATH(sin)
TD_DEFINE_MATH(cos)
TD_DEFINE_MATH(fabs)
TD_DEFINE_MATH(floor)
TD_DEFINE_MATH(ceil)
TD_DEFINE_MATH(rint)
#undef TD_DEFINE_MATH
TD_HD float td_math_normal_below(float x)
{
    return 0.5f * erfcf(x * -0.70710678f);
}
TD_HD double td_math_normal_below(double x)
{
    return 0.5 * erfc(x * -0.70710678118654752440);
}
TD_HD float td_math_pow(float x, float p)
{
    return powf(x, p);
}
TD_HD double td_math_pow(double x, double p)
{
    return pow(x, p);
}

TD_HD float td_fma(float a, float b, float c)
{
    return fmaf(a, b, c);
}
TD_HD double td_fma(double a, double b, double c)
{
    return fma(a, b, c);
}
#define FMA(a, b, c) td_fma(a, b, c)

/* ---- several elements that lie side by side, moved in one access ---- */

template <class S, int N> struct alignas(sizeof(S) * N) td_pack {
    S at[N];
};

/* Elements in 16 bytes, the widest access. f64 is for checking, and has one kernel, not two. */
template <class S> struct td_lanes {
    enum { count = 16 / sizeof(S) };
};
template <> struct td_lanes<double> {
    enum { count = 1 };
};

template <int N, class S> __device__ static inline td_pack<S, N> td_load_pack(const S *from)
{
    return *(const td_pack<S, N> *)from;
}
template <int N, class S>
__device__ static inline void td_store_pack(S *to, const td_pack<S, N> &pack)
{
    *(td_pack<S, N> *)to = pack;
}

/* Whether packs of so many bytes can be read from an address (NULL: nothing is read). */
static inline bool td_aligned(const void *address, size_t bytes)
{
    return (uintptr_t)address % bytes == 0;
}

/* Whether an index is in [0, limit): those that users give are checked later. */
__device__ static inline bool td_is_within(int64_t index, int64_t limit)
{
    return (uint64_t)index < (uint64_t)limit;
}

/* ---- walks ---- */

/* i / d, neither negative: nvcc makes it a division of 32 bits wherever the numbers allow that. */
__device__ static inline int64_t td_divide(int64_t i, int64_t d)
{
    return (int64_t)((uint64_t)i / (uint64_t)d);
}

/* The places of element i of a walk in its first N operands. */
template <int N>
__device__ static inline void td_cuda_places(const td_cuda_walk &walk, int64_t i, int64_t *place)
{
    for (int k = 0; k < N; k++) {
        place[k] = 0;
    }
    for (int d = walk.ndim - 1; d > 0 && i > 0; d--) { /* two ends: it is not unrolled */
        int64_t size = walk.shape[d], outer = td_divide(i, size);
        int64_t index = i - outer * size;
        for (int k = 0; k < N; k++) {
            place[k] += index * walk.stride[k][d];
        }
        i = outer;
    }
    for (int k = 0; k < N; k++) {
        place[k] += i * walk.stride[k][0];
    }
}

/* Makes a walk one over packs of `lanes` elements, if all operands allow it: along the last
 * dimension they are dense, or stand still (the first one is dense). widest: the bytes of the
 * largest pack. What is left of a single dimension goes into *tail. */
static inline bool td_cuda_walk_in_packs(td_cuda_walk *walk, int operands,
                                         const void *const *memory, int lanes, size_t widest,
                                         int *tail)
{
    int last = walk->ndim - 1;
    bool fits = walk->stride[0][last] == 1 && walk->count >= lanes &&
                (last == 0 || walk->shape[last] % lanes == 0);
    for (int k = 0; k < operands; k++) {
        int64_t inner = walk->stride[k][last];
        bool moves = inner != 0;
        fits = fits && (inner == 0 || inner == 1) && (!moves || td_aligned(memory[k], widest));
        for (int d = 0; d < last; d++) {
            fits = fits && (!moves || walk->stride[k][d] % lanes == 0);
        }
    }
    *tail = 0;
    if (!fits) {
        return false;
    }
    for (int k = 0; k < operands; k++) {
        walk->stride[k][last] *= lanes;
    }
    *tail = last == 0 ? (int)(walk->count % lanes) : 0;
    walk->shape[last] /= lanes;
    walk->count /= lanes;
    return true;
}

/* ---- sums ---- */

/* The sum over the 32 lanes of a warp, in all of them. */
template <class T> __device__ static inline T td_warp_sum(T value)
{
    for (int by = 16; by > 0; by /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, by);
    }
    return value;
}

/* The largest; NaN is larger than all. */
template <class T> TD_HD T td_larger(T a, T b)
{
    return b > a || b != b ? b : a;
}
template <class T> __device__ static inline T td_warp_max(T value)
{
    for (int by = 16; by > 0; by /= 2) {
        value = td_larger(value, __shfl_xor_sync(0xffffffffu, value, by));
    }
    return value;
}

struct td_adding {
    template <class T> __device__ T operator()(T a, T b) const
    {
        return a + b;
    }
};
struct td_taking_larger {
    template <class T> __device__ T operator()(T a, T b) const
    {
        return td_larger(a, b);
    }
};

/* What the warps have, value by value, put together in their order, in all threads. */
template <int WARPS, class T, class F> __device__ static inline T td_block_all(T value, F both)
{
    if (WARPS > 1) {
        __shared__ T part[WARPS];
        if (threadIdx.x % 32 == 0) {
            part[threadIdx.x / 32] = value;
        }
        __syncthreads();
        value = part[0];
        for (int w = 1; w < WARPS; w++) {
            value = both(value, part[w]);
        }
        __syncthreads();
    }
    return value;
}

/* The sum, or the largest, over WARPS warps of a block (blockDim.x = 32 WARPS, one-dimensional), in
 * all threads. Every thread must come. */
template <int WARPS, class T> __device__ static inline T td_block_sum(T value)
{
    return td_block_all<WARPS>(td_warp_sum(value), td_adding());
}
template <int WARPS, class T> __device__ static inline T td_block_max(T value)
{
    return td_block_all<WARPS>(td_warp_max(value), td_taking_larger());
}

/* Whether a block is the last of `blocks` that count themselves here; it sees what the others have
 * written before. All threads come. The counter is 0 again after the last block. */
__device__ static inline bool td_is_last_block(unsigned *counter, int64_t blocks)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned others = (unsigned)blocks - 1;
        last = atomicInc(counter, others) == others;
    }
    __syncthreads();
    __threadfence();
    return last;
}

/* Blocks that fill a large GPU a few times over; kernels walk on from there. */
enum { TD_CUDA_THREADS = 256, TD_CUDA_MOST_BLOCKS = 132 * 16 };
