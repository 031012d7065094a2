/* Convolutions with few channels a group (depthwise): a thread for each result, neighbours taking
 * neighbouring channels. For those a tile of a product would be nearly empty. */
#include "tensor/cuda/products.cuh"

enum { NARROW = 8 };

extern "C" bool td_cuda_conv_is_narrow(const td_cuda_own_conv *c)
{
    return c->groups > 1 && (c->ic / c->groups <= NARROW || c->oc / c->groups <= NARROW);
}

/* Element i of images with `channels`, channels fastest. */
struct element_place {
    int64_t n, channel, h, w;
};

__device__ static inline element_place find_element(int64_t i, int64_t channels, int64_t height,
                                                    int64_t width)
{
    element_place e;
    int64_t pixel = td_divide(i, channels), row = td_divide(pixel, width);
    e.channel = i - pixel * channels;
    e.w = pixel - row * width;
    e.n = td_divide(row, height);
    e.h = row - e.n * height;
    return e;
}

template <class T> __global__ void conv_narrow(td_cuda_own_conv c)
{
    int64_t in = c.ic / c.groups, out = c.oc / c.groups, count = c.n * c.oc * c.oh * c.ow;
    const int64_t *xs = c.x.stride, *ws = c.w.stride, *ys = c.y.stride;
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < count; i += TD_WALK_STEP) {
        element_place y = find_element(i, c.oc, c.oh, c.ow);
        int64_t first = td_divide(y.channel, out) * in;
        T sum = 0;
        for (int64_t kh = 0; kh < c.kh; kh++) {
            int64_t h = y.h * c.stride[0] - c.pad[0] + kh * c.dilation[0];
            for (int64_t kw = 0; kw < c.kw; kw++) {
                int64_t w = y.w * c.stride[1] - c.pad[1] + kw * c.dilation[1];
                if (h < 0 || h >= c.ih || w < 0 || w >= c.iw) {
                    continue;
                }
                for (int64_t k = 0; k < in; k++) {
                    T x = td_load_as<T>(c.x,
                                        y.n * xs[0] + (first + k) * xs[1] + h * xs[2] + w * xs[3]);
                    T f =
                        td_load_as<T>(c.w, y.channel * ws[0] + k * ws[1] + kh * ws[2] + kw * ws[3]);
                    sum = FMA(x, f, sum);
                }
            }
        }
        if (c.bias.at) {
            sum += td_load_as<T>(c.bias, y.channel * c.bias.stride[0]);
        }
        td_store_as<T>(c.y, y.n * ys[0] + y.channel * ys[1] + y.h * ys[2] + y.w * ys[3],
                       c.accumulate, sum);
    }
}

template <class T> __global__ void conv_narrow_grad_input(td_cuda_own_conv c)
{
    int64_t in = c.ic / c.groups, out = c.oc / c.groups, count = c.n * c.ic * c.ih * c.iw;
    const int64_t *xs = c.x.stride, *ws = c.w.stride, *ys = c.y.stride;
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < count; i += TD_WALK_STEP) {
        element_place x = find_element(i, c.ic, c.ih, c.iw);
        int64_t group = td_divide(x.channel, in), within = x.channel - group * in;
        T sum = 0;
        for (int64_t kh = 0; kh < c.kh; kh++) {
            int64_t h = x.h + c.pad[0] - kh * c.dilation[0], oh = h / c.stride[0];
            for (int64_t kw = 0; kw < c.kw; kw++) {
                int64_t w = x.w + c.pad[1] - kw * c.dilation[1], ow = w / c.stride[1];
                if (h < 0 || w < 0 || oh * c.stride[0] != h || ow * c.stride[1] != w ||
                    oh >= c.oh || ow >= c.ow) {
                    continue;
                }
                for (int64_t o = group * out; o < (group + 1) * out; o++) {
                    T dy = td_load_as<T>(c.y, x.n * ys[0] + o * ys[1] + oh * ys[2] + ow * ys[3]);
                    T f = td_load_as<T>(c.w, o * ws[0] + within * ws[1] + kh * ws[2] + kw * ws[3]);
                    sum = FMA(dy, f, sum);
                }
            }
        }
        td_store_as<T>(c.x, x.n * xs[0] + x.channel * xs[1] + x.h * xs[2] + x.w * xs[3],
                       c.accumulate, sum);
    }
}

enum { FILTERS = 32, MEMBERS = TD_CUDA_THREADS / FILTERS };

/* A block: FILTERS filters at one place of theirs, over one segment of the pixels; MEMBERS threads
 * share a result. blockIdx.x counts tiles of filters, then places, then segments. */
template <class T>
__global__ void __launch_bounds__(TD_CUDA_THREADS) conv_narrow_grad_weight(td_cuda_own_conv c)
{
    __shared__ double part[MEMBERS][FILTERS];
    int64_t in = c.ic / c.groups, out = c.oc / c.groups, places = in * c.kh * c.kw;
    int64_t tiles = (c.oc + FILTERS - 1) / FILTERS, block = blockIdx.x;
    int64_t tile = block % tiles, place = block / tiles % places, segment = block / tiles / places;
    int64_t o = tile * FILTERS + threadIdx.x % FILTERS;
    int member = (int)threadIdx.x / FILTERS, mine = (int)threadIdx.x % FILTERS;
    int64_t kw = place % c.kw, kh = place / c.kw % c.kh, k = place / c.kw / c.kh;
    int64_t pixels = c.n * c.oh * c.ow, end = (segment + 1) * c.cut.segment;
    const int64_t *xs = c.x.stride, *ys = c.y.stride, *ws = c.w.stride;
    end = end < pixels ? end : pixels;
    double sum = 0;
    for (int64_t i = segment * c.cut.segment + member; o < c.oc && i < end; i += MEMBERS) {
        int64_t row = td_divide(i, c.ow), ow = i - row * c.ow, n = td_divide(row, c.oh);
        int64_t oh = row - n * c.oh;
        int64_t h = oh * c.stride[0] - c.pad[0] + kh * c.dilation[0];
        int64_t w = ow * c.stride[1] - c.pad[1] + kw * c.dilation[1];
        if (h < 0 || h >= c.ih || w < 0 || w >= c.iw) {
            continue;
        }
        int64_t channel = td_divide(o, out) * in + k;
        T x = td_load_as<T>(c.x, n * xs[0] + channel * xs[1] + h * xs[2] + w * xs[3]);
        T dy = td_load_as<T>(c.y, n * ys[0] + o * ys[1] + oh * ys[2] + ow * ys[3]);
        sum += (double)x * (double)dy;
    }
    part[member][mine] = sum;
    __syncthreads();
    if (member > 0 || o >= c.oc) {
        return;
    }
    for (int other = 1; other < MEMBERS; other++) {
        sum += part[other][mine];
    }
    if (c.cut.segments > 1) {
        c.cut.partial[(segment * places + place) * c.oc + o] = sum;
    } else {
        td_store_as<double>(c.w, o * ws[0] + k * ws[1] + kh * ws[2] + kw * ws[3], c.accumulate,
                            sum);
    }
}

__global__ void add_segments_of_narrow(td_cuda_own_conv c)
{
    int64_t places = c.ic / c.groups * c.kh * c.kw, results = c.oc * places;
    const int64_t *ws = c.w.stride;
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < results; i += TD_WALK_STEP) {
        double sum = 0;
        for (int64_t s = 0; s < c.cut.segments; s++) {
            sum += c.cut.partial[s * results + i];
        }
        int64_t place = i / c.oc, o = i - place * c.oc;
        int64_t kw = place % c.kw, kh = place / c.kw % c.kh, k = place / c.kw / c.kh;
        td_store_as<double>(c.w, o * ws[0] + k * ws[1] + kh * ws[2] + kw * ws[3], c.accumulate,
                            sum);
    }
}

#define LAUNCH(KERNEL, c, blocks)                                                                  \
    if ((c)->y.dtype == TD_F64) {                                                                  \
        TD_LAUNCH((KERNEL<double>), blocks, TD_CUDA_THREADS, stream, *(c));                        \
    } else {                                                                                       \
        TD_LAUNCH((KERNEL<float>), blocks, TD_CUDA_THREADS, stream, *(c));                         \
    }

extern "C" void td_cuda_launch_conv_narrow(const td_cuda_own_conv *c, cudaStream_t stream)
{
    unsigned blocks =
        td_blocks(c->n * c->oc * c->oh * c->ow, TD_CUDA_THREADS, 8 * TD_CUDA_MOST_BLOCKS);
    LAUNCH(conv_narrow, c, blocks)
}

extern "C" void td_cuda_launch_conv_narrow_grad_input(const td_cuda_own_conv *c,
                                                      cudaStream_t stream)
{
    unsigned blocks =
        td_blocks(c->n * c->ic * c->ih * c->iw, TD_CUDA_THREADS, 8 * TD_CUDA_MOST_BLOCKS);
    LAUNCH(conv_narrow_grad_input, c, blocks)
}

extern "C" void td_cuda_launch_conv_narrow_grad_weight(const td_cuda_own_conv *c,
                                                       cudaStream_t stream)
{
    int64_t places = c->ic / c->groups * c->kh * c->kw;
    unsigned blocks = (unsigned)((c->oc + FILTERS - 1) / FILTERS * places * c->cut.segments);
    LAUNCH(conv_narrow_grad_weight, c, blocks)
    if (c->cut.segments > 1) {
        unsigned adders = td_blocks(c->oc * places, TD_CUDA_THREADS, TD_CUDA_MOST_BLOCKS);
        TD_LAUNCH((add_segments_of_narrow), adders, TD_CUDA_THREADS, stream, *c);
    }
}
