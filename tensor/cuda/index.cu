/* Kernels that find, check or follow indices: argmax, embedding and its gradient, range checks,
 * hits of top k. */
#include "tensor/cuda/compute.cuh"
#include "tensor/cuda/launch_index.h"

static unsigned index_blocks_for(int64_t count)
{
    return td_blocks(count, TD_CUDA_THREADS, TD_CUDA_MOST_BLOCKS);
}

/* ---- argmax ---- */

/* Whether (value, at) comes before (best, place): larger, or NaN, or as large and earlier. */
template <class T>
__device__ static inline bool is_before(T value, int64_t at, T best, int64_t place)
{
    bool odd = value != value, best_odd = best != best; /* NaN */
    if (odd || best_odd) {
        return odd && (!best_odd || at < place);
    }
    return value > best || (value == best && at < place);
}

/* LANES threads for an output: 1, or 32, which share the dimension. */
template <class S, int LANES>
__global__ void argmax(int64_t *index, const S *x, int64_t n, int64_t stride, td_cuda_walk walk)
{
    int lane = (int)threadIdx.x % LANES;
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN / LANES; i < walk.count; i += TD_WALK_STEP / LANES) {
        int64_t place[2];
        td_cuda_places<2>(walk, i, place);
        const S *from = x + place[1];
        int64_t at = lane < n ? lane : 0;
        auto best = td_get(from[at * stride]);
        for (int64_t k = at + LANES; k < n; k += LANES) {
            auto value = td_get(from[k * stride]);
            if (is_before(value, k, best, at)) {
                best = value;
                at = k;
            }
        }
        for (int by = LANES / 2; by > 0; by /= 2) {
            auto value = __shfl_xor_sync(0xffffffffu, best, by);
            int64_t k = (int64_t)__shfl_xor_sync(0xffffffffu, (long long)at, by);
            if (is_before(value, k, best, at)) {
                best = value;
                at = k;
            }
        }
        if (lane == 0) {
            index[place[0]] = at;
        }
    }
}

extern "C" void td_cuda_launch_argmax(int64_t *index, const void *x, td_dtype dtype, int64_t n,
                                      int64_t stride, td_cuda_walk walk, cudaStream_t stream)
{
    bool by_warp = stride == 1 && n >= 16;
#define LAUNCH(S)                                                                                  \
    if (by_warp) {                                                                                 \
        TD_LAUNCH((argmax<S, 32>), index_blocks_for(32 * walk.count), TD_CUDA_THREADS, stream,     \
                  index, (const S *)x, n, stride, walk);                                           \
    } else {                                                                                       \
        TD_LAUNCH((argmax<S, 1>), index_blocks_for(walk.count), TD_CUDA_THREADS, stream, index,    \
                  (const S *)x, n, stride, walk);                                                  \
    }
    TD_CUDA_FOR_DTYPE(dtype, LAUNCH)
#undef LAUNCH
}

/* ---- embedding ---- */

template <class W>
__global__ void embedding(W *y, const W *table, const int64_t *index, int64_t count, int64_t rows,
                          int64_t d)
{
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < count * d; i += TD_WALK_STEP) {
        int64_t row = i / d;
        int64_t from = index[row];
        y[i] = td_is_within(from, rows) ? table[from * d + (i - row * d)] : (W)-1;
    }
}

extern "C" void td_cuda_launch_embedding(void *y, const void *table, int size, const int64_t *index,
                                         int64_t count, int64_t rows, int64_t d,
                                         cudaStream_t stream)
{
    unsigned blocks = index_blocks_for(count * d);
#define LAUNCH(W)                                                                                  \
    TD_LAUNCH((embedding<W>), blocks, TD_CUDA_THREADS, stream, (W *)y, (const W *)table, index,    \
              count, rows, d)
    if (size == 2) {
        LAUNCH(uint16_t);
    } else if (size == 4) {
        LAUNCH(uint32_t);
    } else {
        LAUNCH(uint64_t);
    }
#undef LAUNCH
}

/* The gradient. Indices are sorted with their places (one block, a digit at a time), so the rows of
 * dy that belong to one row of the table come one after the other, in order. Pieces of the sorted
 * rows are added up side by side; what a row of the table has in several pieces is then put
 * together in their order. So sums have one order, and many rows with one index (padding) are not
 * added up by one thread. */
enum {
    DIGIT_BITS = 4,
    DIGITS = 1 << DIGIT_BITS,
    SORTERS = 512, /* threads; each has a run of neighbouring places */
    PIECE = 64,    /* sorted rows */
    GRAD_COLUMNS = 128
};

/* A pass of a stable sort by one digit: (keys, places)[from] to [to]; each n long. places NULL: 0,
 * 1, 2, ..., and keys outside of the table become `rows`, behind all others. */
__device__ static inline void sort_digit(int64_t *to, const int64_t *from, const int64_t *places,
                                         int64_t n, int64_t rows, int digit)
{
    __shared__ unsigned counts[DIGITS][SORTERS];
    int64_t share = (n + SORTERS - 1) / SORTERS, begin = threadIdx.x * share;
    int64_t end = begin + share < n ? begin + share : n;
    for (int d = 0; d < DIGITS; d++) {
        counts[d][threadIdx.x] = 0;
    }
    for (int64_t i = begin; i < end; i++) {
        int64_t key = td_is_within(from[i], rows) ? from[i] : rows;
        counts[key >> digit & (DIGITS - 1)][threadIdx.x]++;
    }
    __syncthreads();
    unsigned *all = &counts[0][0], before = 0, own[DIGITS];
    for (int k = 0; k < DIGITS; k++) { /* this thread's part of the table, in its order */
        own[k] = all[threadIdx.x * DIGITS + k];
        before += own[k];
    }
    __shared__ unsigned sums[SORTERS];
    sums[threadIdx.x] = before;
    for (int by = 1; by < SORTERS; by *= 2) { /* of all threads up to this one */
        __syncthreads();
        unsigned other = (int)threadIdx.x >= by ? sums[threadIdx.x - by] : 0;
        __syncthreads();
        sums[threadIdx.x] += other;
    }
    unsigned at = sums[threadIdx.x] - before;
    for (int k = 0; k < DIGITS; k++) {
        all[threadIdx.x * DIGITS + k] = at;
        at += own[k];
    }
    __syncthreads();
    for (int64_t i = begin; i < end; i++) {
        int64_t key = td_is_within(from[i], rows) ? from[i] : rows;
        unsigned place = counts[key >> digit & (DIGITS - 1)][threadIdx.x]++;
        to[place] = key;
        to[n + place] = places ? places[i] : i;
    }
    __syncthreads();
}

/* sorted: the keys in order, then their places; both it and room have 2 n numbers. */
__global__ void __launch_bounds__(SORTERS)
    sort_indices(int64_t *sorted, int64_t *room, const int64_t *index, int64_t n, int64_t rows)
{
    int passes = 1;
    while (passes % 2 == 0 || rows >> passes * DIGIT_BITS > 0) { /* odd: the last writes `sorted` */
        passes++;
    }
    const int64_t *from = index, *places = NULL;
    for (int k = 0; k < passes; k++) {
        int64_t *to = k % 2 == 0 ? sorted : room;
        sort_digit(to, from, places, n, rows, k * DIGIT_BITS);
        from = to;
        places = to + n;
    }
}

/* The rows of a piece: a run of one key that ends in it, and has begun in it, is added to the
 * table. Of others the sum goes into partial[piece][0] (it comes from the piece before) or [1] (it
 * begins here, and goes on). */
template <class S>
__global__ void embedding_grad(S *table, S *partial, const S *dy, const int64_t *sorted, int64_t n,
                               int64_t rows, int64_t d)
{
    int64_t across = (d + GRAD_COLUMNS - 1) / GRAD_COLUMNS;
    int64_t piece = blockIdx.x / across, c = blockIdx.x % across * GRAD_COLUMNS + threadIdx.x;
    int64_t begin = piece * PIECE, end = begin + PIECE < n ? begin + PIECE : n;
    if (c >= d) {
        return;
    }
    for (int64_t i = begin; i < end;) {
        int64_t key = sorted[i], first = i;
        S sum = 0;
        TD_ROLLED
        for (; i < end && sorted[i] == key; i++) {
            sum += dy[sorted[n + i] * d + c];
        }
        bool before = first == begin && begin > 0 && sorted[begin - 1] == key;
        bool after = i == end && end < n && sorted[end] == key;
        if (key >= rows) {
            return;
        }
        if (before || after) {
            partial[(2 * piece + (before ? 0 : 1)) * d + c] = sum;
        } else {
            table[key * d + c] += sum;
        }
    }
}

/* Runs that begin in a piece and go on behind it. */
template <class S>
__global__ void join_pieces(S *table, const S *partial, const int64_t *sorted, int64_t n,
                            int64_t rows, int64_t d)
{
    int64_t across = (d + GRAD_COLUMNS - 1) / GRAD_COLUMNS;
    int64_t piece = blockIdx.x / across, c = blockIdx.x % across * GRAD_COLUMNS + threadIdx.x;
    int64_t begin = piece * PIECE, end = begin + PIECE;
    if (c >= d || end >= n || sorted[end] != sorted[end - 1] || sorted[end] >= rows) {
        return;
    }
    int64_t key = sorted[end];
    if (begin > 0 && sorted[begin - 1] == key && sorted[begin] == key) {
        return; /* it has begun before */
    }
    S sum = partial[(2 * piece + 1) * d + c];
    TD_ROLLED
    for (int64_t at = end; at < n && sorted[at] == key; at += PIECE) {
        sum += partial[at / PIECE * 2 * d + c];
    }
    table[key * d + c] += sum;
}

extern "C" int64_t td_cuda_embedding_pieces(int64_t count)
{
    return (count + PIECE - 1) / PIECE;
}

extern "C" void td_cuda_launch_embedding_grad(void *table, td_dtype dtype, const void *dy,
                                              const int64_t *index, int64_t count, int64_t rows,
                                              int64_t d, int64_t *sorted, void *partial,
                                              cudaStream_t stream)
{
    int64_t blocks = td_cuda_embedding_pieces(count) * ((d + GRAD_COLUMNS - 1) / GRAD_COLUMNS);
    TD_LAUNCH((sort_indices), 1, SORTERS, stream, sorted, sorted + 2 * count, index, count, rows);
#define LAUNCH(S)                                                                                  \
    TD_LAUNCH((embedding_grad<S>), (unsigned)blocks, GRAD_COLUMNS, stream, (S *)table,             \
              (S *)partial, (const S *)dy, sorted, count, rows, d);                                \
    if (count > PIECE) {                                                                           \
        TD_LAUNCH((join_pieces<S>), (unsigned)blocks, GRAD_COLUMNS, stream, (S *)table,            \
                  (const S *)partial, sorted, count, rows, d);                                     \
    }
    if (dtype == TD_F32) {
        LAUNCH(float);
    } else {
        LAUNCH(double);
    }
#undef LAUNCH
}

/* ---- range checks ---- */

__global__ void find_outside(int64_t *first, const int64_t *index, int64_t count, uint64_t limit)
{
    int64_t found = count;
    for (int64_t i = TD_WALK_BEGIN; i < count && found == count; i += TD_WALK_STEP) {
        found = (uint64_t)index[i] >= limit ? i : count; /* negative ones are large */
    }
    found = -td_block_max<TD_CUDA_THREADS / 32>(-found); /* the least of the block's */
    if (threadIdx.x == 0) {
        first[blockIdx.x] = found;
    }
}

extern "C" void td_cuda_launch_find_outside(int64_t *first, const int64_t *index, int64_t count,
                                            int64_t limit, cudaStream_t stream)
{
    TD_LAUNCH((find_outside), TD_CUDA_RANGE_BLOCKS, TD_CUDA_THREADS, stream, first, index, count,
              limit > 0 ? (uint64_t)limit : 0);
}

__global__ void keep_outside(double *fault, const int64_t *first, const int64_t *index,
                             int64_t count)
{
    int64_t least = count;
    for (int b = 0; b < TD_CUDA_RANGE_BLOCKS; b++) {
        least = first[b] < least ? first[b] : least;
    }
    if (least < count && fault[0] == 0) {
        fault[0] = 1.0 + (double)least;
        fault[1] = (double)index[least];
    }
}

extern "C" void td_cuda_launch_keep_outside(double *fault, const int64_t *first,
                                            const int64_t *index, int64_t count,
                                            cudaStream_t stream)
{
    TD_LAUNCH((keep_outside), 1, 1, stream, fault, first, index, count);
}

/* ---- counting ---- */

/* *sum = what all threads of the block have found. */
__device__ static inline void add_up(int64_t found, int64_t *sum)
{
    found = td_block_sum<TD_CUDA_THREADS / 32>(found);
    if (threadIdx.x == 0) {
        *sum = found;
    }
}

/* A block for a row: how many come before the row's label. */
template <class T>
__global__ void find_places(int64_t *places, const T *x, const int64_t *labels, int64_t classes)
{
    int64_t row = blockIdx.x, label = labels[row], before = 0;
    const T *from = x + row * classes;
    bool inside = label >= 0 && label < classes;
    T own = inside ? from[label] : (T)0;
    for (int64_t c = threadIdx.x; c < classes; c += TD_CUDA_THREADS) {
        before += from[c] > own || (from[c] == own && c < label);
    }
    if (!inside || own != own) { /* behind all others */
        before = threadIdx.x == 0 ? INT64_MAX : 0;
    }
    add_up(before, places + row);
}

__global__ void count_below(int64_t *count, const int64_t *places, int64_t n, int64_t k)
{
    int64_t found = 0;
    for (int64_t i = threadIdx.x; i < n; i += TD_CUDA_THREADS) {
        found += places[i] < k;
    }
    add_up(found, count);
}

extern "C" void td_cuda_launch_count_top(int64_t *count, int64_t *places, const void *x,
                                         td_dtype dtype, const int64_t *labels, int64_t rows,
                                         int64_t classes, int64_t k, cudaStream_t stream)
{
    if (rows > 0 && dtype == TD_F64) {
        TD_LAUNCH((find_places<double>), (unsigned)rows, TD_CUDA_THREADS, stream, places,
                  (const double *)x, labels, classes);
    } else if (rows > 0) {
        TD_LAUNCH((find_places<float>), (unsigned)rows, TD_CUDA_THREADS, stream, places,
                  (const float *)x, labels, classes);
    }
    TD_LAUNCH((count_below), 1, TD_CUDA_THREADS, stream, count, places, rows, k);
}
