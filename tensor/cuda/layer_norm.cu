/* Layer normalisation over rows, in double: mean and squares about it, one after the other. Group
 * normalisation is the same, where a row is a group of an image's channels, and RMS normalisation,
 * where the mean is taken to be 0 (means NULL). */
#include "tensor/cuda/launch_rows.h"
#include "tensor/cuda/norm.cuh"
#include "tensor/cuda/rows.cuh"

/* Where element i of row r lies, and which weight it has; and where the statistics of an element
 * are, which is in row r and column c of the matrix that the memory is. R: what y and dy are. */
template <class T, class R = T> struct plain_rows {
    typedef T type;
    typedef R result;
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
    typedef T result;
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

template <class P, int WARPS, class T = typename P::type, class R = typename P::result>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
    layer_norm(int64_t rows, int64_t d, P place, R *y, T *means, T *inv_stds, const T *x,
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
            y[at] = td_put<R>(FMA(value, weight ? weight[c] : (T)1, bias ? bias[c] : (T)0));
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
__device__ static inline void gradients_of_rows(int64_t rows, int64_t d, const P &place,
                                                const td_cuda_layer_grad &grad)
{
    const typename P::result *dy = (const typename P::result *)grad.dy;
    const T *x = (const T *)grad.x, *weight = (const T *)grad.weight;
    T *dx = (T *)grad.dx;
    td_row_share<WARPS> s(grad.sum_blocks);
    for (int64_t r = s.row; r < rows; r += s.step) {
        double mean = grad.mean ? (double)((const T *)grad.mean)[r] : 0;
        double inv_std = (double)((const T *)grad.inv_std)[r];
        double sum_g = 0, sum_gx = 0;
        for (int64_t i = s.lane; i < d; i += 32 * WARPS) {
            int64_t at = place.at(r, i);
            double g =
                (double)td_get(dy[at]) * (weight ? (double)weight[place.channel(r, i)] : 1.0);
            sum_g += g;
            sum_gx += g * (((double)x[at] - mean) * inv_std);
        }
        double mean_g = grad.mean ? td_block_sum<WARPS>(sum_g) / (double)d : 0;
        double mean_gx = td_block_sum<WARPS>(sum_gx) / (double)d;
        TD_ROLLED
        for (int64_t i = s.lane; i < d; i += 32 * WARPS) {
            int64_t at = place.at(r, i);
            double g =
                (double)td_get(dy[at]) * (weight ? (double)weight[place.channel(r, i)] : 1.0);
            double x_hat = ((double)x[at] - mean) * inv_std;
            T result = (T)(inv_std * (g - mean_g - x_hat * mean_gx));
            dx[at] = grad.accumulate_dx ? dx[at] + result : result;
        }
    }
}

/* Those of weight and bias: the sums of dy x_hat and of dy over rows. */
template <class P, class T = typename P::type>
__device__ static inline void gradients_of_parameters(const P &place,
                                                      const td_cuda_layer_grad &grad)
{
    const typename P::result *dy = (const typename P::result *)grad.dy;
    const T *x = (const T *)grad.x, *mean = (const T *)grad.mean;
    const T *inv_std = (const T *)grad.inv_std;
    const td_cuda_matrix &m = grad.m;
    matrix_share s = share_of(m);
    double both[2][1] = { { 0 }, { 0 } };
    for (int64_t r = s.begin; s.channel < m.channels && r < s.end; r += s.members) {
        int64_t at = r * m.channels + s.channel, k = place.statistics(r, s.channel);
        double x_hat = ((double)x[at] - (mean ? (double)mean[k] : 0)) * (double)inv_std[k];
        double g = (double)td_get(dy[at]);
        both[0][0] += g * x_hat;
        both[1][0] += g;
    }
    channel_totals all;
    if (add_sums<1>(&all, m, s, grad.sums, both)) {
        put_channel(grad.dweight, all.channel, grad.accumulate_dweight, all.of[0]);
        put_channel(grad.dbias, all.channel, grad.accumulate_dbias, all.of[1]);
    }
}

template <class P, int WARPS>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
    layer_norm_grad(int64_t rows, int64_t d, P place, td_cuda_layer_grad grad)
{
    if (blockIdx.x < grad.sum_blocks) {
        gradients_of_parameters<P>(place, grad);
    } else {
        gradients_of_rows<P, WARPS>(rows, d, place, grad);
    }
}

/* DO(P) for the places of a dtype, y's. */
#define OF_PLACES(DO)                                                                              \
    if (dtype == TD_F64 && groups.each > 0) {                                                      \
        DO(channel_groups<double>)                                                                 \
    } else if (dtype == TD_F64) {                                                                  \
        DO(plain_rows<double>)                                                                     \
    } else if (groups.each > 0) {                                                                  \
        DO(channel_groups<float>)                                                                  \
    } else if (dtype == TD_BF16) {                                                                 \
        DO(plain_rows<float, __nv_bfloat16>)                                                       \
    } else if (dtype == TD_F16) {                                                                  \
        DO(plain_rows<float, __half>)                                                              \
    } else {                                                                                       \
        DO(plain_rows<float>)                                                                      \
    }

extern "C" void td_cuda_launch_layer_norm(td_dtype dtype, int64_t rows, int64_t d,
                                          td_cuda_groups groups, void *y, void *mean, void *inv_std,
                                          const void *x, const void *weight, const void *bias,
                                          double eps, cudaStream_t stream)
{
#define LAUNCH(...)                                                                                \
    typedef __VA_ARGS__ P;                                                                         \
    typedef typename P::type T;                                                                    \
    TD_LAUNCH_ROWS(layer_norm, P, P(d, groups), (typename P::result *)y, (T *)mean, (T *)inv_std,  \
                   (const T *)x, (const T *)weight, (const T *)bias, eps)
    OF_PLACES(LAUNCH)
#undef LAUNCH
}

extern "C" void td_cuda_launch_layer_norm_grad(td_dtype dtype, int64_t rows, int64_t d,
                                               td_cuda_groups groups,
                                               const td_cuda_layer_grad *grad, cudaStream_t stream)
{
    rows = grad->dx ? rows : 0;
#define LAUNCH(...)                                                                                \
    typedef __VA_ARGS__ P;                                                                         \
    TD_LAUNCH_ROWS_BEHIND(grad->sum_blocks, layer_norm_grad, P, P(d, groups), *grad)
    OF_PLACES(LAUNCH)
#undef LAUNCH
}

/* ---- a residual's gradient, as products take it ---- */

template <class S, int V>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
    narrow(td_cuda_matrix m, td_cuda_sums sums, void *y, const void *x, td_cuda_channel to,
           bool accumulate)
{
    matrix_share s = share_of(m);
    double both[2][V] = {};
    for (int64_t r = s.begin; s.channel < m.channels && r < s.end; r += FEW_ROWS * s.members) {
        td_pack<float, V> rows[FEW_ROWS];
        load_rows<FEW_ROWS>(rows, x, m, s, r, {});
        for (int i = 0; i < FEW_ROWS && r + i * s.members < s.end; i++) {
            td_pack<S, V> out;
            for (int v = 0; v < V; v++) {
                both[0][v] += (double)rows[i].at[v];
                out.at[v] = td_put<S>(rows[i].at[v]);
            }
            td_store_pack<V>((S *)y + (r + i * s.members) * m.channels + s.channel, out);
        }
    }
    channel_totals all;
    if (to.at && add_sums<V>(&all, m, s, sums, both)) {
        put_channel(to, all.channel, accumulate, all.of[0]);
    }
}

extern "C" void td_cuda_launch_narrow(const td_cuda_matrix *m, const td_cuda_sums *sums, void *y,
                                      const void *x, td_cuda_channel to, bool accumulate,
                                      cudaStream_t stream)
{
    TD_CUDA_LAUNCH_MATRIX(narrow, m, stream, *sums, y, x, to, accumulate)
}
