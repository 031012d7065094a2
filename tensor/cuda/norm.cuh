/* For norm.cu, norm_grad.cu and layer_norm.cu: how threads share a matrix (td_cuda_matrix), and
 * sums over its rows. */
#pragma once

#include "tensor/cuda/compute.cuh"
#include "tensor/cuda/launch_norm.h"

/* Where a thread works: its first channel, its rows begin, begin + step, ... below end. */
struct matrix_share {
    int member; /* of the threads that share a pack of channels */
    int members;
    int64_t channel; /* >= channels: nothing to do */
    int64_t begin, end;
    int64_t chunk; /* its number */
};

__device__ static inline matrix_share share_of(const td_cuda_matrix &m)
{
    matrix_share s;
    s.member = (int)threadIdx.x / m.wide;
    s.members = TD_CUDA_THREADS / m.wide;
    s.chunk = blockIdx.x / m.tiles;
    int64_t pack = blockIdx.x % m.tiles * m.wide + threadIdx.x % m.wide;
    s.channel = pack * m.lanes;
    s.begin = s.chunk * m.chunk + s.member;
    s.end = (s.chunk + 1) * m.chunk;
    s.end = s.end < m.rows ? s.end : m.rows;
    return s;
}

__device__ static inline double channel_or(const td_cuda_channel &from, int64_t c, double otherwise)
{
    if (!from.at) {
        return otherwise;
    }
    return from.f64 ? ((const double *)from.at)[c * from.stride]
                    : (double)((const float *)from.at)[c * from.stride];
}
__device__ static inline void set_channel(const td_cuda_channel &to, int64_t c, double value)
{
    if (to.f64) {
        ((double *)to.at)[c * to.stride] = value;
    } else {
        ((float *)to.at)[c * to.stride] = (float)value;
    }
}

/* (+)= value, if the tensor is there. */
__device__ static inline void put_channel(const td_cuda_channel &to, int64_t c, bool accumulate,
                                          double value)
{
    if (to.at) {
        set_channel(to, c, value + (accumulate ? channel_or(to, c, 0) : 0));
    }
}

/* V values of type T, per channel. */
template <int V, class T>
__device__ static inline void load_channels(T *to, const void *from, int64_t channel)
{
    for (int v = 0; v < V; v++) {
        to[v] = ((const T *)from)[channel + v];
    }
}
template <int V, class T>
__device__ static inline void load_channels(T *to, const td_cuda_channel &from, int64_t channel)
{
    for (int v = 0; v < V; v++) {
        to[v] = (T)channel_or(from, channel + v, 0);
    }
}

/* N rows of a thread's pack of channels, the first of them r; `behind` where the share has ended.
 * All loads are under way before the first is waited for. */
template <int N, int V, class S>
__device__ static inline void load_rows(td_pack<S, V> *to, const void *from,
                                        const td_cuda_matrix &m, const matrix_share &s, int64_t r,
                                        const td_pack<S, V> &behind)
{
    for (int i = 0; i < N; i++) {
        int64_t row = r + i * s.members;
        to[i] = behind;
        if (row < s.end) {
            to[i] = td_load_pack<V>((const S *)from + row * m.channels + s.channel);
        }
    }
}

enum {
    TILE_CHANNELS = 64, /* the most that a block is wide */
    FEW_ROWS = 8        /* that a thread adds up in T: what is subtracted later may leave little */
};

/* Adds up V values a thread in a[0] and a[1] over all rows: over the members of a block, and, in
 * the last block of a tile, over the blocks; both in a fixed order, whichever block is the last.
 * true in the threads that have the two totals of a channel then. All threads come. */
struct channel_totals {
    int64_t channel;
    double of[2];
};
template <int V>
__device__ static inline bool add_sums(channel_totals *all, const td_cuda_matrix &m,
                                       const matrix_share &s, const td_cuda_sums &sums,
                                       const double (*a)[V])
{
    __shared__ double part[2 * V][TD_CUDA_THREADS];
    for (int k = 0; k < 2 * V; k++) {
        part[k][threadIdx.x] = a[k / V][k % V];
    }
    for (int half = s.members / 2; half > 0; half /= 2) {
        __syncthreads();
        if (s.member < half) {
            for (int k = 0; k < 2 * V; k++) {
                part[k][threadIdx.x] += part[k][threadIdx.x + half * m.wide];
            }
        }
    }
    if (s.member == 0 && s.channel < m.channels) {
        for (int k = 0; k < 2 * V; k++) {
            double *row = sums.partial + (2 * s.chunk + k / V) * m.channels;
            row[s.channel + k % V] = part[k][threadIdx.x];
        }
    }
    if (!td_is_last_block(&sums.counters[blockIdx.x % m.tiles], m.chunks)) {
        return false;
    }
    /* Now a thread has one column of the tile's chunks: of both sums, channel by channel. */
    int tile = m.wide * V, columns = 2 * tile, members = TD_CUDA_THREADS / columns;
    int column = (int)threadIdx.x % columns, member = (int)threadIdx.x / columns;
    int64_t first = blockIdx.x % m.tiles * tile, channel = first + column % tile;
    const double *from = sums.partial + column / tile * m.channels + channel;
    double sum = 0;
    if (channel < m.channels) {
        TD_UNROLLED(8)
        for (int64_t chunk = member; chunk < m.chunks; chunk += members) {
            sum += from[2 * chunk * m.channels];
        }
    }
    double *total = &part[0][0];
    total[threadIdx.x] = sum;
    for (int half = members / 2; half > 0; half /= 2) {
        __syncthreads();
        if (member < half) {
            total[threadIdx.x] += total[threadIdx.x + half * columns];
        }
    }
    __syncthreads();
    all->channel = first + threadIdx.x;
    all->of[0] = total[threadIdx.x % tile];
    all->of[1] = total[threadIdx.x % tile + tile];
    return (int)threadIdx.x < tile && all->channel < m.channels;
}

/* Starts KERNEL<S, V> for a matrix. */
#define TD_CUDA_LAUNCH_MATRIX(KERNEL, m, stream, ...)                                              \
    {                                                                                              \
        unsigned blocks = (unsigned)((m)->tiles * (m)->chunks);                                    \
        if ((m)->dtype == TD_F32 && (m)->lanes > 1) {                                              \
            TD_LAUNCH((KERNEL<float, 4>), blocks, TD_CUDA_THREADS, stream, *(m), __VA_ARGS__);     \
        } else if ((m)->dtype == TD_F32) {                                                         \
            TD_LAUNCH((KERNEL<float, 1>), blocks, TD_CUDA_THREADS, stream, *(m), __VA_ARGS__);     \
        } else if ((m)->dtype == TD_BF16 && (m)->lanes > 1) {                                      \
            TD_LAUNCH((KERNEL<__nv_bfloat16, 4>), blocks, TD_CUDA_THREADS, stream, *(m),           \
                      __VA_ARGS__);                                                                \
        } else if ((m)->dtype == TD_BF16) {                                                        \
            TD_LAUNCH((KERNEL<__nv_bfloat16, 1>), blocks, TD_CUDA_THREADS, stream, *(m),           \
                      __VA_ARGS__);                                                                \
        } else if ((m)->dtype == TD_F16 && (m)->lanes > 1) {                                       \
            TD_LAUNCH((KERNEL<__half, 4>), blocks, TD_CUDA_THREADS, stream, *(m), __VA_ARGS__);    \
        } else if ((m)->dtype == TD_F16) {                                                         \
            TD_LAUNCH((KERNEL<__half, 1>), blocks, TD_CUDA_THREADS, stream, *(m), __VA_ARGS__);    \
        } else {                                                                                   \
            TD_LAUNCH((KERNEL<double, 1>), blocks, TD_CUDA_THREADS, stream, *(m), __VA_ARGS__);    \
        }                                                                                          \
    }
