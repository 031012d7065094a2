/* The gradient of batch normalisation (+ add) (relu): see tensor/cpu/ops_batch_norm_grad.c for the
 * formulas. First the sums over rows, then dx. */
#include "tensor/cuda/norm.cuh"

/* One element of g. */
template <class T>
__device__ static inline T passed(td_cuda_mask mask, T dy, T x, T y, T mean, T scale, T shift)
{
    if (mask == TD_CUDA_MASK_Y) {
        return TD_RELU_GRAD(y, dy);
    }
    if (mask == TD_CUDA_MASK_X) {
        return TD_RELU_GRAD(TD_NORM(x, mean, scale, shift), dy);
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
    if (grad.mask == TD_CUDA_MASK_X) {
        load_channels<V>(scale, grad.affine, channel);
        load_channels<V>(shift, grad.affine, m.channels + channel);
    }
}

template <class S, int V>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
    norm_grad_sums(td_cuda_matrix m, td_cuda_norm_grad grad)
{
    typedef typename td_computed<S>::type T;
    matrix_share s = share_of(m);
    T sum_g[V], sum_gx[V];
    for (int v = 0; v < V; v++) {
        sum_g[v] = sum_gx[v] = 0;
    }
    if (s.channel < m.channels) {
        T mean[V], scale[V], shift[V];
        load_constants<V>(mean, scale, shift, m, grad, s.channel);
        for (int64_t r = s.begin; r < s.end; r += s.members) {
            int64_t at = r * m.channels + s.channel;
            td_pack<S, V> dy = td_load_pack<V>((const S *)grad.dy + at);
            td_pack<S, V> x = td_load_pack<V>((const S *)grad.x + at), y = x;
            if (grad.mask == TD_CUDA_MASK_Y) {
                y = td_load_pack<V>((const S *)grad.y + at);
            }
            for (int v = 0; v < V; v++) {
                T from = td_get(x.at[v]);
                T g = passed<T>(grad.mask, td_get(dy.at[v]), from, td_get(y.at[v]), mean[v],
                                scale[v], shift[v]);
                sum_g[v] += g;
                sum_gx[v] = FMA(g, from - mean[v], sum_gx[v]);
            }
        }
    }
    double both[2][V];
    for (int v = 0; v < V; v++) {
        both[0][v] = (double)sum_g[v];
        both[1][v] = (double)sum_gx[v];
    }
    store_sums<V>(m, s, grad.partial, both);
}

extern "C" void td_cuda_launch_norm_grad_sums(const td_cuda_matrix *m,
                                              const td_cuda_norm_grad *grad, cudaStream_t stream)
{
    TD_CUDA_LAUNCH_MATRIX(norm_grad_sums, m, stream, *grad)
}

enum { COLUMNS = 32, MEMBERS = 8 }; /* of a block: channels, and threads that share one */

__device__ static inline void put(const td_cuda_channel &to, int64_t c, bool accumulate,
                                  double value)
{
    if (to.at) {
        set_channel(to, c, value + (accumulate ? channel_or(to, c, 0) : 0));
    }
}

template <class T> __global__ void norm_grad_prepare(td_cuda_matrix m, td_cuda_norm_grad grad)
{
    __shared__ double part[2][MEMBERS][COLUMNS];
    int64_t c = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    double g = 0, gx = 0;
    for (int64_t k = threadIdx.y; grad.partial && c < m.channels && k < m.chunks; k += MEMBERS) {
        g += grad.partial[2 * k * m.channels + c];
        gx += grad.partial[(2 * k + 1) * m.channels + c];
    }
    part[0][threadIdx.y][threadIdx.x] = g;
    part[1][threadIdx.y][threadIdx.x] = gx;
    __syncthreads();
    if (threadIdx.y > 0 || c >= m.channels) {
        return;
    }
    for (int k = 1; k < MEMBERS; k++) {
        g += part[0][k][threadIdx.x];
        gx += part[1][k][threadIdx.x];
    }
    double inv_std = channel_or(grad.inv_std, c, 1), n = (double)m.rows;
    double scale = channel_or(grad.weight, c, 1) * inv_std;
    T *constants = (T *)grad.constants + c;
    constants[0] = (T)scale;
    constants[m.channels] = (T)(grad.training ? -scale * inv_std * inv_std * gx / n : 0);
    constants[2 * m.channels] = (T)(grad.training ? -scale * g / n : 0);
    if (grad.partial) {
        put(grad.dbias, c, grad.accumulate_dbias, g);
        put(grad.dweight, c, grad.accumulate_dweight, gx * inv_std);
    }
}

extern "C" void td_cuda_launch_norm_grad_prepare(const td_cuda_matrix *m,
                                                 const td_cuda_norm_grad *grad, cudaStream_t stream)
{
    unsigned blocks = (unsigned)((m->channels + COLUMNS - 1) / COLUMNS);
    if (m->dtype == TD_F64) {
        TD_LAUNCH((norm_grad_prepare<double>), blocks, dim3(COLUMNS, MEMBERS), stream, *m, *grad);
    } else {
        TD_LAUNCH((norm_grad_prepare<float>), blocks, dim3(COLUMNS, MEMBERS), stream, *m, *grad);
    }
}

template <class S, int V>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
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
    bool reads_x = grad.mask == TD_CUDA_MASK_X || (grad.dx && grad.training);
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
            T g = passed<T>(grad.mask, td_get(dy.at[v]), from, td_get(y.at[v]), mean[v], scale[v],
                            shift[v]);
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
