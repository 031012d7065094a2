/* Operations on elements: tensor/elementwise.def's, y += alpha x. Memory decides their speed: where
 * the operands allow it, a thread takes 16 bytes at a time. Which formula it is, is asked for each
 * pack, which costs nothing beside memory and keeps the number of kernels small. */
#include "tensor/cuda/compute.cuh"
#include "tensor/cuda/launch_elements.h"
#include "tensor/kernel_types.h"

/* Up to three inputs of the result's type. */
template <class S> struct inputs {
    const S *at[3];
};

/* y = f(y, inputs) over a walk. V > 1: the walk counts packs of V elements, and behind them come
 * `tail` single ones. An operand that stands still along the last dimension has stride 0 there. */
template <class S, class F, int V>
__global__ void elements(F f, td_cuda_walk walk, int tail, S *y, inputs<S> in)
{
    typedef typename td_computed<S>::type T;
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < walk.count; i += TD_WALK_STEP) {
        int64_t place[F::INPUTS + 1];
        td_cuda_places<F::INPUTS + 1>(walk, i, place);
        td_pack<S, V> x[F::INPUTS], out;
        for (int k = 0; k < F::INPUTS; k++) {
            if (V == 1 || walk.stride[k + 1][walk.ndim - 1] != 0) {
                x[k] = td_load_pack<V>(in.at[k] + place[k + 1]);
            } else {
                for (int v = 0; v < V; v++) {
                    x[k].at[v] = in.at[k][place[k + 1]];
                }
            }
        }
        if (f.reads_y) {
            out = td_load_pack<V>(y + place[0]);
        }
        for (int v = 0; v < V; v++) {
            T a[3] = { 0, 0, 0 };
            for (int k = 0; k < F::INPUTS; k++) {
                a[k] = td_get(x[k].at[v]);
            }
            T old = f.reads_y ? td_get(out.at[v]) : (T)0;
            out.at[v] = td_put<S>(f(old, a[0], a[1], a[2]));
        }
        td_store_pack<V>(y + place[0], out);
    }
    if (V > 1 && TD_WALK_BEGIN < tail) {
        int64_t at = walk.count * V + TD_WALK_BEGIN;
        T a[3] = { 0, 0, 0 };
        for (int k = 0; k < F::INPUTS; k++) {
            a[k] = td_get(in.at[k][walk.stride[k + 1][0] != 0 ? at : 0]);
        }
        y[at] = td_put<S>(f(f.reads_y ? td_get(y[at]) : (T)0, a[0], a[1], a[2]));
    }
}

template <class S, class F>
static void launch(F f, td_cuda_walk walk, S *y, inputs<S> in, cudaStream_t stream)
{
    enum { V = td_lanes<S>::count };
    const void *memory[F::INPUTS + 1] = { y };
    for (int k = 0; k < F::INPUTS; k++) {
        memory[k + 1] = in.at[k];
    }
    int tail = 0;
    if (td_cuda_walk_in_packs(&walk, F::INPUTS + 1, memory, V, 16, &tail)) {
        unsigned blocks = td_blocks(walk.count, TD_CUDA_THREADS, TD_CUDA_MOST_BLOCKS);
        TD_LAUNCH((elements<S, F, V>), blocks, TD_CUDA_THREADS, stream, f, walk, tail, y, in);
        return;
    }
    unsigned blocks = td_blocks(walk.count, TD_CUDA_THREADS, TD_CUDA_MOST_BLOCKS);
    TD_LAUNCH((elements<S, F, 1>), blocks, TD_CUDA_THREADS, stream, f, walk, 0, y, in);
}

/* ---- the functions: f(what is in y, inputs...) ---- */

template <class T> struct unary_value {
    enum { INPUTS = 1 };
    int op;
    T p, q;
    bool reads_y;
    __device__ T operator()(T, T x, T, T) const
    {
        switch (op) {
#define TD_UNARY(NAME, READS, VALUE, SLOPE)                                                        \
    case TD_UNARY_##NAME:                                                                          \
        return VALUE;
#include "tensor/elementwise.def"
        }
        return x;
    }
};

template <class T> struct unary_slope {
    enum { INPUTS = 3 };
    int op;
    T p, q;
    bool reads_y; /* and adds to it */
    __device__ T slope(T x, T y) const
    {
        (void)x, (void)y;
        switch (op) {
#define TD_UNARY(NAME, READS, VALUE, SLOPE)                                                        \
    case TD_UNARY_##NAME:                                                                          \
        return SLOPE;
#include "tensor/elementwise.def"
        }
        return x;
    }
    __device__ T operator()(T old, T dy, T x, T y) const
    {
        T result = dy * slope(x, y);
        return reads_y ? old + result : result;
    }
};

template <class T> struct binary_value {
    enum { INPUTS = 2 };
    int op;
    bool reads_y;
    __device__ T operator()(T, T a, T b, T) const
    {
        switch (op) {
#define TD_BINARY(NAME, VALUE, GRAD_A, READS_A, GRAD_B, READS_B)                                   \
    case TD_BINARY_##NAME:                                                                         \
        return VALUE;
#include "tensor/elementwise.def"
        }
        return a;
    }
};

/* op: of b's gradient, TD_BINARY_COUNT more. */
template <class T> struct binary_gradient {
    enum { INPUTS = 3 };
    int op;
    bool reads_y;
    __device__ T operator()(T, T g, T a, T b) const
    {
        switch (op) {
#define TD_BINARY(NAME, VALUE, GRAD_A, READS_A, GRAD_B, READS_B)                                   \
    case TD_BINARY_##NAME:                                                                         \
        return GRAD_A;                                                                             \
    case TD_BINARY_##NAME + TD_BINARY_COUNT:                                                       \
        return GRAD_B;
#include "tensor/elementwise.def"
        }
        return g;
    }
};

template <class T> struct scaled_sum {
    enum { INPUTS = 1 };
    T alpha;
    bool reads_y;
    __device__ T operator()(T old, T x, T, T) const
    {
        return FMA(alpha, x, old);
    }
};

/* ---- launches ---- */

extern "C" void td_cuda_launch_unary(int op, td_dtype dtype, void *y, const void *x, double p,
                                     double q, td_cuda_walk walk, cudaStream_t stream)
{
#define LAUNCH(S)                                                                                  \
    {                                                                                              \
        typedef typename td_computed<S>::type T;                                                   \
        unary_value<T> f = { op, (T)p, (T)q, false };                                              \
        inputs<S> in = { { (const S *)x } };                                                       \
        launch<S>(f, walk, (S *)y, in, stream);                                                    \
    }
    TD_CUDA_FOR_FLOAT(dtype, LAUNCH)
#undef LAUNCH
}

extern "C" void td_cuda_launch_unary_grad(int op, td_dtype dtype, void *dx, const void *dy,
                                          const void *x, const void *y, double p, double q,
                                          bool accumulate, td_cuda_walk walk, cudaStream_t stream)
{
#define LAUNCH(S)                                                                                  \
    {                                                                                              \
        typedef typename td_computed<S>::type T;                                                   \
        unary_slope<T> f = { op, (T)p, (T)q, accumulate };                                         \
        inputs<S> in = { { (const S *)dy, (const S *)x, (const S *)y } };                          \
        launch<S>(f, walk, (S *)dx, in, stream);                                                   \
    }
    TD_CUDA_FOR_FLOAT(dtype, LAUNCH)
#undef LAUNCH
}

extern "C" void td_cuda_launch_binary_grad(int op, int input, td_dtype dtype, void *dx,
                                           const void *g, const void *a, const void *b,
                                           td_cuda_walk walk, cudaStream_t stream)
{
#define LAUNCH(S)                                                                                  \
    {                                                                                              \
        typedef typename td_computed<S>::type T;                                                   \
        binary_gradient<T> f = { op + input * TD_BINARY_COUNT, false };                            \
        inputs<S> in = { { (const S *)g, (const S *)a, (const S *)b } };                           \
        launch<S>(f, walk, (S *)dx, in, stream);                                                   \
    }
    TD_CUDA_FOR_FLOAT(dtype, LAUNCH)
#undef LAUNCH
}

/* ---- integers, comparisons, choices: one element at a time ---- */

template <class I> __device__ static inline I integer_value(int op, I a, I b)
{
    switch (op) {
#define TD_INTEGER(NAME, VALUE)                                                                    \
    case TD_BINARY_##NAME:                                                                         \
        return (I)(VALUE);
#include "tensor/elementwise.def"
    }
    return a;
}

template <class I>
__global__ void binary_integers(int op, td_cuda_walk walk, I *y, const I *a, const I *b)
{
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < walk.count; i += TD_WALK_STEP) {
        int64_t place[3];
        td_cuda_places<3>(walk, i, place);
        y[place[0]] = integer_value<I>(op, a[place[1]], b[place[2]]);
    }
}

template <class T> __device__ static inline bool compared(int op, T a, T b)
{
    switch (op) {
#define TD_COMPARE(NAME, WHETHER)                                                                  \
    case TD_COMPARE_##NAME:                                                                        \
        return WHETHER;
#include "tensor/elementwise.def"
    }
    return false;
}

template <class S>
__global__ void compare(int op, td_cuda_walk walk, uint8_t *y, const S *a, const S *b)
{
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < walk.count; i += TD_WALK_STEP) {
        int64_t place[3];
        td_cuda_places<3>(walk, i, place);
        y[place[0]] = compared(op, td_get(a[place[1]]), td_get(b[place[2]]));
    }
}

/* W: a word of the element's size. a, b NULL: zeros. */
template <class W>
__global__ void choose(td_cuda_walk walk, W *y, const uint8_t *condition, const W *a, const W *b)
{
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < walk.count; i += TD_WALK_STEP) {
        int64_t place[4];
        td_cuda_places<4>(walk, i, place);
        bool first = condition[place[1]] != 0;
        const W *from = first ? a : b;
        y[place[0]] = from != NULL ? from[place[first ? 2 : 3]] : (W)0;
    }
}

static unsigned blocks_for(const td_cuda_walk &walk)
{
    return td_blocks(walk.count, TD_CUDA_THREADS, TD_CUDA_MOST_BLOCKS);
}

extern "C" void td_cuda_launch_binary(int op, td_dtype dtype, void *y, const void *a, const void *b,
                                      td_cuda_walk walk, cudaStream_t stream)
{
#define LAUNCH(S)                                                                                  \
    {                                                                                              \
        typedef typename td_computed<S>::type T;                                                   \
        binary_value<T> f = { op, false };                                                         \
        inputs<S> in = { { (const S *)a, (const S *)b } };                                         \
        launch<S>(f, walk, (S *)y, in, stream);                                                    \
    }
    TD_CUDA_FOR_FLOAT(dtype, LAUNCH)
#undef LAUNCH
#define LAUNCH(I)                                                                                  \
    TD_LAUNCH((binary_integers<I>), blocks_for(walk), TD_CUDA_THREADS, stream, op, walk, (I *)y,   \
              (const I *)a, (const I *)b)
    if (dtype == TD_I64) {
        LAUNCH(int64_t);
    } else if (dtype == TD_I32) {
        LAUNCH(int32_t);
    } else if (dtype == TD_U8) {
        LAUNCH(uint8_t);
    }
#undef LAUNCH
}

extern "C" void td_cuda_launch_compare(int op, td_dtype dtype, uint8_t *y, const void *a,
                                       const void *b, td_cuda_walk walk, cudaStream_t stream)
{
#define LAUNCH(S)                                                                                  \
    TD_LAUNCH((compare<S>), blocks_for(walk), TD_CUDA_THREADS, stream, op, walk, y, (const S *)a,  \
              (const S *)b)
    TD_CUDA_FOR_DTYPE(dtype, LAUNCH)
#undef LAUNCH
}

extern "C" void td_cuda_launch_where(td_dtype dtype, void *y, const uint8_t *condition,
                                     const void *a, const void *b, td_cuda_walk walk,
                                     cudaStream_t stream)
{
#define LAUNCH(W)                                                                                  \
    TD_LAUNCH((choose<W>), blocks_for(walk), TD_CUDA_THREADS, stream, walk, (W *)y, condition,     \
              (const W *)a, (const W *)b)
    size_t size = td_cuda_dtype_size(dtype);
    if (size == 1) {
        LAUNCH(uint8_t);
    } else if (size == 2) {
        LAUNCH(uint16_t);
    } else if (size == 4) {
        LAUNCH(uint32_t);
    } else {
        LAUNCH(uint64_t);
    }
#undef LAUNCH
}

/* Integers: overflow wraps around. */
template <class I>
__global__ void axpy_integers(td_cuda_walk walk, I *y, uint64_t factor, const I *x)
{
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < walk.count; i += TD_WALK_STEP) {
        int64_t place[2];
        td_cuda_places<2>(walk, i, place);
        y[place[0]] = (I)((uint64_t)y[place[0]] + factor * (uint64_t)x[place[1]]);
    }
}

extern "C" void td_cuda_launch_axpy(td_dtype dtype, void *y, double alpha, const void *x,
                                    td_cuda_walk walk, cudaStream_t stream)
{
#define LAUNCH(S)                                                                                  \
    {                                                                                              \
        typedef typename td_computed<S>::type T;                                                   \
        scaled_sum<T> f = { (T)alpha, true };                                                      \
        inputs<S> in = { { (const S *)x } };                                                       \
        launch<S>(f, walk, (S *)y, in, stream);                                                    \
    }
    if (td_is_float(dtype)) {
        TD_CUDA_FOR_FLOAT(dtype, LAUNCH)
        return;
    }
#undef LAUNCH
    uint64_t factor = (uint64_t)td_put<int64_t>(alpha);
    unsigned blocks = td_blocks(walk.count, TD_CUDA_THREADS, TD_CUDA_MOST_BLOCKS);
#define LAUNCH(I)                                                                                  \
    TD_LAUNCH((axpy_integers<I>), blocks, TD_CUDA_THREADS, stream, walk, (I *)y, factor,           \
              (const I *)x)
    if (dtype == TD_I64) {
        LAUNCH(int64_t);
    } else if (dtype == TD_I32) {
        LAUNCH(int32_t);
    } else {
        LAUNCH(uint8_t);
    }
#undef LAUNCH
}
