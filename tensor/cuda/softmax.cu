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

/* losses[r], and behind all of them the rows' weights; each: the losses as T, NULL: not wanted. */
template <class T, int WARPS>
__global__ void cross_entropy(int64_t rows, int64_t d, double *losses, T *each, T *log_p,
                              const T *logits, const int64_t *labels, const T *weight,
                              double smoothing, int64_t ignore)
{
    td_row_share<WARPS> s;
    int lane = s.lane;
    for (int64_t r = s.row; r < rows; r += s.step) {
        const T *x = logits + r * d;
        T top = 0;
        double log_sum = 0, all = 0;
        if (log_p) {
            log_sum = log(row_exp<T, WARPS>(log_p + r * d, x, d, lane, &top));
        }
        TD_ROLLED
        for (int64_t i = lane; i < d; i += 32 * WARPS) {
            double value = (double)x[i] - (double)top - log_sum;
            if (log_p) {
                log_p[r * d + i] = (T)value;
            }
            all += weight ? (double)(T)value * (double)weight[i] : value;
        }
        all = td_block_sum<WARPS>(all);
        if (lane == 0) {
            /* A label that is out of range may not have been refused yet: see
             * tensor/hooks.h. */
            bool inside = (uint64_t)labels[r] < (uint64_t)d, counts = labels[r] != ignore;
            int64_t label = inside ? labels[r] : 0;
            double own = weight ? (double)weight[label] : 1.0;
            double nll = inside ? -((double)x[label] - (double)top - log_sum) : (double)NAN;
            nll = weight ? nll * own : nll;
            double loss =
                smoothing == 0 ? nll : (1.0 - smoothing) * nll - smoothing / (double)d * all;
            losses[r] = counts ? loss : 0.0;
            losses[rows + r] = counts ? own : 0.0;
            if (each) {
                each[r] = (T)losses[r];
            }
        }
    }
}

/* The loss of all rows, and the sum of their weights. */
template <class T>
__global__ void join_losses(T *loss, double *total, const double *losses, int64_t n, bool sum)
{
    double losses_sum = 0, weights_sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += TD_CUDA_THREADS) {
        losses_sum += losses[i];
        weights_sum += losses[n + i];
    }
    losses_sum = td_block_sum<TD_CUDA_ALL_WARPS>(losses_sum);
    weights_sum = td_block_sum<TD_CUDA_ALL_WARPS>(weights_sum);
    if (threadIdx.x == 0) {
        *total = weights_sum;
        if (loss) {
            *loss = (T)(sum ? losses_sum : losses_sum / weights_sum);
        }
    }
}

extern "C" void td_cuda_launch_cross_entropy(td_dtype dtype, const td_cuda_entropy *e, void *loss,
                                             double *losses, void *log_p, const void *logits,
                                             cudaStream_t stream)
{
    int64_t rows = e->rows, d = e->k; /* the names that TD_LAUNCH_ROWS takes */
#define LAUNCH(T)                                                                                  \
    T *each = e->per_row ? (T *)loss : NULL;                                                       \
    if (rows > 0) {                                                                                \
        TD_LAUNCH_ROWS(cross_entropy, T, losses, each, (T *)log_p, (const T *)logits, e->labels,   \
                       (const T *)e->weight, e->params.smoothing, e->params.ignore)                \
    }                                                                                              \
    TD_LAUNCH((join_losses<T>), 1, TD_CUDA_THREADS, stream, each ? NULL : (T *)loss, e->total,     \
              losses, rows, e->params.sum);
    FOR_TYPE(dtype, LAUNCH)
#undef LAUNCH
}

/* weights: their sum, NULL: there are none, or it does not matter. */
template <class T>
__global__ void cross_entropy_grad(int64_t n, int64_t k, T *dlogits, const T *dloss, bool per_row,
                                   const double *total, const T *log_p, const int64_t *labels,
                                   const T *weight, const double *weights, double smoothing,
                                   int64_t ignore, bool accumulate)
{
    T everywhere = (T)(smoothing / (double)k), here = (T)(1.0 - smoothing);
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < n * k; i += TD_WALK_STEP) {
        int64_t row = i / k, label = labels[row];
        T factor = (T)((double)dloss[per_row ? row : 0] / (total ? *total : 1.0));
        bool counts = label != ignore && (uint64_t)label < (uint64_t)k;
        T target = i % k == label ? everywhere + here : everywhere, all = 1;
        if (weight && counts) {
            target = target * weight[i % k];
            all = (T)(weights ? smoothing / (double)k * *weights : 0.0) + here * weight[label];
        }
        T p = log_p ? TD_MATH(exp)(log_p[i]) : (T)0;
        T result = counts ? ((weight ? p * all : p) - target) * factor : (T)0;
        dlogits[i] = accumulate ? dlogits[i] + result : result;
    }
}

template <class T> __global__ void sum_of(double *sum, const T *values, int64_t n)
{
    double all = 0;
    for (int64_t i = threadIdx.x; i < n; i += TD_CUDA_THREADS) {
        all += (double)values[i];
    }
    all = td_block_sum<TD_CUDA_ALL_WARPS>(all);
    if (threadIdx.x == 0) {
        *sum = all;
    }
}

extern "C" void td_cuda_launch_cross_entropy_grad(td_dtype dtype, const td_cuda_entropy *e,
                                                  void *dlogits, const void *dloss, double *weights,
                                                  const void *log_p, bool accumulate,
                                                  cudaStream_t stream)
{
    unsigned blocks = td_blocks(e->rows * e->k, TD_CUDA_THREADS, TD_CUDA_MOST_BLOCKS);
    const double *total = e->params.sum || e->per_row ? NULL : e->total;
#define LAUNCH(T)                                                                                  \
    if (weights) {                                                                                 \
        TD_LAUNCH((sum_of<T>), 1, TD_CUDA_THREADS, stream, weights, (const T *)e->weight, e->k);   \
    }                                                                                              \
    TD_LAUNCH((cross_entropy_grad<T>), blocks, TD_CUDA_THREADS, stream, e->rows, e->k,             \
              (T *)dlogits, (const T *)dloss, e->per_row, total, (const T *)log_p, e->labels,      \
              (const T *)e->weight, weights, e->params.smoothing, e->params.ignore, accumulate);
    FOR_TYPE(dtype, LAUNCH)
#undef LAUNCH
}
