/* Batch normalisation, forward. Sums over rows are made about a channel's first element, so a large
 * mean costs no accuracy; those of what a convolution has written are not, as it asks for them so.
 */
#include "tensor/cuda/norm.cuh"

extern "C" td_cuda_matrix td_cuda_matrix_of(int64_t rows, int64_t channels, td_dtype dtype,
                                            bool packs, td_cuda_matrix_use use)
{
    /* Blocks: for sums, few enough for one of them to add up what all have found. Rows of a thread:
     * as many as it loads at once. */
    enum { SUM_BLOCKS = 2 * 132, BLOCKS = 8 * 132, LEAST_ROWS = 4, LANES = 4 };
    bool sums = use == TD_CUDA_MATRIX_SUMS;
    td_cuda_matrix m = { rows, channels, dtype, 1, 1, 1, 1, 0 };
    m.lanes = packs && dtype != TD_F64 && channels % LANES == 0 ? LANES : 1;
    int64_t count = channels / m.lanes, most = TILE_CHANNELS / m.lanes;
    while (m.wide < 32 && m.wide < most && m.wide < count) {
        m.wide *= 2;
    }
    m.tiles = (count + m.wide - 1) / m.wide;
    int64_t high = TD_CUDA_THREADS / m.wide; /* rows of a block */
    int64_t blocks = (sums ? SUM_BLOCKS : BLOCKS) / m.tiles;
    blocks = blocks > 0 ? blocks : 1;
    int64_t each = (rows + high * blocks - 1) / (high * blocks);
    int64_t least = sums ? (int64_t)FEW_ROWS : (int64_t)LEAST_ROWS;
    m.chunk = (each < least ? least : each) * high;
    m.chunks = (rows + m.chunk - 1) / m.chunk;
    return m;
}

/* ---- statistics ---- */

/* Mean and sum of squares about it, by way of sums about the channel's first element, which is one
 * of those that are added up. */
template <class S, int V>
__global__ void __launch_bounds__(TD_CUDA_THREADS, 2)
    channel_sums(td_cuda_matrix m, td_cuda_sums sums, const void *x)
{
    typedef typename td_computed<S>::type T;
    matrix_share s = share_of(m);
    bool works = s.channel < m.channels;
    td_pack<S, V> about = {};
    if (works) {
        about = td_load_pack<V>((const S *)x + s.channel);
    }
    double both[2][V] = {};
    for (int64_t r = s.begin; works && r < s.end; r += FEW_ROWS * s.members) {
        td_pack<S, V> rows[FEW_ROWS];
        load_rows<FEW_ROWS>(rows, x, m, s, r, about);
        for (int v = 0; v < V; v++) {
            T sum = 0, squares = 0, zero = td_get(about.at[v]);
            for (int i = 0; i < FEW_ROWS; i++) {
                T value = td_get(rows[i].at[v]) - zero;
                sum += value;
                squares = FMA(value, value, squares);
            }
            both[0][v] += (double)sum;
            both[1][v] += (double)squares;
        }
    }
    channel_totals all;
    if (add_sums<V>(&all, m, s, sums, both)) {
        double mean = all.of[0] / (double)m.rows, squares = all.of[1] - all.of[0] * mean;
        sums.total[all.channel] = (double)td_get(((const S *)x)[all.channel]) + mean;
        sums.total[m.channels + all.channel] = squares <= 0 ? 0 : squares; /* NaN stays */
    }
}

extern "C" void td_cuda_launch_channel_sums(const td_cuda_matrix *m, const td_cuda_sums *sums,
                                            const void *x, cudaStream_t stream){
    TD_CUDA_LAUNCH_MATRIX(channel_sums, m, stream, *sums, x)
}

/* ---- constants of y = (x - mean) * scale + shift ---- */

__device__ static inline void update_running(const td_cuda_channel &running, int64_t c,
                                             double momentum, double value)
{
    if (running.at) {
        set_channel(running, c, (1.0 - momentum) * channel_or(running, c, 0) + momentum * value);
    }
}

/* A channel's constants: mean, scale, shift. writes: also what they leave behind, which one thread
 * does. What rounding takes from the mean goes into the shift. */
template <class T>
__device__ static inline void find_constants(T *constants, const td_cuda_matrix &m,
                                             const td_cuda_norm &norm, int64_t c, bool writes)
{
    double n = (double)m.rows, mean, variance;
    if (norm.training) {
        double squares = norm.statistics[m.channels + c];
        mean = norm.statistics[c];
        variance = squares / n;
        if (writes) {
            update_running(norm.running_mean, c, norm.momentum, mean);
            update_running(norm.running_var, c, norm.momentum, squares / (n > 1 ? n - 1 : 1));
        }
    } else {
        mean = channel_or(norm.running_mean, c, 0);
        variance = channel_or(norm.running_var, c, 1);
    }
    double inv_std = 1.0 / sqrt(variance + norm.eps);
    double scale = channel_or(norm.weight, c, 1) * inv_std;
    double lost = mean - (double)(T)mean;
    constants[0] = (T)mean;
    constants[1] = (T)scale;
    constants[2] = (T)(channel_or(norm.bias, c, 0) - lost * scale);
    if (writes) {
        set_channel(norm.mean, c, mean);
        set_channel(norm.inv_std, c, inv_std);
    }
    if (writes && norm.affine) {
        T *affine = (T *)norm.affine + c;
        affine[0] = constants[1];
        affine[m.channels] = constants[2];
    }
}

/* For normalize_pool, whose blocks have pixels with all of their channels. */
template <class T> __global__ void norm_prepare(td_cuda_matrix m, td_cuda_norm norm, void *to)
{
    int64_t c = TD_WALK_BEGIN;
    if (c < m.channels) {
        T constants[3];
        find_constants(constants, m, norm, c, true);
        for (int k = 0; k < 3; k++) {
            ((T *)to)[k * m.channels + c] = constants[k];
        }
    }
}

extern "C" void td_cuda_launch_norm_prepare(const td_cuda_matrix *m, const td_cuda_norm *norm,
                                            void *constants, cudaStream_t stream)
{
    unsigned blocks = (unsigned)((m->channels + 31) / 32);
    if (m->dtype == TD_F64) {
        TD_LAUNCH((norm_prepare<double>), blocks, 32, stream, *m, *norm, constants);
    } else {
        TD_LAUNCH((norm_prepare<float>), blocks, 32, stream, *m, *norm, constants);
    }
}

/* ---- applying them ---- */

/* A block finds the constants of its channels itself. */
template <class S, int V>
__global__ void __launch_bounds__(TD_CUDA_THREADS, 4)
    normalize(td_cuda_matrix m, td_cuda_norm norm, void *yv, const void *xv, const void *addv,
              td_norm_activation activation)
{
    enum { ROWS = 4 }; /* that a thread loads at once */
    typedef typename td_computed<S>::type T;
    __shared__ T constants[TILE_CHANNELS][3];
    matrix_share s = share_of(m);
    int tile = m.wide * V;
    int64_t channel = blockIdx.x % m.tiles * tile + threadIdx.x;
    if ((int)threadIdx.x < tile && channel < m.channels) {
        find_constants(constants[threadIdx.x], m, norm, channel, s.chunk == 0);
    }
    __syncthreads();
    if (s.channel >= m.channels) {
        return;
    }
    T mean[V], scale[V], shift[V];
    for (int v = 0; v < V; v++) {
        const T *from = constants[(int)threadIdx.x % m.wide * V + v];
        mean[v] = from[0];
        scale[v] = from[1];
        shift[v] = from[2];
    }
    for (int64_t r = s.begin; r < s.end; r += ROWS * s.members) {
        td_pack<S, V> x[ROWS], add[ROWS] = {}, none = {};
        load_rows<ROWS>(x, xv, m, s, r, none);
        if (addv) {
            load_rows<ROWS>(add, addv, m, s, r, none);
        }
        TD_UNROLLED(ROWS) /* x in registers: too long a body for the compiler to do it unasked */
        for (int i = 0; i < ROWS; i++) {
            int64_t row = r + i * s.members;
            td_pack<S, V> y;
            for (int v = 0; v < V; v++) {
                T value = TD_NORM(td_get(x[i].at[v]), mean[v], scale[v], shift[v]);
                if (addv) {
                    value += td_get(add[i].at[v]);
                }
                y.at[v] = td_put<S>(activation == TD_NORM_RELU ? TD_RELU(value) : value);
                if (activation == TD_NORM_GELU) {
                    value = td_get(y.at[v]);
                    y.at[v] = td_put<S>(TD_GELU(value));
                }
            }
            if (row < s.end) {
                td_store_pack<V>((S *)yv + row * m.channels + s.channel, y);
            }
        }
    }
}

extern "C" void td_cuda_launch_normalize(const td_cuda_matrix *m, const td_cuda_norm *norm, void *y,
                                         const void *x, const void *add,
                                         td_norm_activation activation, cudaStream_t stream)
{
    TD_CUDA_LAUNCH_MATRIX(normalize, m, stream, *norm, y, x, add, activation)
}

/* A thread for each pack of channels of each pooled pixel. NaN is larger than all. */
template <class S, int V>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
    normalize_pool(td_cuda_matrix m, void *yv, uint8_t *index, const void *xv,
                   const void *constants, td_cuda_pool p)
{
    typedef typename td_computed<S>::type T;
    int64_t packs = m.channels / V, count = p.n * p.oh * p.ow * packs;
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < count; i += TD_WALK_STEP) {
        int64_t channel = i % packs * V, pixel = i / packs;
        int64_t ow = pixel % p.ow, oh = pixel / p.ow % p.oh, n = pixel / p.ow / p.oh;
        T mean[V], scale[V], shift[V], best[V];
        load_channels<V>(mean, constants, channel);
        load_channels<V>(scale, constants, m.channels + channel);
        load_channels<V>(shift, constants, 2 * m.channels + channel);
        td_pack<uint8_t, V> where;
        for (int v = 0; v < V; v++) {
            best[v] = 0;
            where.at[v] = 255;
        }
        for (int kh = 0; kh < p.window.kernel[0]; kh++) {
            int64_t h = oh * p.window.stride[0] - p.window.pad[0] + kh;
            for (int kw = 0; kw < p.window.kernel[1]; kw++) {
                int64_t w = ow * p.window.stride[1] - p.window.pad[1] + kw;
                if (h < 0 || h >= p.h || w < 0 || w >= p.w) {
                    continue;
                }
                const S *from = (const S *)xv + ((n * p.h + h) * p.w + w) * m.channels + channel;
                td_pack<S, V> x = td_load_pack<V>(from);
                for (int v = 0; v < V; v++) {
                    T value = TD_NORM(td_get(x.at[v]), mean[v], scale[v], shift[v]);
                    bool takes = TD_POOL_TAKES(value, best[v]);
                    best[v] = takes ? value : best[v];
                    where.at[v] = takes ? (uint8_t)(kh * p.window.kernel[1] + kw) : where.at[v];
                }
            }
        }
        td_pack<S, V> y;
        for (int v = 0; v < V; v++) {
            y.at[v] = td_put<S>(best[v]);
        }
        td_store_pack<V>((S *)yv + i * V, y);
        if (index) {
            td_store_pack<V>(index + i * V, where);
        }
    }
}

extern "C" void td_cuda_launch_normalize_pool(const td_cuda_matrix *matrix, void *y, uint8_t *index,
                                              const void *x, const void *constants,
                                              const td_cuda_pool *pool, cudaStream_t stream)
{
    td_cuda_matrix m = *matrix; /* its blocks are of pooled pixels */
    m.tiles = 1;
    m.chunks = td_blocks(pool->n * pool->oh * pool->ow * (m.channels / m.lanes), TD_CUDA_THREADS,
                         8 * TD_CUDA_MOST_BLOCKS);
    TD_CUDA_LAUNCH_MATRIX(normalize_pool, &m, stream, y, index, x, constants, *pool)
}
