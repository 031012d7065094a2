/* Operations on elements: tensor/kernels/elementwise.def's, y += alpha x. Memory decides their
 * speed: where the operands allow it, a thread takes 16 bytes at a time. Which formula it is, is
 * asked for each pack, which costs nothing beside memory and keeps the number of kernels small. */
#include "tensor/cuda/compute.cuh"
#include "tensor/cuda/launch_elements.h"

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
static void elements_launch(F f, td_cuda_walk walk, S *y, inputs<S> in, cudaStream_t stream)
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

/* ---- the functions: f(what is in y, inputs...). T is the type that is computed in ---- */

template <class T> struct element_function {
    int op;
    T p, q;
    bool reads_y; /* and adds to it */
    explicit element_function(const td_cuda_elements &job)
        : op(job.op), p((T)job.p), q((T)job.q), reads_y(job.accumulate)
    {
    }
};

template <class T> struct unary_value : element_function<T> {
    enum { INPUTS = 1 };
    using element_function<T>::element_function;
    using element_function<T>::p;
    using element_function<T>::q;
    __device__ T operator()(T, T x, T, T) const
    {
        switch (this->op) {
#define TD_UNARY(NAME, READS, VALUE, SLOPE)                                                        \
    case TD_UNARY_##NAME:                                                                          \
        return VALUE;
#include "tensor/kernels/elementwise.def"
        }
        return x;
    }
};

template <class T> struct unary_slope : element_function<T> {
    enum { INPUTS = 3 };
    using element_function<T>::element_function;
    using element_function<T>::p;
    using element_function<T>::q;
    __device__ T slope(T x, T y) const
    {
        (void)x, (void)y;
        switch (this->op) {
#define TD_UNARY(NAME, READS, VALUE, SLOPE)                                                        \
    case TD_UNARY_##NAME:                                                                          \
        return SLOPE;
#include "tensor/kernels/elementwise.def"
        }
        return x;
    }
    __device__ T operator()(T old, T dy, T x, T y) const
    {
        T result = dy * slope(x, y);
        return this->reads_y ? old + result : result;
    }
};

template <class T> struct binary_value : element_function<T> {
    enum { INPUTS = 2 };
    using element_function<T>::element_function;
    __device__ T operator()(T, T a, T b, T) const
    {
        switch (this->op) {
#define TD_BINARY(NAME, VALUE, GRAD_A, READS_A, GRAD_B, READS_B)                                   \
    case TD_BINARY_##NAME:                                                                         \
        return VALUE;
#include "tensor/kernels/elementwise.def"
        }
        return a;
    }
};

/* op: of b's gradient, TD_BINARY_COUNT more. */
template <class T> struct binary_gradient : element_function<T> {
    enum { INPUTS = 3 };
    using element_function<T>::element_function;
    __device__ T operator()(T, T g, T a, T b) const
    {
        switch (this->op) {
#define TD_BINARY(NAME, VALUE, GRAD_A, READS_A, GRAD_B, READS_B)                                   \
    case TD_BINARY_##NAME:                                                                         \
        return GRAD_A;                                                                             \
    case TD_BINARY_##NAME + TD_BINARY_COUNT:                                                       \
        return GRAD_B;
#include "tensor/kernels/elementwise.def"
        }
        return g;
    }
};

/* p: the factor. */
template <class T> struct scaled_sum : element_function<T> {
    enum { INPUTS = 1 };
    using element_function<T>::element_function;
    __device__ T operator()(T old, T x, T, T) const
    {
        return FMA(this->p, x, old);
    }
};

/* FUNCTION over floats. */
template <template <class> class FUNCTION>
static void launch_floats(const td_cuda_elements &job, cudaStream_t stream)
{
#define LAUNCH(S)                                                                                  \
    {                                                                                              \
        FUNCTION<typename td_computed<S>::type> f(job);                                            \
        inputs<S> in = { { (const S *)job.in[0], (const S *)job.in[1], (const S *)job.in[2] } };   \
        elements_launch<S>(f, job.walk, (S *)job.y, in, stream);                                   \
    }
    TD_CUDA_FOR_FLOAT(job.dtype, LAUNCH)
#undef LAUNCH
}

/* ---- integers, comparisons, choices: one element at a time ---- */

template <class I> __device__ static inline I integer_value(int op, I a, I b)
{
    switch (op) {
#define TD_INTEGER(NAME, VALUE)                                                                    \
    case TD_BINARY_##NAME:                                                                         \
        return (I)(VALUE);
#include "tensor/kernels/elementwise.def"
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
#include "tensor/kernels/elementwise.def"
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
__global__ void choose(const uint8_t *condition, td_cuda_walk walk, W *y, const W *a, const W *b)
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

/* Overflow wraps around. */
template <class I>
__global__ void axpy_integers(uint64_t factor, td_cuda_walk walk, I *y, const I *x)
{
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < walk.count; i += TD_WALK_STEP) {
        int64_t place[2];
        td_cuda_places<2>(walk, i, place);
        y[place[0]] = (I)((uint64_t)y[place[0]] + factor * (uint64_t)x[place[1]]);
    }
}

/* ---- launches ---- */

/* A kernel that takes one element at a time: KERNEL(first, walk, y, in[0], ...). */
#define LAUNCH_WALK(KERNEL, first, ...)                                                            \
    TD_LAUNCH(KERNEL, td_blocks(job.walk.count, TD_CUDA_THREADS, TD_CUDA_MOST_BLOCKS),             \
              TD_CUDA_THREADS, stream, first, job.walk, __VA_ARGS__)

/* Runs DO(type) for the C++ type of an integer dtype. */
#define FOR_INTEGER(dtype, DO)                                                                     \
    if (dtype == TD_I64) {                                                                         \
        DO(int64_t);                                                                               \
    } else if (dtype == TD_I32) {                                                                  \
        DO(int32_t);                                                                               \
    } else {                                                                                       \
        DO(uint8_t);                                                                               \
    }

static void launch_binary_integers(const td_cuda_elements &job, cudaStream_t stream)
{
#define LAUNCH(I)                                                                                  \
    LAUNCH_WALK((binary_integers<I>), job.op, (I *)job.y, (const I *)job.in[0],                    \
                (const I *)job.in[1])
    FOR_INTEGER(job.dtype, LAUNCH)
#undef LAUNCH
}

static void launch_axpy_integers(const td_cuda_elements &job, cudaStream_t stream)
{
    uint64_t factor = (uint64_t)td_put<int64_t>(job.p);
#define LAUNCH(I) LAUNCH_WALK((axpy_integers<I>), factor, (I *)job.y, (const I *)job.in[0])
    FOR_INTEGER(job.dtype, LAUNCH)
#undef LAUNCH
}

static void launch_compare(const td_cuda_elements &job, cudaStream_t stream)
{
#define LAUNCH(S)                                                                                  \
    LAUNCH_WALK((compare<S>), job.op, (uint8_t *)job.y, (const S *)job.in[0], (const S *)job.in[1])
    TD_CUDA_FOR_DTYPE(job.dtype, LAUNCH)
#undef LAUNCH
}

static void launch_choose(const td_cuda_elements &job, cudaStream_t stream)
{
#define LAUNCH(W)                                                                                  \
    LAUNCH_WALK((choose<W>), (const uint8_t *)job.in[0], (W *)job.y, (const W *)job.in[1],         \
                (const W *)job.in[2])
    TD_CUDA_FOR_SIZE(job.dtype, LAUNCH)
#undef LAUNCH
}

extern "C" void td_cuda_launch_elements(const td_cuda_elements *job, cudaStream_t stream)
{
    bool floats = td_is_float(job->dtype);
    switch (job->kind) {
    case TD_CUDA_UNARY:
        return launch_floats<unary_value>(*job, stream);
    case TD_CUDA_UNARY_GRAD:
        return launch_floats<unary_slope>(*job, stream);
    case TD_CUDA_BINARY:
        return floats ? launch_floats<binary_value>(*job, stream)
                      : launch_binary_integers(*job, stream);
    case TD_CUDA_BINARY_GRAD:
        return launch_floats<binary_gradient>(*job, stream);
    case TD_CUDA_AXPY:
        return floats ? launch_floats<scaled_sum>(*job, stream)
                      : launch_axpy_integers(*job, stream);
    case TD_CUDA_COMPARE:
        return launch_compare(*job, stream);
    case TD_CUDA_WHERE:
        return launch_choose(*job, stream);
    }
}
