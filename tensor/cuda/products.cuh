/* For matmul.cu and conv.cu: the product of two matrices that are read through functions, so that a
 * convolution is one of pixels and filters that are never laid out as such.
 *
 * A block computes TILE x TILE results; each of its threads 4 x 4. Factors are structs with
 *   line prepare(i)      what is known of row i of A, or column i of B
 *   T get(line, k)       its k-th element, 0 outside
 *   K_FAST               whether elements of neighbouring k lie side by side (else: those of i) */
#ifndef TD_TENSOR_CUDA_PRODUCTS_CUH
#define TD_TENSOR_CUDA_PRODUCTS_CUH

#include "tensor/cuda/compute.cuh"
#include "tensor/cuda/launch_products.h"

enum { TILE = 64, TILE_K = 16, EACH = 4 };

/* An element of any float dtype. */
template <class T> __device__ static inline T td_load_as(const td_cuda_operand &from, int64_t at)
{
    switch (from.dtype) {
    case TD_F64:
        return (T)((const double *)from.at)[at];
    case TD_BF16:
        return (T)td_get(((const __nv_bfloat16 *)from.at)[at]);
    case TD_F16:
        return (T)td_get(((const __half *)from.at)[at]);
    default:
        return (T)((const float *)from.at)[at];
    }
}

/* Not inline: a thread has 16 results, and would have 16 copies of it. */
template <class T>
__device__ static __noinline__ void td_store_at(void *memory, td_dtype dtype, int64_t at,
                                                bool accumulate, T value)
{
#define STORE(S)                                                                                   \
    {                                                                                              \
        S *place = (S *)memory + at;                                                               \
        *place = td_cuda_convert<S>(accumulate ? (T)td_get(*place) + value : value);               \
    }
    TD_CUDA_FOR_FLOAT(dtype, STORE)
#undef STORE
}

template <class T>
__device__ static inline void td_store_as(const td_cuda_operand &to, int64_t at, bool accumulate,
                                          T value)
{
    td_store_at<T>(to.at, to.dtype, at, accumulate, value);
}

/* The bias (or none) of this thread's columns of a tile. */
template <class T>
__device__ static inline void td_load_bias(T *bias, const td_cuda_operand &from, int64_t first,
                                           int64_t begin, int64_t end)
{
    for (int j = 0; j < EACH; j++) {
        bool is_there = from.at && begin + j < end;
        bias[j] = is_there ? td_load_as<T>(from, (first + begin + j) * from.stride[0]) : (T)0;
    }
}

/* Elements of one factor for the next TILE_K steps, into shared memory: TILE lines. */
template <class T, class F>
__device__ static inline void td_fill_tile(T (*to)[TILE + 4], const F &factor,
                                           const typename F::line *line, int64_t k, int64_t end)
{
    TD_ROLLED_F64
    for (int i = 0; i < EACH; i++) {
        int at =
            F::K_FAST ? (int)threadIdx.x / TILE_K + i * (TILE / EACH) : (int)threadIdx.x % TILE;
        int step =
            F::K_FAST ? (int)threadIdx.x % TILE_K : (int)threadIdx.x / TILE + i * (TILE_K / EACH);
        to[step][at] = k + step < end ? factor.get(line[i], k + step) : (T)0;
    }
}

/* The sum over k in [begin, end) of this thread's results: rows 4 (thread / 16), columns
 * 4 (thread % 16) and the three behind them, from those of the tile. All threads come. */
template <class T, class A, class B>
__device__ static inline void td_multiply_tile(T (*sum)[EACH], const A &a, const B &b, int64_t row,
                                               int64_t column, int64_t begin, int64_t end)
{
    __shared__ T left[TILE_K][TILE + 4], right[TILE_K][TILE + 4];
    typename A::line rows[EACH];
    typename B::line columns[EACH];
    TD_ROLLED_F64
    for (int i = 0; i < EACH; i++) {
        int by_step = (int)threadIdx.x / TILE_K + i * (TILE / EACH),
            by_line = (int)threadIdx.x % TILE;
        rows[i] = a.prepare(row + (A::K_FAST ? by_step : by_line));
        columns[i] = b.prepare(column + (B::K_FAST ? by_step : by_line));
        for (int j = 0; j < EACH; j++) {
            sum[i][j] = 0;
        }
    }
    int down = (int)threadIdx.x / 16 * EACH, across = (int)threadIdx.x % 16 * EACH;
    TD_ROLLED
    for (int64_t k = begin; k < end; k += TILE_K) {
        td_fill_tile<T>(left, a, rows, k, end);
        td_fill_tile<T>(right, b, columns, k, end);
        __syncthreads();
        TD_ROLLED_F64
        for (int step = 0; step < TILE_K; step++) {
            for (int i = 0; i < EACH; i++) {
                for (int j = 0; j < EACH; j++) {
                    sum[i][j] = FMA(left[step][down + i], right[step][across + j], sum[i][j]);
                }
            }
        }
        __syncthreads();
    }
}

/* Where a block works: blockIdx.x counts tiles of the product (columns first), then segments. */
struct tile_place {
    int64_t row, column; /* this thread's first result */
    int64_t tile_row, tile_column;
    int64_t segment;
};

__device__ static inline tile_place td_find_tile(int64_t m, int64_t n)
{
    int64_t across = (n + TILE - 1) / TILE, down = (m + TILE - 1) / TILE;
    tile_place p;
    p.segment = blockIdx.x / (across * down);
    int64_t tile = blockIdx.x % (across * down);
    p.tile_row = tile / across * TILE;
    p.tile_column = tile % across * TILE;
    p.row = p.tile_row + threadIdx.x / 16 * EACH;
    p.column = p.tile_column + threadIdx.x % 16 * EACH;
    return p;
}

static inline int64_t td_count_tiles(int64_t m, int64_t n)
{
    return (m + TILE - 1) / TILE * ((n + TILE - 1) / TILE);
}

#endif
