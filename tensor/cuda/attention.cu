/* Attention, for what the vendor's library has no plan for: a warp a row, whose lanes share the
 * width of a head. Scores are never stored. Everything that is added up has one order: a warp has
 * the gradient of its query, or of its key and value, for itself, and nothing is added by atomics.
 */
#include "tensor/cuda/compute.cuh"
#include "tensor/cuda/launch_transformer.h"

enum { WARPS = TD_CUDA_THREADS / 32, GROUP = 4 /* keys whose products are under way together */ };

/* The row of a warp: rows of a head are neighbours, and so are their blocks in the caches. */
struct warp_row {
    int64_t batch, head, at;
    int lane;
    bool is_there;
    __device__ warp_row(int64_t batches, int64_t heads, int64_t rows)
    {
        int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, group = td_divide(row, rows);
        at = row - group * rows;
        batch = td_divide(group, heads);
        head = group - batch * heads;
        lane = (int)threadIdx.x % 32;
        is_there = batch < batches;
    }
};

/* A row's elements lane, lane + 32, ...: N of them, of which those behind the width are 0. */
template <class S, int N> struct row_part {
    typedef typename td_computed<S>::type T;
    T at[N];
    __device__ void clear()
    {
        for (int j = 0; j < N; j++) {
            at[j] = 0;
        }
    }
    __device__ void load(const td_cuda_heads &x, int64_t b, int64_t t, int64_t h, int64_t width,
                         int lane)
    {
        const S *from = (const S *)x.memory + b * x.batch + t * x.token + h * x.head;
        for (int j = 0; j < N; j++) {
            at[j] = lane + 32 * j < width ? td_get(from[lane + 32 * j]) : (T)0;
        }
    }
    __device__ void store(const td_cuda_heads &x, int64_t b, int64_t t, int64_t h, int64_t width,
                          int lane, bool accumulate) const
    {
        S *to = (S *)x.memory + b * x.batch + t * x.token + h * x.head;
        for (int j = 0; j < N; j++) {
            if (lane + 32 * j < width) {
                S *here = to + lane + 32 * j;
                *here = td_put<S>(accumulate ? td_get(*here) + at[j] : at[j]);
            }
        }
    }
    __device__ T times(const row_part &other) const
    {
        T sum = 0;
        for (int j = 0; j < N; j++) {
            sum += at[j] * other.at[j];
        }
        return td_warp_sum(sum);
    }
    __device__ void add(T factor, const row_part &other)
    {
        for (int j = 0; j < N; j++) {
            at[j] += factor * other.at[j];
        }
    }
    __device__ void scale(T factor)
    {
        for (int j = 0; j < N; j++) {
            at[j] *= factor;
        }
    }
};

/* Keys that a query reads: [0, keys_of). */
__device__ static inline int64_t keys_of(const td_cuda_attention_job &a, int64_t query)
{
    return a.causal ? a.keys - a.queries + query + 1 : a.keys;
}

/* A warp a query. */
template <class S, int N>
__global__ void __launch_bounds__(TD_CUDA_THREADS) attention(td_cuda_attention_job a)
{
    typedef typename td_computed<S>::type T;
    warp_row r(a.batch, a.heads, a.queries);
    if (!r.is_there) {
        return;
    }
    int64_t kv = r.head / (a.heads / a.kv_heads), end = keys_of(a, r.at);
    row_part<S, N> q, y, k, v[GROUP];
    q.load(a.q, r.batch, r.at, r.head, a.width, r.lane);
    q.scale((T)a.scale);
    y.clear();
    T top = -(T)INFINITY, sum = 0;
    for (int64_t first = 0; first < end; first += GROUP) {
        T score[GROUP], most = top;
        for (int i = 0; i < GROUP; i++) {
            int64_t s = first + i < end ? first + i : first;
            k.load(a.k, r.batch, s, kv, a.width, r.lane);
            v[i].load(a.v, r.batch, s, kv, a.width, r.lane);
            score[i] = q.times(k);
            most = first + i < end ? td_larger(most, score[i]) : most;
        }
        T shrink = TD_MATH(exp)(top - most);
        y.scale(shrink);
        sum *= shrink;
        for (int i = 0; i < GROUP && first + i < end; i++) {
            T p = TD_MATH(exp)(score[i] - most);
            sum += p;
            y.add(p, v[i]);
        }
        top = most;
    }
    y.scale((T)1 / sum);
    y.store(a.y, r.batch, r.at, r.head, a.width, r.lane, false);
    if (r.lane == 0) {
        ((T *)a.lse)[(r.batch * a.heads + r.head) * a.queries + r.at] = top + TD_MATH(log)(sum);
    }
}

/* ---- gradients: dp = dy v, ds = p (dp - dy y) ---- */

/* A warp a query: dy y, for the kernel of the keys; and dq. */
template <class S, int N>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
    attention_grad_q(td_cuda_attention_job a, td_cuda_attention_grads g)
{
    typedef typename td_computed<S>::type T;
    warp_row r(a.batch, a.heads, a.queries);
    if (!r.is_there) {
        return;
    }
    int64_t kv = r.head / (a.heads / a.kv_heads), end = keys_of(a, r.at);
    int64_t place = (r.batch * a.heads + r.head) * a.queries + r.at;
    row_part<S, N> q, dq, k, v, y, dy;
    q.load(a.q, r.batch, r.at, r.head, a.width, r.lane);
    y.load(a.y, r.batch, r.at, r.head, a.width, r.lane);
    dy.load(g.dy, r.batch, r.at, r.head, a.width, r.lane);
    q.scale((T)a.scale);
    dq.clear();
    T both = dy.times(y), lse = ((const T *)a.lse)[place];
    TD_UNROLLED(2)
    for (int64_t s = 0; s < end; s++) {
        k.load(a.k, r.batch, s, kv, a.width, r.lane);
        v.load(a.v, r.batch, s, kv, a.width, r.lane);
        T p = TD_MATH(exp)(q.times(k) - lse);
        dq.add(p * (dy.times(v) - both) * (T)a.scale, k);
    }
    dq.store(g.dq, r.batch, r.at, r.head, a.width, r.lane, g.accumulate[0]);
    if (r.lane == 0) {
        ((T *)g.both)[place] = both;
    }
}

/* A warp a key: dk and dv, from all queries that read it, head by head. */
template <class S, int N>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
    attention_grad_kv(td_cuda_attention_job a, td_cuda_attention_grads g)
{
    typedef typename td_computed<S>::type T;
    warp_row r(a.batch, a.kv_heads, a.keys);
    if (!r.is_there) {
        return;
    }
    row_part<S, N> k, v, dk, dv, q, dy;
    k.load(a.k, r.batch, r.at, r.head, a.width, r.lane);
    v.load(a.v, r.batch, r.at, r.head, a.width, r.lane);
    k.scale((T)a.scale);
    dk.clear();
    dv.clear();
    int64_t first = a.causal ? r.at - (a.keys - a.queries) : 0, group = a.heads / a.kv_heads;
    for (int64_t h = r.head * group; h < (r.head + 1) * group; h++) {
        TD_UNROLLED(2)
        for (int64_t t = first > 0 ? first : 0; t < a.queries; t++) {
            int64_t place = (r.batch * a.heads + h) * a.queries + t;
            q.load(a.q, r.batch, t, h, a.width, r.lane);
            dy.load(g.dy, r.batch, t, h, a.width, r.lane);
            T p = TD_MATH(exp)(q.times(k) - ((const T *)a.lse)[place]);
            dv.add(p, dy);
            dk.add(p * (dy.times(v) - ((const T *)g.both)[place]) * (T)a.scale, q);
        }
    }
    dk.store(g.dk, r.batch, r.at, r.head, a.width, r.lane, g.accumulate[1]);
    dv.store(g.dv, r.batch, r.at, r.head, a.width, r.lane, g.accumulate[2]);
}

static unsigned attention_blocks_for(int64_t rows)
{
    return (unsigned)((rows + WARPS - 1) / WARPS);
}

/* KERNEL<S, N> for the width of a head. */
#define LAUNCH_WIDTH(KERNEL, S, rows, ...)                                                         \
    if (a->width <= 64) {                                                                          \
        TD_LAUNCH((KERNEL<S, 2>), attention_blocks_for(rows), TD_CUDA_THREADS, stream,             \
                  __VA_ARGS__);                                                                    \
    } else if (a->width <= 128) {                                                                  \
        TD_LAUNCH((KERNEL<S, 4>), attention_blocks_for(rows), TD_CUDA_THREADS, stream,             \
                  __VA_ARGS__);                                                                    \
    } else {                                                                                       \
        TD_LAUNCH((KERNEL<S, TD_GPU_ATTENTION_WIDTH / 32>), attention_blocks_for(rows),            \
                  TD_CUDA_THREADS, stream, __VA_ARGS__);                                           \
    }

extern "C" void td_cuda_launch_attention(td_dtype dtype, const td_cuda_attention_job *a,
                                         cudaStream_t stream)
{
#define LAUNCH(S) { LAUNCH_WIDTH(attention, S, a->batch * a->heads * a->queries, *a) }
    TD_CUDA_FOR_FLOAT(dtype, LAUNCH)
#undef LAUNCH
}

extern "C" void td_cuda_launch_attention_grad(td_dtype dtype, const td_cuda_attention_job *a,
                                              const td_cuda_attention_grads *g, cudaStream_t stream)
{
#define LAUNCH(S)                                                                                  \
    { LAUNCH_WIDTH(attention_grad_q, S, a->batch * a->heads * a->queries, *a, *g)                  \
          LAUNCH_WIDTH(attention_grad_kv, S, a->batch * a->kv_heads * a->keys, *a, *g) }
    TD_CUDA_FOR_FLOAT(dtype, LAUNCH)
#undef LAUNCH
}
