/* Softmax and cross-entropy. The largest logit is subtracted first, so that exp cannot overflow;
 * sums are in double. */
#include "tensor/cuda/launch_rows.h"
#include "tensor/cuda/rows.cuh"

/* ---- rows, each by WARPS warps ---- */

/* The largest element of a row, and the sum of exp(x - it), which is left in out. */
template <class T, int WARPS>
__device__ static inline double row_exp(T *out, const T *x, int64_t d, int lane, T *top)
{
    T most = -(T)INFINITY;
    for (int64_t i = lane; i < d; i += 32 * WARPS) {
        most = td_larger(most, x[i]);
    }
    most = td_block_max<WARPS>(most);
    double sum = 0;
    TD_ROLLED
    for (int64_t i = lane; i < d; i += 32 * WARPS) {
        T e = TD_MATH(exp)(x[i] - most);
        out[i] = e;
        sum += (double)e;
    }
    *top = most;
    return td_block_sum<WARPS>(sum);
}

template <class T, int WARPS>
__global__ void softmax_rows(int64_t rows, int64_t d, T *y, const T *x, bool log_of)
{
    td_row_share<WARPS> s;
    int lane = s.lane;
    for (int64_t r = s.row; r < rows; r += s.step) {
        const T *from = x + r * d;
        T *to = y + r * d, top;
        double sum = row_exp<T, WARPS>(to, from, d, lane, &top), log_sum = log(sum);
        T scale = (T)(1.0 / sum);
        TD_ROLLED
        for (int64_t i = lane; i < d; i += 32 * WARPS) {
            to[i] = log_of ? (T)((double)from[i] - (double)top - log_sum) : to[i] * scale;
        }
    }
}

template <class T> __device__ static inline T grad_of(bool log_of, T dy, T y, T sum)
{
    return log_of ? TD_LOG_SOFTMAX_GRAD(dy, y, sum) : TD_SOFTMAX_GRAD(dy, y, sum);
}

template <class T, int WARPS>
__global__ void softmax_rows_grad(int64_t rows, int64_t d, T *dx, const T *dy, const T *y,
                                  bool log_of, bool accumulate)
{
    td_row_share<WARPS> s;
    int lane = s.lane;
    for (int64_t r = s.row; r < rows; r += s.step) {
        double part = 0;
        for (int64_t i = r * d + lane; i < (r + 1) * d; i += 32 * WARPS) {
            part += (double)dy[i] * (log_of ? 1.0 : (double)y[i]);
        }
        T sum = (T)td_block_sum<WARPS>(part);
        TD_ROLLED
        for (int64_t i = r * d + lane; i < (r + 1) * d; i += 32 * WARPS) {
            T result = grad_of(log_of, dy[i], y[i], sum);
            dx[i] = accumulate ? dx[i] + result : result;
        }
    }
}

/* ---- columns: a thread each ---- */

template <class T>
__global__ void softmax_columns(int64_t outer, int64_t d, int64_t inner, T *y, const T *x,
                                bool log_of)
{
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < outer * inner; i += TD_WALK_STEP) {
        int64_t at = i / inner * d * inner + i % inner;
        T top = -(T)INFINITY;
        for (int64_t k = 0; k < d; k++) {
            top = td_larger(top, x[at + k * inner]);
        }
        double sum = 0;
        TD_ROLLED
        for (int64_t k = 0; k < d; k++) {
            T e = TD_MATH(exp)(x[at + k * inner] - top);
            y[at + k * inner] = e;
            sum += (double)e;
        }
        double log_sum = log(sum);
        T scale = (T)(1.0 / sum);
        TD_ROLLED
        for (int64_t k = 0; k < d; k++) {
            int64_t to = at + k * inner;
            y[to] = log_of ? (T)((double)x[to] - (double)top - log_sum) : y[to] * scale;
        }
    }
}

template <class T>
__global__ void softmax_columns_grad(int64_t outer, int64_t d, int64_t inner, T *dx, const T *dy,
                                     const T *y, bool log_of, bool accumulate)
{
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < outer * inner; i += TD_WALK_STEP) {
        int64_t at = i / inner * d * inner + i % inner;
        double sum = 0;
        for (int64_t k = 0; k < d; k++) {
            int64_t from = at + k * inner;
            sum += (double)dy[from] * (log_of ? 1.0 : (double)y[from]);
        }
        TD_ROLLED
        for (int64_t k = 0; k < d; k++) {
            int64_t to = at + k * inner;
            T result = grad_of(log_of, dy[to], y[to], (T)sum);
            dx[to] = accumulate ? dx[to] + result : result;
        }
    }
}

/* ---- launches ---- */

/* DO(T) for f32 and f64. */
#define FOR_TYPE(dtype, DO)                                                                        \
    if (dtype == TD_F64) {                                                                         \
        DO(double)                                                                                 \
    } else {                                                                                       \
        DO(float)                                                                                  \
    }

extern "C" void td_cuda_launch_softmax(td_dtype dtype, int64_t outer, int64_t d, int64_t inner,
                                       void *y, const void *x, bool log, cudaStream_t stream)
{
    int64_t rows = outer;
    unsigned column_blocks = td_blocks(outer * inner, TD_CUDA_THREADS, TD_CUDA_MOST_BLOCKS);
#define LAUNCH(T)                                                                                  \
    if (inner == 1) {                                                                              \
        TD_LAUNCH_ROWS(softmax_rows, T, (T *)y, (const T *)x, log)                                 \
    } else {                                                                                       \
        TD_LAUNCH((softmax_columns<T>), column_blocks, TD_CUDA_THREADS, stream, outer, d, inner,   \
                  (T *)y, (const T *)x, log);                                                      \
    }
    FOR_TYPE(dtype, LAUNCH)
#undef LAUNCH
}

extern "C" void td_cuda_launch_softmax_grad(td_dtype dtype, int64_t outer, int64_t d, int64_t inner,
                                            void *dx, const void *dy, const void *y, bool log,
                                            bool accumulate, cudaStream_t stream)
{
    int64_t rows = outer;
    unsigned column_blocks = td_blocks(outer * inner, TD_CUDA_THREADS, TD_CUDA_MOST_BLOCKS);
#define LAUNCH(T)                                                                                  \
    if (inner == 1) {                                                                              \
        TD_LAUNCH_ROWS(softmax_rows_grad, T, (T *)dx, (const T *)dy, (const T *)y, log,            \
                       accumulate)                                                                 \
    } else {                                                                                       \
        TD_LAUNCH((softmax_columns_grad<T>), column_blocks, TD_CUDA_THREADS, stream, outer, d,     \
                  inner, (T *)dx, (const T *)dy, (const T *)y, log, accumulate);                   \
    }
    FOR_TYPE(dtype, LAUNCH)
#undef LAUNCH
}

/* ---- cross-entropy ---- */

template <class T, int WARPS>
__global__ void cross_entropy(int64_t rows, int64_t d, double *losses, T *log_p, const T *logits,
                              const int64_t *labels, double smoothing)
{
    td_row_share<WARPS> s;
    int lane = s.lane;
    for (int64_t r = s.row; r < rows; r += s.step) {
        const T *x = logits + r * d;
        T *to = log_p + r * d, top;
        double log_sum = log(row_exp<T, WARPS>(to, x, d, lane, &top)), all = 0;
        TD_ROLLED
        for (int64_t i = lane; i < d; i += 32 * WARPS) {
            double value = (double)x[i] - (double)top - log_sum;
            to[i] = (T)value;
            all += value;
        }
        all = td_block_sum<WARPS>(all);
        if (lane == 0) {
            /* A label that is out of range may not have been refused yet: see
             * tensor/hooks.h. */
            bool inside = (uint64_t)labels[r] < (uint64_t)d;
            double own = (double)x[inside ? labels[r] : 0];
            double nll = inside ? -(own - (double)top - log_sum) : (double)NAN;
            losses[r] =
                smoothing == 0 ? nll : (1.0 - smoothing) * nll - smoothing / (double)d * all;
        }
    }
}

template <class T> __global__ void mean_of(T *mean, const double *values, int64_t n)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += TD_CUDA_THREADS) {
        sum += values[i];
    }
    sum = td_block_sum<TD_CUDA_ALL_WARPS>(sum);
    if (threadIdx.x == 0) {
        *mean = (T)(sum / (double)n);
    }
}

extern "C" void td_cuda_launch_cross_entropy(td_dtype dtype, int64_t rows, int64_t d, void *loss,
                                             double *losses, void *log_p, const void *logits,
                                             const int64_t *labels, double smoothing,
                                             cudaStream_t stream)
{
#define LAUNCH(T)                                                                                  \
    if (rows > 0) {                                                                                \
        TD_LAUNCH_ROWS(cross_entropy, T, losses, (T *)log_p, (const T *)logits, labels, smoothing) \
    }                                                                                              \
    TD_LAUNCH((mean_of<T>), 1, TD_CUDA_THREADS, stream, (T *)loss, losses, rows);
    FOR_TYPE(dtype, LAUNCH)
#undef LAUNCH
}

template <class T>
__global__ void cross_entropy_grad(int64_t n, int64_t k, T *dlogits, const T *dloss, const T *log_p,
                                   const int64_t *labels, double smoothing, bool accumulate)
{
    T everywhere = (T)(smoothing / (double)k), here = (T)(1.0 - smoothing);
    T factor = (T)((double)*dloss / (double)n);
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < n * k; i += TD_WALK_STEP) {
        T target = i % k == labels[i / k] ? everywhere + here : everywhere;
        T result = (TD_MATH(exp)(log_p[i]) - target) * factor;
        dlogits[i] = accumulate ? dlogits[i] + result : result;
    }
}

extern "C" void td_cuda_launch_cross_entropy_grad(td_dtype dtype, int64_t n, int64_t k,
                                                  void *dlogits, const void *dloss,
                                                  const void *log_p, const int64_t *labels,
                                                  double smoothing, bool accumulate,
                                                  cudaStream_t stream)
{
    unsigned blocks = td_blocks(n * k, TD_CUDA_THREADS, TD_CUDA_MOST_BLOCKS);
#define LAUNCH(T)                                                                                  \
    TD_LAUNCH((cross_entropy_grad<T>), blocks, TD_CUDA_THREADS, stream, n, k, (T *)dlogits,        \
              (const T *)dloss, (const T *)log_p, labels, smoothing, accumulate);
    FOR_TYPE(dtype, LAUNCH)
#undef LAUNCH
}
