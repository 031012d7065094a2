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
__global__ void embedding(W *y, const W *table, const int64_t *index, int64_t count, int64_t d)
{
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < count * d; i += TD_WALK_STEP) {
        int64_t row = i / d;
        y[i] = table[index[row] * d + (i - row * d)];
    }
}

extern "C" void td_cuda_launch_embedding(void *y, const void *table, int size, const int64_t *index,
                                         int64_t count, int64_t d, cudaStream_t stream)
{
    unsigned blocks = index_blocks_for(count * d);
#define LAUNCH(W)                                                                                  \
    TD_LAUNCH((embedding<W>), blocks, TD_CUDA_THREADS, stream, (W *)y, (const W *)table, index,    \
              count, d)
    if (size == 2) {
        LAUNCH(uint16_t);
    } else if (size == 4) {
        LAUNCH(uint32_t);
    } else {
        LAUNCH(uint64_t);
    }
#undef LAUNCH
}

/* A warp for each i of [begin, end): if index[i] has not come up before in that range, the warp
 * adds all rows of dy that have this index, in order. So a row of the table belongs to one warp,
 * and its sum has one order. */
template <class S>
__global__ void embedding_grad(S *table, const S *dy, const int64_t *index, int64_t begin,
                               int64_t end, int64_t d)
{
    int lane = (int)threadIdx.x % 32;
    int64_t i = begin + TD_WALK_BEGIN / 32;
    if (i >= end) {
        return;
    }
    int64_t wanted = index[i];
    for (int64_t j = begin; j < end; j += 32) {
        bool same = j + lane < end && index[j + lane] == wanted;
        unsigned found = __ballot_sync(0xffffffffu, same);
        for (; found != 0; found &= found - 1) {
            int64_t row = j;
            while ((found >> (row - j) & 1u) == 0) {
                row++;
            }
            if (row < i) {
                return;
            }
            for (int64_t c = lane; c < d; c += 32) {
                table[wanted * d + c] += dy[row * d + c];
            }
        }
    }
}

extern "C" void td_cuda_launch_embedding_grad(void *table, td_dtype dtype, const void *dy,
                                              const int64_t *index, int64_t count, int64_t d,
                                              cudaStream_t stream)
{
    enum { RANGE = 16384 }; /* indices that are compared with each other */
    for (int64_t begin = 0; begin < count; begin += RANGE) {
        int64_t end = count - begin < RANGE ? count : begin + RANGE;
        unsigned blocks = (unsigned)((32 * (end - begin) + TD_CUDA_THREADS - 1) / TD_CUDA_THREADS);
        if (dtype == TD_F32) {
            TD_LAUNCH((embedding_grad<float>), blocks, TD_CUDA_THREADS, stream, (float *)table,
                      (const float *)dy, index, begin, end, d);
        } else {
            TD_LAUNCH((embedding_grad<double>), blocks, TD_CUDA_THREADS, stream, (double *)table,
                      (const double *)dy, index, begin, end, d);
        }
    }
}

/* ---- range checks ---- */

__global__ void find_outside(int64_t *first, const int64_t *index, int64_t count, uint64_t limit)
{
    __shared__ int64_t part[TD_CUDA_THREADS];
    int64_t found = count;
    for (int64_t i = TD_WALK_BEGIN; i < count && found == count; i += TD_WALK_STEP) {
        found = (uint64_t)index[i] >= limit ? i : count; /* negative ones are large */
    }
    part[threadIdx.x] = found;
    for (int half = TD_CUDA_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half && part[threadIdx.x + half] < part[threadIdx.x]) {
            part[threadIdx.x] = part[threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) {
        first[blockIdx.x] = part[0];
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
    __shared__ int64_t part[TD_CUDA_THREADS];
    part[threadIdx.x] = found;
    for (int half = TD_CUDA_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) {
            part[threadIdx.x] += part[threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) {
        *sum = part[0];
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
