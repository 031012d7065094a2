/* Filling, copying, looking for numbers that are not finite. Elements that only move are moved by
 * size, whatever their type. */
#include "tensor/cuda/compute.cuh"
#include "tensor/cuda/launch_memory.h"
#include "tensor/kernels/scaling.h"

static unsigned memory_blocks_for(int64_t count)
{
    return td_blocks(count, TD_CUDA_THREADS, TD_CUDA_MOST_BLOCKS);
}

/* ---- fill ---- */

template <class W, int V> __global__ void fill(W *y, W value, td_cuda_walk walk, int tail)
{
    td_pack<W, V> pack;
    for (int v = 0; v < V; v++) {
        pack.at[v] = value;
    }
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < walk.count; i += TD_WALK_STEP) {
        int64_t place[1];
        td_cuda_places<1>(walk, i, place);
        td_store_pack<V>(y + place[0], pack);
    }
    if (TD_WALK_BEGIN < tail) {
        y[walk.count * V + TD_WALK_BEGIN] = value;
    }
}

template <class W> static void launch_fill(W *y, W value, td_cuda_walk walk, cudaStream_t stream)
{
    enum { V = td_lanes<W>::count };
    const void *memory[] = { y };
    int tail = 0;
    if (td_cuda_walk_in_packs(&walk, 1, memory, V, 16, &tail)) {
        TD_LAUNCH((fill<W, V>), memory_blocks_for(walk.count), TD_CUDA_THREADS, stream, y, value,
                  walk, tail);
        return;
    }
    TD_LAUNCH((fill<W, 1>), memory_blocks_for(walk.count), TD_CUDA_THREADS, stream, y, value, walk,
              0);
}

extern "C" void td_cuda_launch_fill(void *y, td_dtype dtype, double value, td_cuda_walk walk,
                                    cudaStream_t stream)
{
    uint64_t bits = 0;
#define STORE(S)                                                                                   \
    {                                                                                              \
        S rounded = td_put<S>(value);                                                              \
        memcpy(&bits, &rounded, sizeof rounded);                                                   \
    }
    TD_CUDA_FOR_DTYPE(dtype, STORE)
#undef STORE
#define LAUNCH(W) launch_fill((W *)y, (W)bits, walk, stream)
    TD_CUDA_FOR_SIZE(dtype, LAUNCH)
#undef LAUNCH
}

/* ---- copy: the same dtype ---- */

template <class W, int V> __global__ void move(W *y, const W *x, td_cuda_walk walk, int tail)
{
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < walk.count; i += TD_WALK_STEP) {
        int64_t place[2];
        td_cuda_places<2>(walk, i, place);
        td_pack<W, V> pack;
        if (V == 1 || walk.stride[1][walk.ndim - 1] != 0) {
            pack = td_load_pack<V>(x + place[1]);
        } else {
            for (int v = 0; v < V; v++) {
                pack.at[v] = x[place[1]];
            }
        }
        td_store_pack<V>(y + place[0], pack);
    }
    if (TD_WALK_BEGIN < tail) {
        int64_t at = walk.count * V + TD_WALK_BEGIN;
        y[at] = x[walk.stride[1][0] != 0 ? at : 0];
    }
}

/* A transposition: planes of rows x columns, where y is dense along the columns and x along the
 * rows (or nearly so). Tiles go through shared memory, so that both sides are accessed in whole
 * lines. They are square, but for planes with fewer rows or columns than that: 9 taps of 3x3. */
enum {
    TILE_LOG = 10,      /* elements of a tile */
    LEAST_SIDE_LOG = 3, /* of a plane and a tile */
    PITCH_MORE = 1,     /* so that a row's elements are in different banks */
};

typedef struct planes {
    int64_t rows, columns;
    int64_t y_row, x_row, x_column; /* strides */
    int row_log, column_log;        /* rows and columns of a tile */
    int64_t across, down;           /* tiles of a plane */
    td_cuda_walk outer;             /* the planes */
} planes;

template <class W> __global__ void transpose(W *y, const W *x, planes p)
{
    __shared__ W tile[(1 << TILE_LOG) + (PITCH_MORE << (TILE_LOG - LEAST_SIDE_LOG))];
    int rows = 1 << p.row_log, columns = 1 << p.column_log, pitch = rows + PITCH_MORE;
    int64_t tiles = p.across * p.down;
    for (int64_t t = blockIdx.x; t < tiles * p.outer.count; t += gridDim.x) {
        int64_t place[2];
        td_cuda_places<2>(p.outer, t / tiles, place);
        int64_t row = t % tiles / p.across * rows, column = t % tiles % p.across * columns;
        TD_ROLLED
        for (int i = threadIdx.x; i < 1 << TILE_LOG; i += blockDim.x) {
            int r = i & (rows - 1), c = i >> p.row_log;
            if (row + r < p.rows && column + c < p.columns) {
                tile[c * pitch + r] = x[place[1] + (row + r) * p.x_row + (column + c) * p.x_column];
            }
        }
        __syncthreads();
        TD_ROLLED
        for (int i = threadIdx.x; i < 1 << TILE_LOG; i += blockDim.x) {
            int r = i >> p.column_log, c = i & (columns - 1);
            if (row + r < p.rows && column + c < p.columns) {
                y[place[0] + (row + r) * p.y_row + column + c] = tile[c * pitch + r];
            }
        }
        __syncthreads();
    }
}

/* The sides of a tile: the shorter one is the plane's, rounded up to a power of two, if that is
 * less than in a square. */
static void shape_tiles(planes *p)
{
    int shorter = LEAST_SIDE_LOG;
    while (shorter < TILE_LOG / 2 && 1 << shorter < p->rows && 1 << shorter < p->columns) {
        shorter++;
    }
    p->row_log = p->rows < p->columns ? shorter : TILE_LOG - shorter;
    p->column_log = TILE_LOG - p->row_log;
    p->across = ((p->columns - 1) >> p->column_log) + 1;
    p->down = ((p->rows - 1) >> p->row_log) + 1;
}

/* Finds the dimension along which x is read best, if that is not the one along which y is written,
 * and both are long enough for tiles. */
static bool find_planes(td_cuda_walk walk, planes *p)
{
    enum { LEAST = 1 << LEAST_SIDE_LOG };
    int last = walk.ndim - 1, best = last;
    for (int d = 0; d < last; d++) {
        if (walk.stride[1][d] > 0 && walk.stride[1][d] < walk.stride[1][best]) {
            best = d;
        }
    }
    if (best == last || walk.stride[0][last] != 1 || walk.shape[last] < LEAST ||
        walk.shape[best] < LEAST) {
        return false;
    }
    p->columns = walk.shape[last];
    p->x_column = walk.stride[1][last];
    p->rows = walk.shape[best];
    p->y_row = walk.stride[0][best];
    p->x_row = walk.stride[1][best];
    shape_tiles(p);
    p->outer = walk;
    p->outer.shape[last] = p->outer.shape[best] = 1;
    p->outer.count /= p->rows * p->columns;
    return true;
}

template <class W> static void launch_move(W *y, const W *x, td_cuda_walk walk, cudaStream_t stream)
{
    enum { V = td_lanes<W>::count };
    const void *memory[] = { y, x };
    int tail = 0;
    planes p;
    if (td_cuda_walk_in_packs(&walk, 2, memory, V, 16, &tail)) {
        TD_LAUNCH((move<W, V>), memory_blocks_for(walk.count), TD_CUDA_THREADS, stream, y, x, walk,
                  tail);
    } else if (find_planes(walk, &p)) {
        int64_t tiles = p.across * p.down * p.outer.count;
        unsigned blocks = td_blocks(tiles, 1, 8 * TD_CUDA_MOST_BLOCKS);
        TD_LAUNCH((transpose<W>), blocks, TD_TILE_THREADS, stream, y, x, p);
    } else {
        TD_LAUNCH((move<W, 1>), memory_blocks_for(walk.count), TD_CUDA_THREADS, stream, y, x, walk,
                  0);
    }
}

static void launch_move_of(td_dtype dtype, void *y, const void *x, td_cuda_walk walk,
                           cudaStream_t stream)
{
    if (walk.ndim == 1 && walk.stride[0][0] == 1 && walk.stride[1][0] == 1) {
        size_t bytes = (size_t)walk.count * td_cuda_dtype_size(dtype);
        cudaMemcpyAsync(y, x, bytes, cudaMemcpyDeviceToDevice, stream);
        return;
    }
#define LAUNCH(W) launch_move((W *)y, (const W *)x, walk, stream)
    TD_CUDA_FOR_SIZE(dtype, LAUNCH)
#undef LAUNCH
}

/* ---- copy: between dtypes ---- */

/* The pairs that training needs often: from or to f32, four elements at a time. */
template <class Y, class X, int V>
__global__ void convert(Y *y, const X *x, td_cuda_walk walk, int tail)
{
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < walk.count; i += TD_WALK_STEP) {
        int64_t place[2];
        td_cuda_places<2>(walk, i, place);
        td_pack<X, V> from = td_load_pack<V>(x + place[1]);
        td_pack<Y, V> to;
        for (int v = 0; v < V; v++) {
            to.at[v] = td_put<Y>(td_get(from.at[v]));
        }
        td_store_pack<V>(y + place[0], to);
    }
    if (TD_WALK_BEGIN < tail) {
        int64_t at = walk.count * V + TD_WALK_BEGIN;
        y[at] = td_put<Y>(td_get(x[at]));
    }
}

template <class Y, class X>
static void launch_convert(Y *y, const X *x, td_cuda_walk walk, cudaStream_t stream)
{
    const void *memory[] = { y, x };
    int tail = 0;
    if (walk.stride[1][walk.ndim - 1] == 1 &&
        td_cuda_walk_in_packs(&walk, 2, memory, 4, 16, &tail)) {
        TD_LAUNCH((convert<Y, X, 4>), memory_blocks_for(walk.count), TD_CUDA_THREADS, stream, y, x,
                  walk, tail);
        return;
    }
    TD_LAUNCH((convert<Y, X, 1>), memory_blocks_for(walk.count), TD_CUDA_THREADS, stream, y, x,
              walk, 0);
}

/* Any pair: by way of double, which holds every value of the others but large i64. */
__global__ void convert_any(void *y, td_dtype y_dtype, const void *x, td_dtype x_dtype,
                            td_cuda_walk walk)
{
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < walk.count; i += TD_WALK_STEP) {
        int64_t place[2];
        td_cuda_places<2>(walk, i, place);
        double value = 0;
#define LOAD(X) value = (double)td_get(((const X *)x)[place[1]])
        TD_CUDA_FOR_DTYPE(x_dtype, LOAD)
#undef LOAD
#define STORE(Y) ((Y *)y)[place[0]] = td_put<Y>(value)
        TD_CUDA_FOR_DTYPE(y_dtype, STORE)
#undef STORE
    }
}

extern "C" void td_cuda_launch_copy(void *y, td_dtype y_dtype, const void *x, td_dtype x_dtype,
                                    td_cuda_walk walk, cudaStream_t stream)
{
    if (y_dtype == x_dtype) {
        launch_move_of(y_dtype, y, x, walk, stream);
    } else if (y_dtype == TD_F32 && x_dtype == TD_BF16) {
        launch_convert((float *)y, (const __nv_bfloat16 *)x, walk, stream);
    } else if (y_dtype == TD_BF16 && x_dtype == TD_F32) {
        launch_convert((__nv_bfloat16 *)y, (const float *)x, walk, stream);
    } else if (y_dtype == TD_F32 && x_dtype == TD_F16) {
        launch_convert((float *)y, (const __half *)x, walk, stream);
    } else if (y_dtype == TD_F16 && x_dtype == TD_F32) {
        launch_convert((__half *)y, (const float *)x, walk, stream);
    } else {
        TD_LAUNCH((convert_any), memory_blocks_for(walk.count), TD_CUDA_THREADS, stream, y, y_dtype,
                  x, x_dtype, walk);
    }
}

/* ---- not finite ---- */

/* An infinity or NaN: the exponent's bits are all set. Threads that find one write the same. */
template <class W> __global__ void find_set(int *found, const W *x, W exponent, td_cuda_walk walk)
{
    bool any = false;
    for (int64_t i = TD_WALK_BEGIN; i < walk.count; i += TD_WALK_STEP) {
        int64_t place[1];
        td_cuda_places<1>(walk, i, place);
        any = any || (W)(x[place[0]] & exponent) == exponent;
    }
    if (any) {
        *found = 1;
    }
}

extern "C" void td_cuda_launch_find_not_finite(int *found, const void *x, td_dtype dtype,
                                               td_cuda_walk walk, cudaStream_t stream)
{
    unsigned blocks = memory_blocks_for(walk.count);
#define FIND(W, exponent)                                                                          \
    TD_LAUNCH((find_set<W>), blocks, TD_CUDA_THREADS, stream, found, (const W *)x, (W)(exponent),  \
              walk)
    if (dtype == TD_F32) {
        FIND(uint32_t, 0x7f800000u);
    } else if (dtype == TD_F64) {
        FIND(uint64_t, UINT64_C(0x7ff0000000000000));
    } else {
        FIND(uint16_t, dtype == TD_BF16 ? 0x7f80u : 0x7c00u);
    }
#undef FIND
}

template <class S, int V>
__global__ void unscale(int *found, S *x, const double *scale, int64_t packs, int tail)
{
    typedef typename td_computed<S>::type T;
    T factor = (T)(1.0 / scale[TD_SCALE_FACTOR]);
    bool any = false;
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < packs; i += TD_WALK_STEP) {
        td_pack<S, V> pack = td_load_pack<V>(x + i * V);
        for (int v = 0; v < V; v++) {
            T value = td_get(pack.at[v]);
            any = any || !isfinite(value);
            pack.at[v] = td_put<S>(value * factor);
        }
        td_store_pack<V>(x + i * V, pack);
    }
    if (TD_WALK_BEGIN < tail) {
        S *last = x + packs * V + TD_WALK_BEGIN;
        any = any || !isfinite(td_get(*last));
        *last = td_put<S>(td_get(*last) * factor);
    }
    if (any) {
        *found = 1;
    }
}

template <class S>
static void launch_unscale(int *found, void *x, const double *scale, int64_t count,
                           cudaStream_t stream)
{
    enum { V = td_lanes<S>::count };
    if (td_aligned(x, 16)) {
        TD_LAUNCH((unscale<S, V>), memory_blocks_for(count / V), TD_CUDA_THREADS, stream, found,
                  (S *)x, scale, count / V, (int)(count % V));
    } else {
        TD_LAUNCH((unscale<S, 1>), memory_blocks_for(count), TD_CUDA_THREADS, stream, found, (S *)x,
                  scale, count, 0);
    }
}

extern "C" void td_cuda_launch_unscale(int *found, void *x, td_dtype dtype, const double *scale,
                                       int64_t count, cudaStream_t stream)
{
#define LAUNCH(S) launch_unscale<S>(found, x, scale, count, stream);
    TD_CUDA_FOR_FLOAT(dtype, LAUNCH)
#undef LAUNCH
}

__global__ void adapt_scale(double *scale, const int *found, td_scale_rule rule)
{
    td_scale_adapt(scale, *found != 0, &rule);
}

extern "C" void td_cuda_launch_adapt_scale(double *scale, const int *found,
                                           const td_scale_rule *rule, cudaStream_t stream)
{
    TD_LAUNCH((adapt_scale), 1, 1, stream, scale, found, *rule);
}

/* ---- clipping ---- */

enum { SQUARES_EACH = 4096, SQUARES_MOST = 512 }; /* elements of a block, and blocks */

extern "C" int td_cuda_square_blocks(int64_t count)
{
    int64_t blocks = (count + SQUARES_EACH - 1) / SQUARES_EACH;
    return blocks < SQUARES_MOST ? (int)blocks : SQUARES_MOST;
}

/* sums[b] = the squares of a block's part of x. */
template <class S> __global__ void square_sums(double *sums, const S *x, int64_t count)
{
    int64_t each = (count + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * each;
    int64_t end = begin + each < count ? begin + each : count;
    double sum = 0.0;
    TD_UNROLLED(8)
    for (int64_t i = begin + threadIdx.x; i < end; i += TD_CUDA_THREADS) {
        double value = (double)td_get(x[i]);
        sum += value * value;
    }
    sum = td_block_sum<TD_CUDA_THREADS / 32>(sum);
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = sum;
    }
}

extern "C" void td_cuda_launch_square_sums(double *sums, const void *x, td_dtype dtype,
                                           int64_t count, cudaStream_t stream)
{
    unsigned blocks = (unsigned)td_cuda_square_blocks(count);
#define LAUNCH(S)                                                                                  \
    TD_LAUNCH((square_sums<S>), blocks, TD_CUDA_THREADS, stream, sums, (const S *)x, count);
    TD_CUDA_FOR_FLOAT(dtype, LAUNCH)
#undef LAUNCH
}

/* Each block adds up all sums, in the same order. Zero stays zero, also by NaN: in flat memory
 * there are zeros between the gradients, which nothing writes again. */
template <class S>
__global__ void clip(S *x, int64_t count, const double *sums, int blocks, double max_norm,
                     double *norm)
{
    typedef typename td_computed<S>::type T;
    double sum = 0.0;
    for (int i = threadIdx.x; i < blocks; i += TD_CUDA_THREADS) {
        sum += sums[i];
    }
    sum = sqrt(td_block_sum<TD_CUDA_THREADS / 32>(sum));
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *norm = sum;
    }
    double wanted = max_norm / (sum + 1e-6);
    if (wanted >= 1.0) { /* NaN goes on */
        return;
    }
    T by = (T)wanted;
    for (int64_t i = TD_WALK_BEGIN; i < count; i += TD_WALK_STEP) {
        T value = td_get(x[i]);
        x[i] = td_put<S>(value == (T)0 ? value : value * by);
    }
}

extern "C" void td_cuda_launch_clip(void *x, td_dtype dtype, int64_t count, const double *sums,
                                    int blocks, double max_norm, double *norm, cudaStream_t stream)
{
#define LAUNCH(S)                                                                                  \
    TD_LAUNCH((clip<S>), memory_blocks_for(count), TD_CUDA_THREADS, stream, (S *)x, count, sums,   \
              blocks, max_norm, norm);
    TD_CUDA_FOR_FLOAT(dtype, LAUNCH)
#undef LAUNCH
}
