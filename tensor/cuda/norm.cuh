/* For norm.cu and norm_grad.cu: how threads share a matrix (td_cuda_matrix). */
#ifndef TD_TENSOR_CUDA_NORM_CUH
#define TD_TENSOR_CUDA_NORM_CUH

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

/* Adds up, over the members of each pack, V values a thread in a[0] and a[1], in a fixed order; the
 * sums go to partial[chunk][0] and [1]. All threads come. */
template <int V>
__device__ static inline void store_sums(const td_cuda_matrix &m, const matrix_share &s,
                                         double *partial, const double (*a)[V])
{
    __shared__ double part[2][V][TD_CUDA_THREADS];
    for (int k = 0; k < 2; k++) {
        for (int v = 0; v < V; v++) {
            part[k][v][threadIdx.x] = a[k][v];
        }
    }
    for (int half = s.members / 2; half > 0; half /= 2) {
        __syncthreads();
        if (s.member < half) {
            for (int k = 0; k < 2; k++) {
                for (int v = 0; v < V; v++) {
                    part[k][v][threadIdx.x] += part[k][v][threadIdx.x + half * m.wide];
                }
            }
        }
    }
    if (s.member == 0 && s.channel < m.channels) {
        for (int k = 0; k < 2; k++) {
            for (int v = 0; v < V; v++) {
                partial[(2 * s.chunk + k) * m.channels + s.channel + v] = part[k][v][threadIdx.x];
            }
        }
    }
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
            TD_LAUNCH((KERNEL<__nv_bfloat16, 8>), blocks, TD_CUDA_THREADS, stream, *(m),           \
                      __VA_ARGS__);                                                                \
        } else if ((m)->dtype == TD_BF16) {                                                        \
            TD_LAUNCH((KERNEL<__nv_bfloat16, 1>), blocks, TD_CUDA_THREADS, stream, *(m),           \
                      __VA_ARGS__);                                                                \
        } else if ((m)->dtype == TD_F16 && (m)->lanes > 1) {                                       \
            TD_LAUNCH((KERNEL<__half, 8>), blocks, TD_CUDA_THREADS, stream, *(m), __VA_ARGS__);    \
        } else if ((m)->dtype == TD_F16) {                                                         \
            TD_LAUNCH((KERNEL<__half, 1>), blocks, TD_CUDA_THREADS, stream, *(m), __VA_ARGS__);    \
        } else {                                                                                   \
            TD_LAUNCH((KERNEL<double, 1>), blocks, TD_CUDA_THREADS, stream, *(m), __VA_ARGS__);    \
        }                                                                                          \
    }

#endif
