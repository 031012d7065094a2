/* Kernels along one dimension. Where what is added up must have one order, a thread does a line. */
#include "tensor/cuda/compute.cuh"
#include "tensor/cuda/launch_lines.h"

static unsigned lines_blocks_for(int64_t count)
{
    return td_blocks(count, TD_CUDA_THREADS, TD_CUDA_MOST_BLOCKS);
}

template <class W>
__global__ void gather(td_cuda_walk walk, W *y, const int64_t *index, const W *x, int64_t limit,
                       int64_t stride)
{
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < walk.count; i += TD_WALK_STEP) {
        int64_t place[3];
        td_cuda_places<3>(walk, i, place);
        int64_t from = index[place[1]];
        y[place[0]] = td_is_within(from, limit) ? x[place[2] + from * stride] : (W)-1;
    }
}

extern "C" void td_cuda_launch_gather(td_dtype dtype, void *y, const int64_t *index, const void *x,
                                      int64_t limit, int64_t stride, td_cuda_walk walk,
                                      cudaStream_t stream)
{
#define LAUNCH(W)                                                                                  \
    TD_LAUNCH((gather<W>), lines_blocks_for(walk.count), TD_CUDA_THREADS, stream, walk, (W *)y,    \
              index, (const W *)x, limit, stride)
    TD_CUDA_FOR_SIZE(dtype, LAUNCH)
#undef LAUNCH
}

template <class T>
__global__ void scatter_add(td_cuda_line line, T *y, const T *x, const int64_t *index,
                            int64_t limit)
{
    TD_ROLLED
    for (int64_t l = TD_WALK_BEGIN; l < line.walk.count; l += TD_WALK_STEP) {
        int64_t at[3];
        td_cuda_places<3>(line.walk, l, at);
        for (int64_t i = 0; i < line.n; i++) {
            int64_t to = index[at[2] + i * line.stride[2]];
            if (td_is_within(to, limit)) {
                y[at[0] + to * line.stride[0]] += x[at[1] + i * line.stride[1]];
            }
        }
    }
}

extern "C" void td_cuda_launch_scatter_add(const td_cuda_line *line, void *y, const void *x,
                                           const int64_t *index, int64_t limit, cudaStream_t stream)
{
    unsigned blocks = lines_blocks_for(line->walk.count);
    if (line->dtype == TD_F32) {
        TD_LAUNCH((scatter_add<float>), blocks, TD_CUDA_THREADS, stream, *line, (float *)y,
                  (const float *)x, index, limit);
    } else {
        TD_LAUNCH((scatter_add<double>), blocks, TD_CUDA_THREADS, stream, *line, (double *)y,
                  (const double *)x, index, limit);
    }
}

/* U: what is added up in. */
template <class T, class U>
__global__ void cumsum(td_cuda_line line, T *y, const T *x, bool backwards)
{
    TD_ROLLED
    for (int64_t l = TD_WALK_BEGIN; l < line.walk.count; l += TD_WALK_STEP) {
        int64_t at[2];
        td_cuda_places<2>(line.walk, l, at);
        U sum = 0;
        for (int64_t i = 0; i < line.n; i++) {
            int64_t k = backwards ? line.n - 1 - i : i;
            sum += (U)x[at[1] + k * line.stride[1]];
            y[at[0] + k * line.stride[0]] = (T)sum;
        }
    }
}

extern "C" void td_cuda_launch_cumsum(const td_cuda_line *line, void *y, const void *x,
                                      bool backwards, cudaStream_t stream)
{
    unsigned blocks = lines_blocks_for(line->walk.count);
#define LAUNCH(T, U)                                                                               \
    TD_LAUNCH((cumsum<T, U>), blocks, TD_CUDA_THREADS, stream, *line, (T *)y, (const T *)x,        \
              backwards)
    if (line->dtype == TD_F32) {
        LAUNCH(float, double);
    } else if (line->dtype == TD_F64) {
        LAUNCH(double, double);
    } else if (line->dtype == TD_I64) {
        LAUNCH(int64_t, uint64_t);
    } else {
        LAUNCH(int32_t, uint32_t);
    }
#undef LAUNCH
}

template <class T> __global__ void prod(td_cuda_line line, T *y, const T *x)
{
    TD_ROLLED
    for (int64_t l = TD_WALK_BEGIN; l < line.walk.count; l += TD_WALK_STEP) {
        int64_t at[2];
        td_cuda_places<2>(line.walk, l, at);
        double product = 1.0;
        for (int64_t i = 0; i < line.n; i++) {
            product *= x[at[1] + i * line.stride[1]];
        }
        y[at[0]] = (T)product;
    }
}

/* dy times the product of all others: of those before, then of those behind. */
template <class T> __global__ void prod_grad(td_cuda_line line, T *dx, const T *dy, const T *x)
{
    TD_ROLLED
    for (int64_t l = TD_WALK_BEGIN; l < line.walk.count; l += TD_WALK_STEP) {
        int64_t at[3];
        td_cuda_places<3>(line.walk, l, at);
        double product = dy[at[1]];
        for (int64_t i = 0; i < line.n; i++) {
            dx[at[0] + i * line.stride[0]] = (T)product;
            product *= x[at[2] + i * line.stride[2]];
        }
        product = 1.0;
        for (int64_t i = line.n - 1; i >= 0; i--) {
            T *to = dx + at[0] + i * line.stride[0];
            *to = (T)(*to * product);
            product *= x[at[2] + i * line.stride[2]];
        }
    }
}

extern "C" void td_cuda_launch_prod(const td_cuda_line *line, void *y, const void *x,
                                    cudaStream_t stream)
{
    unsigned blocks = lines_blocks_for(line->walk.count);
    if (line->dtype == TD_F32) {
        TD_LAUNCH((prod<float>), blocks, TD_CUDA_THREADS, stream, *line, (float *)y,
                  (const float *)x);
    } else {
        TD_LAUNCH((prod<double>), blocks, TD_CUDA_THREADS, stream, *line, (double *)y,
                  (const double *)x);
    }
}

extern "C" void td_cuda_launch_prod_grad(const td_cuda_line *line, void *dx, const void *dy,
                                         const void *x, cudaStream_t stream)
{
    unsigned blocks = lines_blocks_for(line->walk.count);
    if (line->dtype == TD_F32) {
        TD_LAUNCH((prod_grad<float>), blocks, TD_CUDA_THREADS, stream, *line, (float *)dx,
                  (const float *)dy, (const float *)x);
    } else {
        TD_LAUNCH((prod_grad<double>), blocks, TD_CUDA_THREADS, stream, *line, (double *)dx,
                  (const double *)dy, (const double *)x);
    }
}

/* A thread an element: its place is the number of those that come before it. */
template <class T>
__global__ void argsort(td_cuda_line line, int64_t *index, const T *x, bool descending)
{
    TD_ROLLED
    for (int64_t e = TD_WALK_BEGIN; e < line.walk.count * line.n; e += TD_WALK_STEP) {
        int64_t at[2], l = td_divide(e, line.n), i = e - l * line.n, rank = 0;
        td_cuda_places<2>(line.walk, l, at);
        T own = x[at[1] + i * line.stride[1]];
        bool odd = own != own;
        for (int64_t j = 0; j < line.n; j++) {
            T other = x[at[1] + j * line.stride[1]];
            bool other_odd = other != other;
            bool same = other == own || (odd && other_odd);
            bool larger = other > own || (other_odd && !odd);
            rank += same ? j < i : larger == descending;
        }
        index[at[0] + rank * line.stride[0]] = i;
    }
}

extern "C" void td_cuda_launch_argsort(const td_cuda_line *line, int64_t *index, const void *x,
                                       bool descending, cudaStream_t stream)
{
    unsigned blocks = lines_blocks_for(line->walk.count * line->n);
#define LAUNCH(T)                                                                                  \
    TD_LAUNCH((argsort<T>), blocks, TD_CUDA_THREADS, stream, *line, index, (const T *)x, descending)
    if (line->dtype == TD_F32) {
        LAUNCH(float);
    } else if (line->dtype == TD_F64) {
        LAUNCH(double);
    } else if (line->dtype == TD_I64) {
        LAUNCH(int64_t);
    } else if (line->dtype == TD_I32) {
        LAUNCH(int32_t);
    } else {
        LAUNCH(uint8_t);
    }
#undef LAUNCH
}

template <class W>
__global__ void triangle(td_cuda_line line, W *y, const W *x, int64_t rows, int64_t diagonal,
                         bool upper)
{
    TD_ROLLED
    for (int64_t e = TD_WALK_BEGIN; e < line.walk.count * line.n; e += TD_WALK_STEP) {
        int64_t at[2], l = td_divide(e, line.n), i = e - l * line.n;
        td_cuda_places<2>(line.walk, l, at);
        int64_t edge = l % rows + diagonal;
        bool inside = upper ? i >= edge : i <= edge;
        y[at[0] + i * line.stride[0]] = inside ? x[at[1] + i * line.stride[1]] : (W)0;
    }
}

extern "C" void td_cuda_launch_triangle(const td_cuda_line *line, void *y, const void *x,
                                        int64_t rows, int64_t diagonal, bool upper,
                                        cudaStream_t stream)
{
    unsigned blocks = lines_blocks_for(line->walk.count * line->n);
#define LAUNCH(W)                                                                                  \
    TD_LAUNCH((triangle<W>), blocks, TD_CUDA_THREADS, stream, *line, (W *)y, (const W *)x, rows,   \
              diagonal, upper)
    TD_CUDA_FOR_SIZE(line->dtype, LAUNCH)
#undef LAUNCH
}
