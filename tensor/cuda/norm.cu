/* Batch normalisation, forward. Each thread finds the mean of a few rows and the squares about it;
 * what threads and chunks have found is joined in double by the formula for the variance of a union
 * (Chan, Golub and LeVeque 1979), so a large mean costs no accuracy. */
#include "tensor/cuda/norm.cuh"

enum {
    WANTED_BLOCKS = 512, /* a few for each multiprocessor of a large GPU */
    MOST_ROWS = 64,      /* that a thread adds up in T */
};

extern "C" td_cuda_matrix td_cuda_matrix_of(int64_t rows, int64_t channels, td_dtype dtype,
                                            bool packs)
{
    int lanes = dtype == TD_F64 ? 1 : dtype == TD_F32 ? 4 : 8;
    td_cuda_matrix m = { rows, channels, dtype, 1, 1, 1, 1, 0 };
    m.lanes = packs && channels % lanes == 0 ? lanes : 1;
    int64_t count = channels / m.lanes;
    while (m.wide < 32 && m.wide < count) {
        m.wide *= 2;
    }
    m.tiles = (count + m.wide - 1) / m.wide;
    int64_t high = TD_CUDA_THREADS / m.wide; /* rows of a block */
    int64_t blocks = WANTED_BLOCKS / m.tiles > 0 ? WANTED_BLOCKS / m.tiles : 1;
    int64_t each = (rows + high * blocks - 1) / (high * blocks);
    each = each < 1 ? 1 : each > MOST_ROWS ? (int64_t)MOST_ROWS : each;
    m.chunk = each * high;
    m.chunks = (rows + m.chunk - 1) / m.chunk;
    return m;
}

/* ---- statistics ---- */

/* Mean and sum of squares about it of n elements. */
struct moments_of {
    double n, mean, squares;
};

__device__ static inline moments_of joined(const moments_of &a, const moments_of &b)
{
    if (a.n == 0 || b.n == 0) {
        return a.n == 0 ? b : a;
    }
    moments_of both;
    double delta = b.mean - a.mean;
    both.n = a.n + b.n;
    both.mean = a.mean + delta * (b.n / both.n);
    both.squares = a.squares + b.squares + delta * delta * (a.n * b.n / both.n);
    return both;
}

/* A thread's sums are of differences to its first element, which is one of those it adds up: so
 * they lose nothing to a large mean. */
template <class S, int V>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
    moments(td_cuda_matrix m, double *partial, const void *xv)
{
    const S *x = (const S *)xv;
    typedef typename td_computed<S>::type T;
    __shared__ moments_of part[TD_CUDA_THREADS];
    matrix_share s = share_of(m);
    bool works = s.channel < m.channels && s.begin < s.end;
    T first[V], sum[V], squares[V];
    int n = 0;
    for (int v = 0; v < V; v++) {
        sum[v] = squares[v] = 0;
        first[v] = works ? td_get(x[s.begin * m.channels + s.channel + v]) : (T)0;
    }
    for (int64_t r = s.begin; works && r < s.end; r += s.members) {
        td_pack<S, V> pack = td_load_pack<V>(x + r * m.channels + s.channel);
        for (int v = 0; v < V; v++) {
            T d = td_get(pack.at[v]) - first[v];
            sum[v] += d;
            squares[v] = FMA(d, d, squares[v]);
        }
        n++;
    }
    for (int v = 0; v < V; v++) {
        moments_of mine = { (double)n, 0, 0 };
        if (n > 0) {
            double off = (double)sum[v] / n;
            mine.mean = (double)first[v] + off;
            mine.squares = (double)squares[v] - off * (double)sum[v];
        }
        part[threadIdx.x] = mine;
        for (int half = s.members / 2; half > 0; half /= 2) {
            __syncthreads();
            if (s.member < half) {
                part[threadIdx.x] = joined(part[threadIdx.x], part[threadIdx.x + half * m.wide]);
            }
        }
        if (s.member == 0 && s.channel < m.channels) {
            double *to = partial + 2 * s.chunk * m.channels + s.channel + v;
            to[0] = part[threadIdx.x].mean;
            to[m.channels] = part[threadIdx.x].squares;
        }
        __syncthreads();
    }
}

extern "C" void td_cuda_launch_moments(const td_cuda_matrix *m, double *partial, const void *x,
                                       cudaStream_t stream)
{
    TD_CUDA_LAUNCH_MATRIX(moments, m, stream, partial, x)
}

enum { FEW_ROWS = 8 }; /* that are added up in T: what is subtracted later may leave little */

/* Sums and sums of squares. Squares are not about a mean: for what a convolution has written. */
template <class S, int V>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
    channel_sums(td_cuda_matrix m, double *partial, const void *xv)
{
    typedef typename td_computed<S>::type T;
    matrix_share s = share_of(m);
    double both[2][V];
    for (int v = 0; v < V; v++) {
        both[0][v] = both[1][v] = 0;
    }
    for (int64_t r = s.begin; s.channel < m.channels && r < s.end;) {
        T sum[V], squares[V];
        for (int v = 0; v < V; v++) {
            sum[v] = squares[v] = 0;
        }
        for (int row = 0; row < FEW_ROWS && r < s.end; row++, r += s.members) {
            td_pack<S, V> pack = td_load_pack<V>((const S *)xv + r * m.channels + s.channel);
            for (int v = 0; v < V; v++) {
                T value = td_get(pack.at[v]);
                sum[v] += value;
                squares[v] = FMA(value, value, squares[v]);
            }
        }
        for (int v = 0; v < V; v++) {
            both[0][v] += (double)sum[v];
            both[1][v] += (double)squares[v];
        }
    }
    store_sums<V>(m, s, partial, both);
}

extern "C" void td_cuda_launch_channel_sums(const td_cuda_matrix *m, double *partial, const void *x,
                                            cudaStream_t stream)
{
    TD_CUDA_LAUNCH_MATRIX(channel_sums, m, stream, partial, x)
}

/* ---- over chunks ---- */

enum { COLUMNS = 32, MEMBERS = 8 }; /* of a block: channels, and threads that share one */

__global__ void add_chunks(td_cuda_matrix m, double *sums, const double *partial)
{
    __shared__ double part[MEMBERS][COLUMNS];
    int64_t i = (int64_t)blockIdx.x * COLUMNS + threadIdx.x, count = 2 * m.channels;
    double sum = 0;
    for (int64_t chunk = threadIdx.y; i < count && chunk < m.chunks; chunk += MEMBERS) {
        sum += partial[chunk * count + i];
    }
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && i < count) {
        for (int k = 1; k < MEMBERS; k++) {
            sum += part[k][threadIdx.x];
        }
        sums[i] = sum;
    }
}

extern "C" void td_cuda_launch_add_chunks(const td_cuda_matrix *m, double *sums,
                                          const double *partial, cudaStream_t stream)
{
    unsigned blocks = (unsigned)((2 * m->channels + COLUMNS - 1) / COLUMNS);
    TD_LAUNCH((add_chunks), blocks, dim3(COLUMNS, MEMBERS), stream, *m, sums, partial);
}

/* The moments of channel c over all chunks, in thread 0 of those that share it. All come. */
__device__ static inline moments_of all_chunks(const td_cuda_matrix &m, const double *partial,
                                               int64_t c)
{
    __shared__ moments_of part[MEMBERS][COLUMNS];
    moments_of mine = { 0, 0, 0 };
    for (int64_t chunk = threadIdx.y; c < m.channels && chunk < m.chunks; chunk += MEMBERS) {
        int64_t left = m.rows - chunk * m.chunk;
        const double *from = partial + 2 * chunk * m.channels + c;
        moments_of next = { (double)(left < m.chunk ? left : m.chunk), from[0], from[m.channels] };
        mine = joined(mine, next);
    }
    part[threadIdx.y][threadIdx.x] = mine;
    __syncthreads();
    for (int k = 1; threadIdx.y == 0 && k < MEMBERS; k++) {
        mine = joined(mine, part[k][threadIdx.x]);
    }
    return mine;
}

__device__ static inline void update_running(const td_cuda_channel &running, int64_t c,
                                             double momentum, double value)
{
    if (running.at) {
        set_channel(running, c, (1.0 - momentum) * channel_or(running, c, 0) + momentum * value);
    }
}

/* What rounding takes from the mean goes into the shift. */
template <class T> __global__ void norm_prepare(td_cuda_matrix m, td_cuda_norm norm)
{
    int64_t c = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    moments_of found = { (double)m.rows, 0, 0 };
    if (norm.partial) {
        found = all_chunks(m, norm.partial, c);
    }
    if (threadIdx.y > 0 || c >= m.channels) {
        return;
    }
    if (norm.sums) {
        double sum = norm.sums[c];
        found.mean = sum / found.n;
        found.squares = norm.sums[m.channels + c] - sum * found.mean;
        found.squares = found.squares <= 0 ? 0 : found.squares; /* NaN stays */
    }
    double mean = found.mean, variance = found.squares / found.n;
    if (norm.training) {
        double n = found.n > 1 ? found.n - 1 : 1;
        update_running(norm.running_mean, c, norm.momentum, mean);
        update_running(norm.running_var, c, norm.momentum, found.squares / n);
    } else {
        mean = channel_or(norm.running_mean, c, 0);
        variance = channel_or(norm.running_var, c, 1);
    }
    double inv_std = 1.0 / sqrt(variance + norm.eps);
    double scale = channel_or(norm.weight, c, 1) * inv_std;
    double lost = mean - (double)(T)mean;
    double shift = channel_or(norm.bias, c, 0) - lost * scale;
    set_channel(norm.mean, c, mean);
    set_channel(norm.inv_std, c, inv_std);
    T *constants = (T *)norm.constants + c, *affine = (T *)norm.affine + c;
    constants[0] = (T)mean;
    constants[m.channels] = (T)scale;
    constants[2 * m.channels] = (T)shift;
    if (norm.affine) {
        affine[0] = (T)scale;
        affine[m.channels] = (T)shift;
    }
}

extern "C" void td_cuda_launch_norm_prepare(const td_cuda_matrix *m, const td_cuda_norm *norm,
                                            cudaStream_t stream)
{
    unsigned blocks = (unsigned)((m->channels + COLUMNS - 1) / COLUMNS);
    if (m->dtype == TD_F64) {
        TD_LAUNCH((norm_prepare<double>), blocks, dim3(COLUMNS, MEMBERS), stream, *m, *norm);
    } else {
        TD_LAUNCH((norm_prepare<float>), blocks, dim3(COLUMNS, MEMBERS), stream, *m, *norm);
    }
}

/* ---- applying them ---- */

template <class S, int V>
__global__ void __launch_bounds__(TD_CUDA_THREADS)
    normalize(td_cuda_matrix m, void *yv, const void *xv, const void *constants, const void *addv,
              bool relu)
{
    typedef typename td_computed<S>::type T;
    matrix_share s = share_of(m);
    if (s.channel >= m.channels) {
        return;
    }
    T mean[V], scale[V], shift[V];
    load_channels<V>(mean, constants, s.channel);
    load_channels<V>(scale, constants, m.channels + s.channel);
    load_channels<V>(shift, constants, 2 * m.channels + s.channel);
    for (int64_t r = s.begin; r < s.end; r += s.members) {
        int64_t at = r * m.channels + s.channel;
        td_pack<S, V> x = td_load_pack<V>((const S *)xv + at), add = x, y;
        if (addv) {
            add = td_load_pack<V>((const S *)addv + at);
        }
        for (int v = 0; v < V; v++) {
            T value = TD_NORM(td_get(x.at[v]), mean[v], scale[v], shift[v]);
            if (addv) {
                value += td_get(add.at[v]);
            }
            y.at[v] = td_put<S>(relu ? TD_RELU(value) : value);
        }
        td_store_pack<V>((S *)yv + at, y);
    }
}

extern "C" void td_cuda_launch_normalize(const td_cuda_matrix *m, void *y, const void *x,
                                         const void *constants, const void *add, bool relu,
                                         cudaStream_t stream)
{
    TD_CUDA_LAUNCH_MATRIX(normalize, m, stream, y, x, constants, add, relu)
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
