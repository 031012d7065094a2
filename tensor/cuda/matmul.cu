/* Matrix products by own kernels. */
#include "tensor/cuda/products.cuh"

/* Rows of a, or columns of b. */
template <class T, bool K> struct matrix_factor {
    enum { K_FAST = K };
    td_cuda_operand from;
    int64_t lines, step, k_step; /* strides between lines, and along k */
    struct line {
        int64_t at; /* negative: outside */
    };
    __device__ line prepare(int64_t i) const
    {
        line l = { i < lines ? i * step : -1 };
        return l;
    }
    __device__ T get(const line &l, int64_t k) const
    {
        return l.at < 0 ? (T)0 : td_load_as<T>(from, l.at + k * k_step);
    }
};

/* blockIdx.y: the batch, and so on every gridDim.y. */
template <class T, bool A_FAST, bool B_FAST>
__global__ void __launch_bounds__(TD_CUDA_THREADS) matmul(td_cuda_own_matmul p)
{
    tile_place at = td_find_tile(p.m, p.n);
    int64_t begin = at.segment * p.cut.segment;
    int64_t end = begin + p.cut.segment < p.k ? begin + p.cut.segment : p.k;
    for (int64_t batch = blockIdx.y; batch < p.batch.count; batch += gridDim.y) {
        int64_t place[3];
        td_cuda_places<3>(p.batch, batch, place);
        matrix_factor<T, A_FAST> a = { p.a, p.m, p.a.stride[0], p.a.stride[1] };
        matrix_factor<T, B_FAST> b = { p.b, p.n, p.b.stride[1], p.b.stride[0] };
        size_t a_size = td_cuda_dtype_size(p.a.dtype), b_size = td_cuda_dtype_size(p.b.dtype);
        a.from.at = (char *)p.a.at + place[1] * (int64_t)a_size;
        b.from.at = (char *)p.b.at + place[2] * (int64_t)b_size;
        T sum[EACH][EACH];
        T bias[EACH];
        td_load_bias<T>(bias, p.bias, 0, at.column, p.n);
        td_multiply_tile<T>(sum, a, b, at.tile_row, at.tile_column, begin, end);
        TD_ROLLED_F64
        for (int i = 0; i < EACH; i++) {
            for (int j = 0; j < EACH; j++) {
                int64_t row = at.row + i, column = at.column + j;
                if (row >= p.m || column >= p.n) {
                    continue;
                }
                if (p.cut.segments > 1) {
                    int64_t results = p.batch.count * p.m * p.n;
                    p.cut.partial[at.segment * results + (batch * p.m + row) * p.n + column] =
                        (double)sum[i][j];
                    continue;
                }
                T value = sum[i][j];
                if (p.bias.at) {
                    value += bias[j];
                }
                td_store_as<T>(p.c, place[0] + row * p.c.stride[0] + column * p.c.stride[1],
                               p.accumulate, value);
            }
        }
    }
}

__global__ void add_segments_of_matmul(td_cuda_own_matmul p)
{
    int64_t results = p.batch.count * p.m * p.n;
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < results; i += TD_WALK_STEP) {
        double sum = 0;
        for (int64_t s = 0; s < p.cut.segments; s++) {
            sum += p.cut.partial[s * results + i];
        }
        int64_t row = td_divide(i, p.n), column = i - row * p.n, batch = td_divide(row, p.m);
        row -= batch * p.m;
        int64_t place[3];
        td_cuda_places<3>(p.batch, batch, place);
        if (p.bias.at) {
            sum += td_load_as<double>(p.bias, column * p.bias.stride[0]);
        }
        td_store_as<double>(p.c, place[0] + row * p.c.stride[0] + column * p.c.stride[1],
                            p.accumulate, sum);
    }
}

static void launch_float(const td_cuda_own_matmul *p, dim3 blocks, cudaStream_t stream)
{
    bool a_fast = p->a.stride[1] <= p->a.stride[0], b_fast = p->b.stride[0] < p->b.stride[1];
    if (a_fast && b_fast) {
        TD_LAUNCH((matmul<float, true, true>), blocks, TD_CUDA_THREADS, stream, *p);
    } else if (a_fast) {
        TD_LAUNCH((matmul<float, true, false>), blocks, TD_CUDA_THREADS, stream, *p);
    } else if (b_fast) {
        TD_LAUNCH((matmul<float, false, true>), blocks, TD_CUDA_THREADS, stream, *p);
    } else {
        TD_LAUNCH((matmul<float, false, false>), blocks, TD_CUDA_THREADS, stream, *p);
    }
}

extern "C" void td_cuda_launch_matmul(const td_cuda_own_matmul *p, cudaStream_t stream)
{
    unsigned batches = p->batch.count < 65535 ? (unsigned)p->batch.count : 65535u;
    dim3 blocks((unsigned)(td_count_tiles(p->m, p->n) * p->cut.segments), batches);
    if (p->c.dtype == TD_F64) { /* for checking: one kernel does */
        TD_LAUNCH((matmul<double, true, true>), blocks, TD_CUDA_THREADS, stream, *p);
    } else {
        launch_float(p, blocks, stream);
    }
    if (p->cut.segments > 1) {
        unsigned adders =
            td_blocks(p->batch.count * p->m * p->n, TD_CUDA_THREADS, TD_CUDA_MOST_BLOCKS);
        TD_LAUNCH((add_segments_of_matmul), adders, TD_CUDA_THREADS, stream, *p);
    }
}

extern "C" td_cuda_cut td_cuda_cut_of(int64_t results, int64_t k)
{
    enum { LEAST = 512, WANTED = 528 * TILE * TILE }; /* terms of a segment; results in work */
    int64_t wanted = results > 0 ? (WANTED + results - 1) / results : 1;
    int64_t most = (k + LEAST - 1) / LEAST;
    td_cuda_cut cut = { k, 1, NULL };
    if (wanted > 1 && most > 1) {
        cut.segments = wanted < most ? wanted : most;
        cut.segment = (k + cut.segments - 1) / cut.segments;
        cut.segments = (k + cut.segment - 1) / cut.segment;
    }
    return cut;
}
