/* Pooling of images, [N][H][W][C]: a thread for each pack of channels of each pixel. The gradients
 * go the other way round: a pixel of the input gathers from the windows that it lies in, so nothing
 * is written twice and sums have one order. */
#include "tensor/cuda/compute.cuh"
#include "tensor/cuda/launch_pool.h"

/* A pack of channels of a pixel of images with `height` x `width` pixels. */
struct pixel_of {
    int64_t n, h, w, channel;
};

__device__ static inline pixel_of find_pixel(int64_t i, int64_t packs, int lanes, int64_t height,
                                             int64_t width)
{
    pixel_of p;
    p.channel = i % packs * lanes;
    i /= packs;
    p.w = i % width;
    i /= width;
    p.h = i % height;
    p.n = i / height;
    return p;
}

/* ---- forward ---- */

template <class S, int V>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
    max_pool(td_cuda_pool p, void *yv, uint8_t *index, const void *xv)
{
    typedef typename td_computed<S>::type T;
    int64_t packs = p.c / V, count = p.n * p.oh * p.ow * packs;
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < count; i += TD_WALK_STEP) {
        pixel_of out = find_pixel(i, packs, V, p.oh, p.ow);
        T best[V];
        td_pack<uint8_t, V> where;
        bool any = false;
        for (int v = 0; v < V; v++) {
            best[v] = -(T)INFINITY;
            where.at[v] = 0;
        }
        for (int kh = 0; kh < p.window.kernel[0]; kh++) {
            int64_t h = out.h * p.window.stride[0] - p.window.pad[0] + kh;
            for (int kw = 0; kw < p.window.kernel[1]; kw++) {
                int64_t w = out.w * p.window.stride[1] - p.window.pad[1] + kw;
                if (h < 0 || h >= p.h || w < 0 || w >= p.w) {
                    continue;
                }
                td_pack<S, V> x = td_load_pack<V>(
                    (const S *)xv + ((out.n * p.h + h) * p.w + w) * p.c + out.channel);
                for (int v = 0; v < V; v++) {
                    T value = td_get(x.at[v]);
                    bool takes = !any || TD_POOL_TAKES(value, best[v]);
                    best[v] = takes ? value : best[v];
                    where.at[v] = takes ? (uint8_t)(kh * p.window.kernel[1] + kw) : where.at[v];
                }
                any = true;
            }
        }
        td_pack<S, V> y;
        for (int v = 0; v < V; v++) {
            y.at[v] = td_put<S>(best[v]);
        }
        td_store_pack<V>((S *)yv + i * V, y);
        if (index) {
            td_store_pack<V>(index + i * V, where);
        }
    }
}

/* The part [begin, end) of a window along one side that lies in the image, padding of `beyond`
 * places included: pixels of the image. */
__device__ static inline void window_of(const td_cuda_pool &p, int side, int64_t out, int64_t size,
                                        int64_t beyond, int64_t *begin, int64_t *end)
{
    int64_t first = out * p.window.stride[side] - p.window.pad[side];
    int64_t last = first + p.window.kernel[side];
    *begin = first < -beyond ? -beyond : first;
    *end = last < size + beyond ? last : size + beyond;
}

/* How many places along one side an average counts: PyTorch's rule is that padding counts if it is
 * asked for, but not what the last window has beyond it. */
__device__ static inline int64_t places(const td_cuda_pool &p, int side, int64_t out, int64_t size)
{
    int64_t begin, end;
    window_of(p, side, out, size, p.window.count_include_pad ? p.window.pad[side] : 0, &begin,
              &end);
    return end > begin ? end - begin : 0;
}

__device__ static inline double share(const td_cuda_pool &p, int64_t oh, int64_t ow)
{
    return 1.0 / ((double)places(p, 0, oh, p.h) * (double)places(p, 1, ow, p.w));
}

template <class S, int V>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
    avg_pool(td_cuda_pool p, void *yv, const void *xv)
{
    typedef typename td_computed<S>::type T;
    int64_t packs = p.c / V, count = p.n * p.oh * p.ow * packs;
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < count; i += TD_WALK_STEP) {
        pixel_of out = find_pixel(i, packs, V, p.oh, p.ow);
        T sum[V], weight = (T)share(p, out.h, out.w);
        for (int v = 0; v < V; v++) {
            sum[v] = 0;
        }
        int64_t h0, h1, w0, w1;
        window_of(p, 0, out.h, p.h, 0, &h0, &h1);
        window_of(p, 1, out.w, p.w, 0, &w0, &w1);
        for (int64_t h = h0; h < h1; h++) {
            for (int64_t w = w0; w < w1; w++) {
                td_pack<S, V> x = td_load_pack<V>(
                    (const S *)xv + ((out.n * p.h + h) * p.w + w) * p.c + out.channel);
                for (int v = 0; v < V; v++) {
                    sum[v] = FMA(weight, td_get(x.at[v]), sum[v]);
                }
            }
        }
        td_pack<S, V> y;
        for (int v = 0; v < V; v++) {
            y.at[v] = td_put<S>(sum[v]);
        }
        td_store_pack<V>((S *)yv + i * V, y);
    }
}

/* ---- gradients ---- */

/* The windows [begin, end) along one side that a pixel lies in. */
__device__ static inline void windows_of(const td_cuda_pool &p, int side, int64_t pixel,
                                         int64_t count, int64_t *begin, int64_t *end)
{
    int stride = p.window.stride[side], pad = p.window.pad[side];
    int64_t from = pixel + pad - p.window.kernel[side] + 1; /* where the first may start */
    *begin = from <= 0 ? 0 : (from + stride - 1) / stride;
    *end = (pixel + pad) / stride + 1;
    *end = *end < count ? *end : count;
}

/* index NULL: average pooling. */
template <class S, int V>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
    pool_grad(td_cuda_pool p, void *dxv, const void *dyv, const uint8_t *index, bool accumulate)
{
    typedef typename td_computed<S>::type T;
    int64_t packs = p.c / V, count = p.n * p.h * p.w * packs;
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < count; i += TD_WALK_STEP) {
        pixel_of in = find_pixel(i, packs, V, p.h, p.w);
        T sum[V];
        for (int v = 0; v < V; v++) {
            sum[v] = 0;
        }
        int64_t h0, h1, w0, w1;
        windows_of(p, 0, in.h, p.oh, &h0, &h1);
        windows_of(p, 1, in.w, p.ow, &w0, &w1);
        for (int64_t oh = h0; oh < h1; oh++) {
            TD_ROLLED
            for (int64_t ow = w0; ow < w1; ow++) {
                int64_t at = ((in.n * p.oh + oh) * p.ow + ow) * p.c + in.channel;
                td_pack<S, V> dy = td_load_pack<V>((const S *)dyv + at);
                if (!index) {
                    T weight = (T)share(p, oh, ow);
                    for (int v = 0; v < V; v++) {
                        sum[v] = FMA(weight, td_get(dy.at[v]), sum[v]);
                    }
                    continue;
                }
                int64_t kh = in.h + p.window.pad[0] - oh * p.window.stride[0];
                int64_t kw = in.w + p.window.pad[1] - ow * p.window.stride[1];
                int place = (int)(kh * p.window.kernel[1] + kw);
                td_pack<uint8_t, V> chosen = td_load_pack<V>(index + at);
                for (int v = 0; v < V; v++) {
                    sum[v] += chosen.at[v] == place ? td_get(dy.at[v]) : (T)0;
                }
            }
        }
        td_pack<S, V> dx;
        if (accumulate) {
            dx = td_load_pack<V>((const S *)dxv + i * V);
        }
        for (int v = 0; v < V; v++) {
            dx.at[v] = td_put<S>(accumulate ? td_get(dx.at[v]) + sum[v] : sum[v]);
        }
        td_store_pack<V>((S *)dxv + i * V, dx);
    }
}

/* ---- launches ---- */

/* Starts KERNEL<S, V>, one thread for each pack of `pixels`; a, b: the images. */
#define LAUNCH_AS(S, KERNEL, pixels, a, b, index, ...)                                             \
    {                                                                                              \
        enum { V = td_lanes<S>::count };                                                           \
        bool packs =                                                                               \
            pool->c % V == 0 && td_aligned(a, 16) && td_aligned(b, 16) && td_aligned(index, V);    \
        int64_t count = (pixels)*pool->c / (packs ? V : 1);                                        \
        unsigned blocks = td_blocks(count, TD_CUDA_THREADS, 8 * TD_CUDA_MOST_BLOCKS);              \
        if (packs) {                                                                               \
            TD_LAUNCH((KERNEL<S, V>), blocks, TD_CUDA_THREADS, stream, *pool, __VA_ARGS__);        \
        } else {                                                                                   \
            TD_LAUNCH((KERNEL<S, 1>), blocks, TD_CUDA_THREADS, stream, *pool, __VA_ARGS__);        \
        }                                                                                          \
    }

extern "C" void td_cuda_launch_max_pool(const td_cuda_pool *pool, void *y, uint8_t *index,
                                        const void *x, cudaStream_t stream)
{
#define LAUNCH(S) LAUNCH_AS(S, max_pool, pool->n * pool->oh * pool->ow, x, y, index, y, index, x)
    TD_CUDA_FOR_FLOAT(pool->dtype, LAUNCH)
#undef LAUNCH
}

extern "C" void td_cuda_launch_avg_pool(const td_cuda_pool *pool, void *y, const void *x,
                                        cudaStream_t stream)
{
#define LAUNCH(S) LAUNCH_AS(S, avg_pool, pool->n * pool->oh * pool->ow, x, y, NULL, y, x)
    TD_CUDA_FOR_FLOAT(pool->dtype, LAUNCH)
#undef LAUNCH
}

#define LAUNCH(S)                                                                                  \
    LAUNCH_AS(S, pool_grad, pool->n * pool->h * pool->w, dx, dy, index, dx, dy, index, accumulate)
extern "C" void td_cuda_launch_max_pool_grad(const td_cuda_pool *pool, void *dx, const void *dy,
                                             const uint8_t *index, bool accumulate,
                                             cudaStream_t stream)
{
    TD_CUDA_FOR_FLOAT(pool->dtype, LAUNCH)
}

extern "C" void td_cuda_launch_avg_pool_grad(const td_cuda_pool *pool, void *dx, const void *dy,
                                             bool accumulate, cudaStream_t stream)
{
    const uint8_t *index = NULL;
    TD_CUDA_FOR_FLOAT(pool->dtype, LAUNCH)
}
#undef LAUNCH
