/* Layer normalisation over rows, in double: mean and squares about it, one after the other. Group
 * normalisation is the same, where a row is a group of an image's channels, and RMS normalisation,
 * where the mean is taken to be 0 (means NULL). */
#include "tensor/cuda/launch_rows.h"
#include "tensor/cuda/norm.cuh"
#include "tensor/cuda/rows.cuh"

/* Where element i of row r lies, and which weight it has; and where the statistics of an element
 * are, which is in row r and column c of the matrix that the memory is. */
template <class T> struct plain_rows {
    typedef T type;
    int64_t d;
    plain_rows(int64_t size, td_cuda_groups) : d(size)
    {
    }
    __device__ int64_t at(int64_t r, int64_t i) const
    {
        return r * d + i;
    }
    __device__ int64_t channel(int64_t, int64_t i) const
    {
        return i;
    }
    __device__ int64_t statistics(int64_t r, int64_t) const
    {
        return r;
    }
};
template <class T> struct channel_groups {
    typedef T type;
    td_cuda_groups m;
    int64_t groups;
    channel_groups(int64_t, td_cuda_groups all) : m(all), groups(all.channels / all.each)
    {
    }
    __device__ int64_t at(int64_t r, int64_t i) const
    {
        return (r / groups * m.pixels + i / m.each) * m.channels + channel(r, i);
    }
    __device__ int64_t channel(int64_t r, int64_t i) const
    {
        return r % groups * m.each + i % m.each;
    }
    __device__ int64_t statistics(int64_t r, int64_t c) const
    {
        return r / m.pixels * groups + c / m.each;
    }
};

template <class P, int WARPS, class T = typename P::type>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
    layer_norm(int64_t rows, int64_t d, P place, T *y, T *means, T *inv_stds, const T *x,
               const T *weight, const T *bias, double eps)
{
    td_row_share<WARPS> s;
    for (int64_t r = s.row; r < rows; r += s.step) {
        double sum = 0, squares = 0;
        for (int64_t i = s.lane; means && i < d; i += 32 * WARPS) {
            sum += (double)x[place.at(r, i)];
        }
        double mean = means ? td_block_sum<WARPS>(sum) / (double)d : 0;
        for (int64_t i = s.lane; i < d; i += 32 * WARPS) {
            double off = (double)x[place.at(r, i)] - mean;
            squares += off * off;
        }
        double inv_std = 1.0 / sqrt(td_block_sum<WARPS>(squares) / (double)d + eps);
        TD_ROLLED
        for (int64_t i = s.lane; i < d; i += 32 * WARPS) {
            int64_t at = place.at(r, i), c = place.channel(r, i);
            T value = (T)(((double)x[at] - mean) * inv_std);
            y[at] = FMA(value, weight ? weight[c] : (T)1, bias ? bias[c] : (T)0);
        }
        if (s.lane == 0) {
            inv_stds[r] = (T)inv_std;
            if (means) {
                means[r] = (T)mean;
            }
        }
    }
}

/* With g = dy weight: dx = inv_std (g - mean(g) - x_hat mean(g x_hat)). */
template <class P, int WARPS, class T = typename P::type>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
    layer_norm_grad(int64_t rows, int64_t d, P place, T *dx, const T *dy, const T *x,
                    const T *weight, const T *means, const T *inv_stds, bool accumulate)
{
    td_row_share<WARPS> s;
    for (int64_t r = s.row; r < rows; r += s.step) {
        double mean = means ? (double)means[r] : 0, inv_std = (double)inv_stds[r];
        double sum_g = 0, sum_gx = 0;
        for (int64_t i = s.lane; i < d; i += 32 * WARPS) {
            int64_t at = place.at(r, i);
            double g = (double)dy[at] * (weight ? (double)weight[place.channel(r, i)] : 1.0);
            sum_g += g;
            sum_gx += g * (((double)x[at] - mean) * inv_std);
        }
        double mean_g = means ? td_block_sum<WARPS>(sum_g) / (double)d : 0;
        double mean_gx = td_block_sum<WARPS>(sum_gx) / (double)d;
        TD_ROLLED
        for (int64_t i = s.lane; i < d; i += 32 * WARPS) {
            int64_t at = place.at(r, i);
            double g = (double)dy[at] * (weight ? (double)weight[place.channel(r, i)] : 1.0);
            double x_hat = ((double)x[at] - mean) * inv_std;
            T result = (T)(inv_std * (g - mean_g - x_hat * mean_gx));
            dx[at] = accumulate ? dx[at] + result : result;
        }
    }
}

/* DO(P) for the places of a dtype. */
#define OF_PLACES(DO)                                                                              \
    if (dtype == TD_F64 && groups.each > 0) {                                                      \
        DO(channel_groups<double>)                                                                 \
    } else if (dtype == TD_F64) {                                                                  \
        DO(plain_rows<double>)                                                                     \
    } else if (groups.each > 0) {                                                                  \
        DO(channel_groups<float>)                                                                  \
    } else {                                                                                       \
        DO(plain_rows<float>)                                                                      \
    }

extern "C" void td_cuda_launch_layer_norm(td_dtype dtype, int64_t rows, int64_t d,
                                          td_cuda_groups groups, void *y, void *mean, void *inv_std,
                                          const void *x, const void *weight, const void *bias,
                                          double eps, cudaStream_t stream)
{
#define LAUNCH(P)                                                                                  \
    typedef typename P::type T;                                                                    \
    TD_LAUNCH_ROWS(layer_norm, P, P(d, groups), (T *)y, (T *)mean, (T *)inv_std, (const T *)x,     \
                   (const T *)weight, (const T *)bias, eps)
    OF_PLACES(LAUNCH)
#undef LAUNCH
}

extern "C" void td_cuda_launch_layer_norm_grad(td_dtype dtype, int64_t rows, int64_t d,
                                               td_cuda_groups groups, void *dx, const void *dy,
                                               const void *x, const void *weight, const void *mean,
                                               const void *inv_std, bool accumulate,
                                               cudaStream_t stream)
{
#define LAUNCH(P)                                                                                  \
    typedef typename P::type T;                                                                    \
    TD_LAUNCH_ROWS(layer_norm_grad, P, P(d, groups), (T *)dx, (const T *)dy, (const T *)x,         \
                   (const T *)weight, (const T *)mean, (const T *)inv_std, accumulate)
    OF_PLACES(LAUNCH)
#undef LAUNCH
}

/* ---- the gradients of weight and bias: sums over rows ---- */

template <class P, class T = typename P::type>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
    layer_norm_sums(td_cuda_matrix m, P place, td_cuda_sums sums, td_cuda_layer_parameters to,
                    const T *dy, const T *x, const T *mean, const T *inv_std)
{
    matrix_share s = share_of(m);
    double both[2][1] = { { 0 }, { 0 } };
    for (int64_t r = s.begin; s.channel < m.channels && r < s.end; r += s.members) {
        int64_t at = r * m.channels + s.channel, k = place.statistics(r, s.channel);
        double x_hat = ((double)x[at] - (mean ? (double)mean[k] : 0)) * (double)inv_std[k];
        both[0][0] += (double)dy[at] * x_hat;
        both[1][0] += (double)dy[at];
    }
    channel_totals all;
    if (add_sums<1>(&all, m, s, sums, both)) {
        put_channel(to.weight, all.channel, to.accumulate_weight, all.of[0]);
        put_channel(to.bias, all.channel, to.accumulate_bias, all.of[1]);
    }
}

extern "C" void td_cuda_launch_layer_norm_sums(const td_cuda_matrix *m, td_cuda_groups groups,
                                               const td_cuda_sums *sums,
                                               const td_cuda_layer_parameters *to, const void *dy,
                                               const void *x, const void *mean, const void *inv_std,
                                               cudaStream_t stream)
{
    unsigned blocks = (unsigned)(m->tiles * m->chunks);
    td_dtype dtype = m->dtype;
#define LAUNCH(P)                                                                                  \
    typedef typename P::type T;                                                                    \
    TD_LAUNCH((layer_norm_sums<P>), blocks, TD_CUDA_THREADS, stream, *m, P(m->channels, groups),   \
              *sums, *to, (const T *)dy, (const T *)x, (const T *)mean, (const T *)inv_std);
    OF_PLACES(LAUNCH)
#undef LAUNCH
}
