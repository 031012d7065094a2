/* Layer normalisation over rows, in double: mean and squares about it, one after the other. */
#include "tensor/cuda/launch_rows.h"
#include "tensor/cuda/norm.cuh"
#include "tensor/cuda/rows.cuh"

template <class T, int WARPS>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
    layer_norm(int64_t rows, int64_t d, T *y, T *means, T *inv_stds, const T *x, const T *weight,
               const T *bias, double eps)
{
    td_row_share<WARPS> s;
    for (int64_t r = s.row; r < rows; r += s.step) {
        const T *from = x + r * d;
        double sum = 0, squares = 0;
        for (int64_t i = s.lane; i < d; i += 32 * WARPS) {
            sum += (double)from[i];
        }
        double mean = td_block_sum<WARPS>(sum) / (double)d;
        for (int64_t i = s.lane; i < d; i += 32 * WARPS) {
            double off = (double)from[i] - mean;
            squares += off * off;
        }
        double inv_std = 1.0 / sqrt(td_block_sum<WARPS>(squares) / (double)d + eps);
        TD_ROLLED
        for (int64_t i = s.lane; i < d; i += 32 * WARPS) {
            T value = (T)(((double)from[i] - mean) * inv_std);
            y[r * d + i] = FMA(value, weight ? weight[i] : (T)1, bias ? bias[i] : (T)0);
        }
        if (s.lane == 0) {
            means[r] = (T)mean;
            inv_stds[r] = (T)inv_std;
        }
    }
}

/* With g = dy weight: dx = inv_std (g - mean(g) - x_hat mean(g x_hat)). */
template <class T, int WARPS>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
    layer_norm_grad(int64_t rows, int64_t d, T *dx, const T *dy, const T *x, const T *weight,
                    const T *means, const T *inv_stds, bool accumulate)
{
    td_row_share<WARPS> s;
    for (int64_t r = s.row; r < rows; r += s.step) {
        double mean = (double)means[r], inv_std = (double)inv_stds[r], sum_g = 0, sum_gx = 0;
        for (int64_t i = s.lane; i < d; i += 32 * WARPS) {
            double g = (double)dy[r * d + i] * (weight ? (double)weight[i] : 1.0);
            sum_g += g;
            sum_gx += g * (((double)x[r * d + i] - mean) * inv_std);
        }
        double mean_g = td_block_sum<WARPS>(sum_g) / (double)d;
        double mean_gx = td_block_sum<WARPS>(sum_gx) / (double)d;
        TD_ROLLED
        for (int64_t i = s.lane; i < d; i += 32 * WARPS) {
            double g = (double)dy[r * d + i] * (weight ? (double)weight[i] : 1.0);
            double x_hat = ((double)x[r * d + i] - mean) * inv_std;
            T result = (T)(inv_std * (g - mean_g - x_hat * mean_gx));
            dx[r * d + i] = accumulate ? dx[r * d + i] + result : result;
        }
    }
}

template <class T>
static void launch_layer_norm(int64_t rows, int64_t d, T *y, T *mean, T *inv_std, const T *x,
                              const T *weight, const T *bias, double eps, cudaStream_t stream)
{
    TD_LAUNCH_ROWS(layer_norm, T, y, mean, inv_std, x, weight, bias, eps)
}

extern "C" void td_cuda_launch_layer_norm(td_dtype dtype, int64_t rows, int64_t d, void *y,
                                          void *mean, void *inv_std, const void *x,
                                          const void *weight, const void *bias, double eps,
                                          cudaStream_t stream)
{
    if (dtype == TD_F64) {
        launch_layer_norm(rows, d, (double *)y, (double *)mean, (double *)inv_std,
                          (const double *)x, (const double *)weight, (const double *)bias, eps,
                          stream);
    } else {
        launch_layer_norm(rows, d, (float *)y, (float *)mean, (float *)inv_std, (const float *)x,
                          (const float *)weight, (const float *)bias, eps, stream);
    }
}

template <class T>
static void launch_layer_norm_grad(int64_t rows, int64_t d, T *dx, const T *dy, const T *x,
                                   const T *weight, const T *mean, const T *inv_std,
                                   bool accumulate, cudaStream_t stream)
{
    TD_LAUNCH_ROWS(layer_norm_grad, T, dx, dy, x, weight, mean, inv_std, accumulate)
}

extern "C" void td_cuda_launch_layer_norm_grad(td_dtype dtype, int64_t rows, int64_t d, void *dx,
                                               const void *dy, const void *x, const void *weight,
                                               const void *mean, const void *inv_std,
                                               bool accumulate, cudaStream_t stream)
{
    if (dtype == TD_F64) {
        launch_layer_norm_grad(rows, d, (double *)dx, (const double *)dy, (const double *)x,
                               (const double *)weight, (const double *)mean,
                               (const double *)inv_std, accumulate, stream);
    } else {
        launch_layer_norm_grad(rows, d, (float *)dx, (const float *)dy, (const float *)x,
                               (const float *)weight, (const float *)mean, (const float *)inv_std,
                               accumulate, stream);
    }
}

/* ---- the gradients of weight and bias: sums over rows ---- */

template <class T>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
    layer_norm_sums(td_cuda_matrix m, double *partial, const T *dy, const T *x, const T *mean,
                    const T *inv_std)
{
    matrix_share s = share_of(m);
    double both[2][1] = { { 0 }, { 0 } };
    for (int64_t r = s.begin; s.channel < m.channels && r < s.end; r += s.members) {
        int64_t at = r * m.channels + s.channel;
        double x_hat = ((double)x[at] - (double)mean[r]) * (double)inv_std[r];
        both[0][0] += (double)dy[at] * x_hat;
        both[1][0] += (double)dy[at];
    }
    store_sums<1>(m, s, partial, both);
}

extern "C" void td_cuda_launch_layer_norm_sums(const td_cuda_matrix *m, double *partial,
                                               const void *dy, const void *x, const void *mean,
                                               const void *inv_std, cudaStream_t stream)
{
    unsigned blocks = (unsigned)(m->tiles * m->chunks);
    if (m->dtype == TD_F64) {
        TD_LAUNCH((layer_norm_sums<double>), blocks, TD_CUDA_THREADS, stream, *m, partial,
                  (const double *)dy, (const double *)x, (const double *)mean,
                  (const double *)inv_std);
    } else {
        TD_LAUNCH((layer_norm_sums<float>), blocks, TD_CUDA_THREADS, stream, *m, partial,
                  (const float *)dy, (const float *)x, (const float *)mean, (const float *)inv_std);
    }
}

__global__ void layer_norm_put(td_cuda_matrix m, td_cuda_channel weight, bool accumulate_weight,
                               td_cuda_channel bias, bool accumulate_bias, const double *partial)
{
    int64_t c = TD_WALK_BEGIN;
    if (c >= m.channels) {
        return;
    }
    double dyx = 0, dy = 0;
    for (int64_t k = 0; k < m.chunks; k++) {
        dyx += partial[2 * k * m.channels + c];
        dy += partial[(2 * k + 1) * m.channels + c];
    }
    if (weight.at) {
        set_channel(weight, c, dyx + (accumulate_weight ? channel_or(weight, c, 0) : 0));
    }
    if (bias.at) {
        set_channel(bias, c, dy + (accumulate_bias ? channel_or(bias, c, 0) : 0));
    }
}

extern "C" void td_cuda_launch_layer_norm_put(const td_cuda_matrix *m, td_cuda_channel weight,
                                              bool accumulate_weight, td_cuda_channel bias,
                                              bool accumulate_bias, const double *partial,
                                              cudaStream_t stream)
{
    unsigned blocks = (unsigned)((m->channels + 31) / 32);
    TD_LAUNCH((layer_norm_put), blocks, 32, stream, *m, weight, accumulate_weight, bias,
              accumulate_bias, partial);
}
