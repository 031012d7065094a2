/* For the emulated GPU: what .cu files see beyond the runtime's interface. A block's threads are
 * fibers (tests/emulate/blocks.cc), one at a time; __shared__ memory is therefore static memory. */
#pragma once

#include "cuda_runtime_api.h"

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <tuple>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __constant__ static
#define __restrict__ __restrict
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned nx = 1, unsigned ny = 1, unsigned nz = 1) : x(nx), y(ny), z(nz)
    {
    }
};

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static const int warpSize = 32;

/* ---- blocks ---- */

void td_emulate_syncthreads(int line);
#define __syncthreads() td_emulate_syncthreads(__LINE__)
void __syncwarp(unsigned mask = 0xffffffffu);

/* The value that a lane of the caller's warp has given; all lanes in mask must call it. */
uint64_t td_emulate_shuffle(unsigned mask, uint64_t value, int lane);
unsigned td_emulate_lane(void);

template <class T> static T td_emulate_shuffled(unsigned mask, T value, int lane)
{
    uint64_t bits = 0;
    static_assert(sizeof value <= sizeof bits, "shuffles are of up to 8 bytes");
    memcpy(&bits, &value, sizeof value);
    bits = td_emulate_shuffle(mask, bits, lane);
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <class T> static T __shfl_sync(unsigned mask, T value, int lane, int width = 32)
{
    int base = (int)td_emulate_lane() / width * width;
    return td_emulate_shuffled(mask, value, base + lane % width);
}
template <class T> static T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    int lane = (int)td_emulate_lane(), to = lane % width + (int)by;
    return td_emulate_shuffled(mask, value, to < width ? lane + (int)by : lane);
}
template <class T> static T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    int lane = (int)td_emulate_lane(), to = lane % width - (int)by;
    return td_emulate_shuffled(mask, value, to >= 0 ? lane - (int)by : lane);
}
template <class T> static T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32)
{
    int lane = (int)td_emulate_lane(), to = lane ^ by;
    return td_emulate_shuffled(mask, value, to / width == lane / width ? to : lane);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    unsigned votes = 0;
    for (int lane = 0; lane < 32; lane++) {
        if (mask >> lane & 1u) {
            votes |= (unsigned)(td_emulate_shuffle(mask, predicate != 0, lane) & 1u) << lane;
        }
    }
    return votes;
}
static inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}
static inline int __all_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) == mask;
}

/* ---- atomics (one thread runs at a time) ---- */

template <class T> static T atomicAdd(T *at, T value)
{
    T old = *at;
    *at = old + value;
    return old;
}
template <class T> static T atomicMin(T *at, T value)
{
    T old = *at;
    *at = value < old ? value : old;
    return old;
}
template <class T> static T atomicMax(T *at, T value)
{
    T old = *at;
    *at = value > old ? value : old;
    return old;
}
template <class T> static T atomicOr(T *at, T value)
{
    T old = *at;
    *at = old | value;
    return old;
}
template <class T> static T atomicCAS(T *at, T compare, T value)
{
    T old = *at;
    *at = old == compare ? value : old;
    return old;
}
static inline unsigned atomicInc(unsigned *at, unsigned most)
{
    unsigned old = *at;
    *at = old >= most ? 0 : old + 1;
    return old;
}
static inline void __threadfence(void)
{
}

/* ---- arithmetic ---- */

static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline float __uint_as_float(unsigned bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline unsigned __float_as_uint(float value)
{
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
#define TD_EMULATE_ROUNDED(type, letter)                                                           \
    static inline type __##letter##add_rn(type a, type b)                                          \
    {                                                                                              \
        return a + b;                                                                              \
    }                                                                                              \
    static inline type __##letter##mul_rn(type a, type b)                                          \
    {                                                                                              \
        return a * b;                                                                              \
    }
TD_EMULATE_ROUNDED(float, f)
TD_EMULATE_ROUNDED(double, d)
#undef TD_EMULATE_ROUNDED
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}

/* ---- launches ---- */

/* How many blocks a kernel that walks on by its grid gets: `most`, or by chance only one to three,
 * as if the GPU were that small. */
unsigned td_emulate_most_blocks(unsigned most);

/* Puts a grid on a stream: body(arguments) is called for each thread of each block. */
void td_emulate_grid(dim3 blocks, dim3 threads, cudaStream_t stream, void (*body)(void *arguments),
                     const void *arguments, size_t bytes);

template <class... P> struct td_emulate_call {
    void (*kernel)(P...);
    std::tuple<P...> arguments;
    static void run(void *call)
    {
        td_emulate_call *c = (td_emulate_call *)call;
        std::apply(c->kernel, c->arguments);
    }
};

template <class... P, class... A>
static void td_emulate_launch(void (*kernel)(P...), dim3 blocks, dim3 threads, cudaStream_t stream,
                              A... arguments)
{
    td_emulate_call<P...> call = { kernel, std::tuple<P...>((P)arguments...) };
    td_emulate_grid(blocks, threads, stream, td_emulate_call<P...>::run, &call, sizeof call);
}
