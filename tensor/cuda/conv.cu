/* Convolutions by own kernels: products of pixels and filters (implicit GEMM). With G groups, each
 * with its own channels; blockIdx.y is the group:
 *   forward:     y[pixel, o]  = sum over (tap, c) of x[pixel + tap, c] w[o, c, tap]
 *   grad_input:  dx[pixel, c] = sum over (tap, o) of dy[pixel - tap, o] w[o, c, tap]
 *   grad_weight: dw[o, (tap, c)] = sum over pixels of dy[pixel, o] x[pixel + tap, c] */
#include "tensor/cuda/products.cuh"

/* The pixel with number i of images: its place in the first channel of an operand, and its own. */
struct pixel_line {
    int64_t at; /* negative: outside */
    int64_t n, h, w;
};

__device__ static inline pixel_line find_pixel(int64_t i, int64_t images, int64_t height,
                                               int64_t width)
{
    pixel_line p = { -1, 0, 0, 0 };
    if (i < images * height * width) {
        int64_t row = td_divide(i, width);
        p.at = 0;
        p.w = i - row * width;
        p.n = td_divide(row, height);
        p.h = row - p.n * height;
    }
    return p;
}

/* k counts taps, and within a tap `channels`. */
struct tap_of {
    int64_t kh, kw, channel;
};

__device__ static inline tap_of find_tap(int64_t k, int64_t channels, int64_t kernel_width)
{
    tap_of t;
    int64_t tap = td_divide(k, channels);
    t.channel = k - tap * channels;
    t.kh = td_divide(tap, kernel_width);
    t.kw = tap - t.kh * kernel_width;
    return t;
}

__device__ static inline int64_t x_row(const td_cuda_own_conv &c, int64_t oh, int64_t kh)
{
    return oh * c.stride[0] - c.pad[0] + kh * c.dilation[0];
}
__device__ static inline int64_t x_column(const td_cuda_own_conv &c, int64_t ow, int64_t kw)
{
    return ow * c.stride[1] - c.pad[1] + kw * c.dilation[1];
}

/* x[pixel of y + tap, c]; 0 in the padding. */
template <class T>
__device__ static inline T x_at(const td_cuda_own_conv &c, const pixel_line &p, int64_t channel,
                                int64_t kh, int64_t kw)
{
    int64_t h = x_row(c, p.h, kh), w = x_column(c, p.w, kw);
    if (p.at < 0 || h < 0 || h >= c.ih || w < 0 || w >= c.iw) {
        return 0;
    }
    const int64_t *s = c.x.stride;
    return td_load_as<T>(c.x, p.n * s[0] + channel * s[1] + h * s[2] + w * s[3]);
}

/* ---- forward ---- */

template <class T> struct forward_pixels {
    enum { K_FAST = 1 };
    td_cuda_own_conv c;
    int64_t channels, first; /* of the group */
    typedef pixel_line line;
    __device__ line prepare(int64_t i) const
    {
        return find_pixel(i, c.n, c.oh, c.ow);
    }
    __device__ T get(const line &p, int64_t k) const
    {
        tap_of t = find_tap(k, channels, c.kw);
        return x_at<T>(c, p, first + t.channel, t.kh, t.kw);
    }
};

template <class T> struct forward_filters {
    enum { K_FAST = 1 };
    td_cuda_own_conv c;
    int64_t channels, filters, first;
    struct line {
        int64_t at;
    };
    __device__ line prepare(int64_t i) const
    {
        line l = { i < filters ? (first + i) * c.w.stride[0] : -1 };
        return l;
    }
    __device__ T get(const line &l, int64_t k) const
    {
        tap_of t = find_tap(k, channels, c.kw);
        const int64_t *s = c.w.stride;
        return l.at < 0 ? (T)0
                        : td_load_as<T>(c.w, l.at + t.channel * s[1] + t.kh * s[2] + t.kw * s[3]);
    }
};

template <class T> __global__ void __launch_bounds__(TD_CUDA_THREADS) conv(td_cuda_own_conv c)
{
    int64_t in = c.ic / c.groups, out = c.oc / c.groups;
    tile_place at = td_find_tile(c.n * c.oh * c.ow, out);
    for (int64_t g = blockIdx.y; g < c.groups; g += gridDim.y) {
        forward_pixels<T> pixels = { c, in, g * in };
        forward_filters<T> filters = { c, in, out, g * out };
        T sum[EACH][EACH], bias[EACH];
        td_load_bias<T>(bias, c.bias, g * out, at.column, out);
        td_multiply_tile<T>(sum, pixels, filters, at.tile_row, at.tile_column, 0, in * c.kh * c.kw);
        TD_ROLLED_F64
        for (int i = 0; i < EACH; i++) {
            pixel_line p = find_pixel(at.row + i, c.n, c.oh, c.ow);
            for (int j = 0; j < EACH; j++) {
                if (p.at < 0 || at.column + j >= out) {
                    continue;
                }
                int64_t o = g * out + at.column + j;
                T value = sum[i][j];
                if (c.bias.at) {
                    value += bias[j];
                }
                const int64_t *s = c.y.stride;
                td_store_as<T>(c.y, p.n * s[0] + o * s[1] + p.h * s[2] + p.w * s[3], c.accumulate,
                               value);
            }
        }
    }
}

/* ---- the gradient of the input ---- */

template <class T> struct backward_pixels {
    enum { K_FAST = 1 };
    td_cuda_own_conv c;
    int64_t filters, first;
    typedef pixel_line line;
    __device__ line prepare(int64_t i) const
    {
        return find_pixel(i, c.n, c.ih, c.iw);
    }
    __device__ T get(const line &p, int64_t k) const
    {
        tap_of t = find_tap(k, filters, c.kw);
        int64_t h = p.h + c.pad[0] - t.kh * c.dilation[0];
        int64_t w = p.w + c.pad[1] - t.kw * c.dilation[1];
        if (p.at < 0 || h < 0 || w < 0) {
            return 0;
        }
        int64_t oh = td_divide(h, c.stride[0]), ow = td_divide(w, c.stride[1]);
        if (oh * c.stride[0] != h || ow * c.stride[1] != w || oh >= c.oh || ow >= c.ow) {
            return 0;
        }
        const int64_t *s = c.y.stride;
        return td_load_as<T>(c.y, p.n * s[0] + (first + t.channel) * s[1] + oh * s[2] + ow * s[3]);
    }
};

template <class T> struct backward_filters {
    enum { K_FAST = 0 };
    td_cuda_own_conv c;
    int64_t channels, filters, first;
    struct line {
        int64_t at;
    };
    __device__ line prepare(int64_t i) const
    {
        line l = { i < channels ? i * c.w.stride[1] : -1 };
        return l;
    }
    __device__ T get(const line &l, int64_t k) const
    {
        tap_of t = find_tap(k, filters, c.kw);
        const int64_t *s = c.w.stride;
        return l.at < 0 ? (T)0
                        : td_load_as<T>(c.w, l.at + (first + t.channel) * s[0] + t.kh * s[2] +
                                                 t.kw * s[3]);
    }
};

template <class T>
__global__ void __launch_bounds__(TD_CUDA_THREADS) conv_grad_input(td_cuda_own_conv c)
{
    int64_t in = c.ic / c.groups, out = c.oc / c.groups;
    tile_place at = td_find_tile(c.n * c.ih * c.iw, in);
    for (int64_t g = blockIdx.y; g < c.groups; g += gridDim.y) {
        backward_pixels<T> pixels = { c, out, g * out };
        backward_filters<T> filters = { c, in, out, g * out };
        T sum[EACH][EACH];
        td_multiply_tile<T>(sum, pixels, filters, at.tile_row, at.tile_column, 0,
                            out * c.kh * c.kw);
        TD_ROLLED_F64
        for (int i = 0; i < EACH; i++) {
            pixel_line p = find_pixel(at.row + i, c.n, c.ih, c.iw);
            for (int j = 0; j < EACH; j++) {
                if (p.at < 0 || at.column + j >= in) {
                    continue;
                }
                const int64_t *s = c.x.stride;
                int64_t channel = g * in + at.column + j;
                td_store_as<T>(c.x, p.n * s[0] + channel * s[1] + p.h * s[2] + p.w * s[3],
                               c.accumulate, sum[i][j]);
            }
        }
    }
}

/* ---- the gradient of the weight ---- */

template <class T> struct weight_filters {
    enum { K_FAST = 0 };
    td_cuda_own_conv c;
    int64_t filters, first;
    struct line {
        int64_t at;
    };
    __device__ line prepare(int64_t i) const
    {
        line l = { i < filters ? (first + i) * c.y.stride[1] : -1 };
        return l;
    }
    __device__ T get(const line &l, int64_t k) const
    {
        pixel_line p = find_pixel(k, c.n, c.oh, c.ow);
        const int64_t *s = c.y.stride;
        return l.at < 0 ? (T)0 : td_load_as<T>(c.y, l.at + p.n * s[0] + p.h * s[2] + p.w * s[3]);
    }
};

template <class T> struct weight_pixels {
    enum { K_FAST = 0 };
    td_cuda_own_conv c;
    int64_t channels, first;
    struct line {
        bool inside;
        tap_of tap;
    };
    __device__ line prepare(int64_t i) const
    {
        line l = { i < channels * c.kh * c.kw, { 0, 0, 0 } };
        if (l.inside) {
            l.tap = find_tap(i, channels, c.kw);
        }
        return l;
    }
    __device__ T get(const line &l, int64_t k) const
    {
        pixel_line p = find_pixel(k, c.n, c.oh, c.ow);
        return l.inside ? x_at<T>(c, p, first + l.tap.channel, l.tap.kh, l.tap.kw) : (T)0;
    }
};

/* The place in w of element (o, j) of a group's product. */
__device__ static inline int64_t weight_place(const td_cuda_own_conv &c, int64_t o, int64_t j)
{
    tap_of t = find_tap(j, c.ic / c.groups, c.kw);
    const int64_t *s = c.w.stride;
    return o * s[0] + t.channel * s[1] + t.kh * s[2] + t.kw * s[3];
}

template <class T>
__global__ void __launch_bounds__(TD_CUDA_THREADS) conv_grad_weight(td_cuda_own_conv c)
{
    int64_t in = c.ic / c.groups, out = c.oc / c.groups, columns = in * c.kh * c.kw;
    int64_t pixels = c.n * c.oh * c.ow;
    tile_place at = td_find_tile(out, columns);
    int64_t begin = at.segment * c.cut.segment;
    int64_t end = begin + c.cut.segment < pixels ? begin + c.cut.segment : pixels;
    for (int64_t g = blockIdx.y; g < c.groups; g += gridDim.y) {
        weight_filters<T> left = { c, out, g * out };
        weight_pixels<T> right = { c, in, g * in };
        T sum[EACH][EACH];
        td_multiply_tile<T>(sum, left, right, at.tile_row, at.tile_column, begin, end);
        TD_ROLLED_F64
        for (int i = 0; i < EACH; i++) {
            for (int j = 0; j < EACH; j++) {
                int64_t o = g * out + at.row + i, column = at.column + j;
                if (at.row + i >= out || column >= columns) {
                    continue;
                }
                if (c.cut.segments > 1) {
                    c.cut.partial[(at.segment * c.oc + o) * columns + column] = (double)sum[i][j];
                } else {
                    td_store_as<T>(c.w, weight_place(c, o, column), c.accumulate, sum[i][j]);
                }
            }
        }
    }
}

__global__ void add_segments_of_conv(td_cuda_own_conv c)
{
    int64_t columns = c.ic / c.groups * c.kh * c.kw, results = c.oc * columns;
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < results; i += TD_WALK_STEP) {
        double sum = 0;
        for (int64_t s = 0; s < c.cut.segments; s++) {
            sum += c.cut.partial[s * results + i];
        }
        int64_t o = td_divide(i, columns);
        td_store_as<double>(c.w, weight_place(c, o, i - o * columns), c.accumulate, sum);
    }
}

/* ---- launches ---- */

#define LAUNCH(KERNEL, c, m, n, segments)                                                          \
    {                                                                                              \
        unsigned groups = (c)->groups < 65535 ? (unsigned)(c)->groups : 65535u;                    \
        dim3 blocks((unsigned)(td_count_tiles(m, n) * (segments)), groups);                        \
        if ((c)->y.dtype == TD_F64) {                                                              \
            TD_LAUNCH((KERNEL<double>), blocks, TD_CUDA_THREADS, stream, *(c));                    \
        } else {                                                                                   \
            TD_LAUNCH((KERNEL<float>), blocks, TD_CUDA_THREADS, stream, *(c));                     \
        }                                                                                          \
    }

extern "C" void td_cuda_launch_conv(const td_cuda_own_conv *c, cudaStream_t stream)
{
    LAUNCH(conv, c, c->n * c->oh * c->ow, c->oc / c->groups, 1)
}

extern "C" void td_cuda_launch_conv_grad_input(const td_cuda_own_conv *c, cudaStream_t stream)
{
    LAUNCH(conv_grad_input, c, c->n * c->ih * c->iw, c->ic / c->groups, 1)
}

extern "C" void td_cuda_launch_conv_grad_weight(const td_cuda_own_conv *c, cudaStream_t stream)
{
    int64_t columns = c->ic / c->groups * c->kh * c->kw;
    LAUNCH(conv_grad_weight, c, c->oc / c->groups, columns, c->cut.segments)
    if (c->cut.segments > 1) {
        unsigned adders = td_blocks(c->oc * columns, TD_CUDA_THREADS, TD_CUDA_MOST_BLOCKS);
        TD_LAUNCH((add_segments_of_conv), adders, TD_CUDA_THREADS, stream, *c);
    }
}
