/* The gradient of batch normalisation (+ add) (activation): see tensor/cpu/ops_batch_norm_grad.c
 * for the formulas. First the sums over rows, then dx. */
#include "tensor/cuda/norm.cuh"

/* One element of g. */
template <class S, class T>
__device__ static inline T passed(td_cuda_mask mask, T dy, T x, T y, T mean, T scale, T shift)
{
    if (mask == TD_CUDA_MASK_Y) {
        return TD_RELU_GRAD(y, dy);
    }
    if (mask == TD_CUDA_MASK_X) {
        return TD_RELU_GRAD(TD_NORM(x, mean, scale, shift), dy);
    }
    if (mask == TD_CUDA_MASK_GELU) { /* rounded as it is between two kernels */
        T value = td_get(td_put<S>(TD_NORM(x, mean, scale, shift)));
        return td_get(td_put<S>(dy * TD_GELU_SLOPE(value)));
    }
    return dy;
}

/* What both kernels read per channel. */
template <int V, class T>
__device__ static inline void load_constants(T *mean, T *scale, T *shift, const td_cuda_matrix &m,
                                             const td_cuda_norm_grad &grad, int64_t channel)
{
    load_channels<V>(mean, grad.mean, channel);
    for (int v = 0; v < V; v++) {
        scale[v] = shift[v] = 0;
    }
    if (grad.affine) {
        load_channels<V>(scale, grad.affine, channel);
        load_channels<V>(shift, grad.affine, m.channels + channel);
    }
}

/* A channel's dweight, dbias and constants, from the sums of g and of g (x - mean). */
template <class T>
__device__ static inline void finish_channel(const td_cuda_matrix &m, const td_cuda_norm_grad &grad,
                                             int64_t c, double g, double gx)
{
    double inv_std = channel_or(grad.inv_std, c, 1), n = (double)m.rows;
    double scale = channel_or(grad.weight, c, 1) * inv_std;
    T *constants = (T *)grad.constants + c;
    constants[0] = (T)scale;
    constants[m.channels] = (T)(grad.training ? -scale * inv_std * inv_std * gx / n : 0);
    constants[2 * m.channels] = (T)(grad.training ? -scale * g / n : 0);
    put_channel(grad.dbias, c, grad.accumulate_dbias, g);
    put_channel(grad.dweight, c, grad.accumulate_dweight, gx * inv_std);
}

enum { ROWS = 4 }; /* that a thread loads at once, of two or three matrices */

template <class S, int V>
__global__ void __launch_bounds__(TD_CUDA_THREADS, 2)
    norm_grad_sums(td_cuda_matrix m, td_cuda_norm_grad grad)
{
    typedef typename td_computed<S>::type T;
    matrix_share s = share_of(m);
    double both[2][V] = {};
    T mean[V] = {}, scale[V] = {}, shift[V] = {};
    bool works = s.channel < m.channels;
    if (works) {
        load_constants<V>(mean, scale, shift, m, grad, s.channel);
    }
    for (int64_t r = s.begin; works && r < s.end; r += ROWS * s.members) {
        td_pack<S, V> dy[ROWS], x[ROWS], y[ROWS] = {}, none = {};
        load_rows<ROWS>(dy, grad.dy, m, s, r, none);
        load_rows<ROWS>(x, grad.x, m, s, r, none);
        if (grad.mask == TD_CUDA_MASK_Y) {
            load_rows<ROWS>(y, grad.y, m, s, r, none);
        }
        for (int v = 0; v < V; v++) {
            T sum_g = 0, sum_gx = 0;
            for (int i = 0; i < ROWS; i++) {
                T from = td_get(x[i].at[v]);
                T out = grad.mask == TD_CUDA_MASK_Y ? td_get(y[i].at[v]) : (T)0;
                T g = passed<S, T>(grad.mask, td_get(dy[i].at[v]), from, out, mean[v], scale[v],
                                   shift[v]);
                sum_g += g;
                sum_gx = FMA(g, from - mean[v], sum_gx);
                dy[i].at[v] = td_put<S>(g); /* dy or 0 */
            }
            both[0][v] += (double)sum_g;
            both[1][v] += (double)sum_gx;
        }
        for (int i = 0; grad.early_dadd && i < ROWS; i++) {
            int64_t row = r + i * s.members;
            if (row < s.end) {
                td_store_pack<V>((S *)grad.dadd + row * m.channels + s.channel, dy[i]);
            }
        }
    }
    channel_totals all;
    if (add_sums<V>(&all, m, s, grad.sums, both)) {
        finish_channel<T>(m, grad, all.channel, all.of[0], all.of[1]);
    }
}

/* Where nobody needs the sums: evaluation's statistics stand still. */
template <class T> __global__ void norm_grad_constants(td_cuda_matrix m, td_cuda_norm_grad grad)
{
    int64_t c = TD_WALK_BEGIN;
    if (c < m.channels) {
        finish_channel<T>(m, grad, c, 0, 0);
    }
}

extern "C" void td_cuda_launch_norm_grad_sums(const td_cuda_matrix *m,
                                              const td_cuda_norm_grad *grad, cudaStream_t stream)
{
    unsigned warps = (unsigned)((m->channels + 31) / 32);
    if (grad->sums.partial) {
        TD_CUDA_LAUNCH_MATRIX(norm_grad_sums, m, stream, *grad)
    } else if (m->dtype == TD_F64) {
        TD_LAUNCH((norm_grad_constants<double>), warps, 32, stream, *m, *grad);
    } else {
        TD_LAUNCH((norm_grad_constants<float>), warps, 32, stream, *m, *grad);
    }
}

template <class S, int V>
__global__ void __launch_bounds__(TD_CUDA_THREADS, 4)
    norm_grad_apply(td_cuda_matrix m, td_cuda_norm_grad grad)
{
    typedef typename td_computed<S>::type T;
    matrix_share s = share_of(m);
    if (s.channel >= m.channels) {
        return;
    }
    T mean[V], scale[V], shift[V], a[V], b[V], c[V];
    load_constants<V>(mean, scale, shift, m, grad, s.channel);
    load_channels<V>(a, grad.constants, s.channel);
    load_channels<V>(b, grad.constants, m.channels + s.channel);
    load_channels<V>(c, grad.constants, 2 * m.channels + s.channel);
    bool reads_x = grad.affine || (grad.dx && grad.training);
    for (int64_t r = s.begin; r < s.end; r += s.members) {
        int64_t at = r * m.channels + s.channel;
        td_pack<S, V> dy = td_load_pack<V>((const S *)grad.dy + at), x = dy, y = dy, dx = dy,
                      dadd = dy;
        if (reads_x) {
            x = td_load_pack<V>((const S *)grad.x + at);
        }
        if (grad.mask == TD_CUDA_MASK_Y) {
            y = td_load_pack<V>((const S *)grad.y + at);
        }
        if (grad.accumulate_dx) {
            dx = td_load_pack<V>((const S *)grad.dx + at);
        }
        if (grad.accumulate_dadd) {
            dadd = td_load_pack<V>((const S *)grad.dadd + at);
        }
        for (int v = 0; v < V; v++) {
            T from = td_get(x.at[v]);
            T g = passed<S, T>(grad.mask, td_get(dy.at[v]), from, td_get(y.at[v]), mean[v],
                               scale[v], shift[v]);
            T result = grad.training ? TD_NORM_GRAD(g, from, mean[v], a[v], b[v], c[v]) : a[v] * g;
            dx.at[v] = td_put<S>(grad.accumulate_dx ? td_get(dx.at[v]) + result : result);
            dadd.at[v] = td_put<S>(grad.accumulate_dadd ? td_get(dadd.at[v]) + g : g);
        }
        if (grad.dadd) {
            td_store_pack<V>((S *)grad.dadd + at, dadd);
        }
        if (grad.dx) {
            td_store_pack<V>((S *)grad.dx + at, dx);
        }
    }
}

extern "C" void td_cuda_launch_norm_grad_apply(const td_cuda_matrix *m,
                                               const td_cuda_norm_grad *grad, cudaStream_t stream)
{
    TD_CUDA_LAUNCH_MATRIX(norm_grad_apply, m, stream, *grad)
}
