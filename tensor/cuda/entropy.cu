/* Cross-entropy of logits that come in chunks of the vocabulary: the largest logit of a row and the
 * sum of exponentials of the distances to it are found in one pass. */
#include "tensor/cuda/launch_transformer.h"
#include "tensor/cuda/rows.cuh"

enum { TOP, SUM, OWN, NUMBERS }; /* a row's numbers: see tensor/cpu/ops_entropy_chunks.c */

/* Calls with(i, logit) for the elements of a row that are this thread's, 16 bytes at a time where
 * rows begin at such places. */
template <int WARPS, class S, class F>
__device__ static inline void each_logit(S *x, int64_t d, int lane, bool packs, F with)
{
    enum { V = td_lanes<S>::count };
    int64_t packed = packs ? d / V * V : 0;
    TD_ROLLED
    for (int64_t i = (int64_t)lane * V; i < packed; i += 32 * WARPS * V) {
        td_pack<S, V> pack = td_load_pack<V>(x + i);
        bool changed = false;
        for (int v = 0; v < V; v++) {
            changed |= with(i + v, pack.at[v]);
        }
        if (changed) {
            td_store_pack<V>(x + i, pack);
        }
    }
    TD_ROLLED
    for (int64_t i = packed + lane; i < d; i += 32 * WARPS) {
        (void)with(i, x[i]);
    }
}

template <class S, int WARPS>
__global__ void entropy_chunk(int64_t rows, int64_t d, td_cuda_chunk c, S *logits, bool packs)
{
    typedef typename td_computed<S>::type T;
    td_row_share<WARPS> s;
    for (int64_t r = s.row; r < rows; r += s.step) {
        T top = -(T)INFINITY, sum = 0;
        each_logit<WARPS>(logits + r * c.pitch, d, s.lane, packs, [&](int64_t, S &logit) {
            T x = td_get(logit);
            if (x > top) {
                sum = sum * TD_MATH(exp)(top - x) + (T)1;
                top = x;
            } else {
                sum += x == -(T)INFINITY ? (T)0 : TD_MATH(exp)(x - top);
            }
            return false;
        });
        double most = (double)td_block_max<WARPS>(top);
        double all = sum == 0 ? 0.0 : (double)sum * exp((double)top - most);
        all = td_block_sum<WARPS>(all);
        if (s.lane == 0) {
            double *row = c.stats + r * NUMBERS;
            int64_t label = c.labels[r] - c.first;
            if (c.first > 0) { /* what the chunks before have left */
                double both = most > row[TOP] || most != most ? most : row[TOP];
                all = row[SUM] * exp(row[TOP] - both) + all * exp(most - both);
                most = both;
            }
            row[TOP] = most;
            row[SUM] = all;
            if (td_is_within(label, d)) {
                row[OWN] = (double)td_get(logits[r * c.pitch + label]);
            } else if (c.first == 0) {
                row[OWN] = (double)NAN;
            }
        }
    }
}

/* One block: the rows' losses have one order. */
template <class T>
__global__ void entropy_end(td_cuda_chunk c, T *loss, double *total, td_entropy_params params)
{
    double sum = 0, counted = 0;
    for (int64_t r = threadIdx.x; r < c.rows; r += TD_CUDA_THREADS) {
        double *row = c.stats + r * NUMBERS, log_sum = log(row[SUM]);
        if (c.labels[r] != params.ignore) {
            sum += log_sum - (row[OWN] - row[TOP]); /* both may be huge */
            counted += 1;
        }
        row[TOP] += log_sum;
    }
    sum = td_block_sum<TD_CUDA_ALL_WARPS>(sum);
    counted = td_block_sum<TD_CUDA_ALL_WARPS>(counted);
    if (threadIdx.x == 0) {
        *total = counted;
        *loss = (T)(params.sum ? sum : sum / counted);
    }
}

template <class S, int WARPS>
__global__ void entropy_chunk_grad(int64_t rows, int64_t d, td_cuda_chunk c, S *logits,
                                   const void *dloss, const double *total, td_entropy_params params,
                                   bool packs)
{
    typedef typename td_computed<S>::type T;
    td_row_share<WARPS> s;
    double scale = (double)*(const T *)dloss / (params.sum ? 1.0 : *total);
    for (int64_t r = s.row; r < rows; r += s.step) {
        double log_sum = c.stats[r * NUMBERS + TOP];
        int64_t label = c.labels[r] - c.first;
        bool counts = c.labels[r] != params.ignore;
        each_logit<WARPS>(logits + r * c.pitch, d, s.lane, packs, [&](int64_t i, S &logit) {
            T p = TD_MATH(exp)((T)((double)td_get(logit) - log_sum)) * (T)scale;
            logit = td_put<S>(!counts ? (T)0 : i == label ? (T)((double)p - scale) : p);
            return true;
        });
    }
}

static bool in_packs(const td_cuda_chunk *c, const void *logits, int size)
{
    return td_aligned(logits, 16) && c->pitch * size % 16 == 0;
}

extern "C" void td_cuda_launch_entropy_chunk(const td_cuda_chunk *c, const void *logits,
                                             cudaStream_t stream)
{
    int64_t rows = c->rows, d = c->words;
#define LAUNCH(S)                                                                                  \
    { TD_LAUNCH_ROWS(entropy_chunk, S, *c, (S *)logits, in_packs(c, logits, sizeof(S))) }
    TD_CUDA_FOR_FLOAT(c->dtype, LAUNCH)
#undef LAUNCH
}

extern "C" void td_cuda_launch_entropy_end(const td_cuda_chunk *c, void *loss, double *total,
                                           td_entropy_params params, cudaStream_t stream)
{
    if (c->dtype == TD_F64) {
        TD_LAUNCH((entropy_end<double>), 1, TD_CUDA_THREADS, stream, *c, (double *)loss, total,
                  params);
    } else {
        TD_LAUNCH((entropy_end<float>), 1, TD_CUDA_THREADS, stream, *c, (float *)loss, total,
                  params);
    }
}

extern "C" void td_cuda_launch_entropy_chunk_grad(const td_cuda_chunk *c, void *logits,
                                                  const void *dloss, const double *total,
                                                  td_entropy_params params, cudaStream_t stream)
{
    int64_t rows = c->rows, d = c->words;
#define LAUNCH(S)                                                                                  \
    { TD_LAUNCH_ROWS(entropy_chunk_grad, S, *c, (S *)logits, dloss, total, params,                 \
                     in_packs(c, logits, sizeof(S))) }
    TD_CUDA_FOR_FLOAT(c->dtype, LAUNCH)
#undef LAUNCH
}
