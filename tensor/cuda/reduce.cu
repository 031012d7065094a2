/* Reductions, accumulated in double. Who adds what is decided by the shape alone
 * (kernels_reduce.c), and partial sums are combined in a fixed order, so the bits are the same each
 * time. */
#include "tensor/cuda/compute.cuh"
#include "tensor/cuda/launch_reduce.h"

enum { THREADS = 256, WARP_OUTPUTS = THREADS / 32, COLUMNS = 32 };

__device__ static inline double identity_of(int kind)
{
    return kind == TD_CUDA_MAX ? -INFINITY : 0.0;
}

__device__ static inline double combined(int kind, double a, double b)
{
    return kind == TD_CUDA_MAX ? td_larger(a, b) : a + b;
}

__device__ static inline void write_output(const td_cuda_reduce_job &job, int64_t output,
                                           double value)
{
    int64_t place[1];
    td_cuda_places<1>(job.kept, output, place);
    value /= job.divisor;
#define STORE(S)                                                                                   \
    {                                                                                              \
        S *y = (S *)job.y + place[0];                                                              \
        *y = td_put<S>(job.accumulate ? value + (double)td_get(*y) : value);                       \
    }
    TD_CUDA_FOR_FLOAT(job.y_dtype, STORE)
#undef STORE
}

/* SUM: the job's kind, known to the compiler; others ask for theirs.
 * One block: OUTPUTS of them over one segment. Threads beside each other go along the outputs if
 * ACROSS, along the reduced elements otherwise. */
template <class S, bool SUM, int OUTPUTS, bool ACROSS>
__global__ void __launch_bounds__(THREADS) reduce(td_cuda_reduce_job job)
{
    enum { SHARE = THREADS / OUTPUTS }; /* threads of an output */
    int kind = SUM ? (int)TD_CUDA_SUM : job.kind;
    __shared__ double part[SHARE][OUTPUTS + 1];
    int mine = ACROSS ? (int)threadIdx.x % OUTPUTS : (int)threadIdx.x / SHARE;
    int member = ACROSS ? (int)threadIdx.x / OUTPUTS : (int)threadIdx.x % SHARE;
    int64_t tiles = (job.kept.count + OUTPUTS - 1) / OUTPUTS;
    int64_t tile = blockIdx.x % tiles, segment = blockIdx.x / tiles;
    int64_t output = tile * OUTPUTS + mine;
    int64_t end = (segment + 1) * job.segment;
    end = end < job.reduced.count ? end : job.reduced.count;
    double sum = identity_of(kind);
    if (output < job.kept.count) {
        int64_t place[2], at[1];
        td_cuda_places<2>(job.kept, output, place);
        const S *x = (const S *)job.x + place[1];
        for (int64_t r = segment * job.segment + member; r < end; r += SHARE) {
            td_cuda_places<1>(job.reduced, r, at);
            double value = td_get(x[at[0]]);
            sum = combined(kind, sum, kind == TD_CUDA_SQUARES ? value * value : value);
        }
    }
    part[member][mine] = sum;
    for (int half = SHARE / 2; half > 0; half /= 2) {
        __syncthreads();
        if (member < half) {
            part[member][mine] = combined(kind, part[member][mine], part[member + half][mine]);
        }
    }
    bool writes = member == 0 && output < job.kept.count;
    double value = writes ? part[0][mine] : 0;
    if (job.segments > 1) { /* the last block of a tile puts the segments' results together */
        double *all = job.partial + output;
        if (writes) {
            all[segment * job.kept.count] = value;
        }
        writes = td_is_last_block(&job.counters[tile], job.segments) && writes;
        TD_UNROLLED(8)
        for (int64_t s = 0; writes && s < job.segments; s++) {
            double next = all[s * job.kept.count];
            value = s == 0 ? next : combined(kind, value, next);
        }
    }
    if (writes) {
        write_output(job, output, value);
    }
}

extern "C" int td_cuda_reduce_outputs(td_cuda_reduce_shape by)
{
    return by == TD_CUDA_BY_BLOCK ? 1 : by == TD_CUDA_BY_WARP ? WARP_OUTPUTS : COLUMNS;
}

template <class S, bool SUM> static void launch(const td_cuda_reduce_job &job, cudaStream_t stream)
{
    int outputs = td_cuda_reduce_outputs(job.by);
    unsigned blocks = (unsigned)((job.kept.count + outputs - 1) / outputs * job.segments);
    if (job.by == TD_CUDA_BY_BLOCK) {
        TD_LAUNCH((reduce<S, SUM, 1, false>), blocks, THREADS, stream, job);
    } else if (job.by == TD_CUDA_BY_WARP) {
        TD_LAUNCH((reduce<S, SUM, WARP_OUTPUTS, false>), blocks, THREADS, stream, job);
    } else {
        TD_LAUNCH((reduce<S, SUM, COLUMNS, true>), blocks, THREADS, stream, job);
    }
}

extern "C" void td_cuda_launch_reduce(const td_cuda_reduce_job *job, cudaStream_t stream)
{
#define LAUNCH(S)                                                                                  \
    if (job->kind == TD_CUDA_SUM) {                                                                \
        launch<S, true>(*job, stream);                                                             \
    } else {                                                                                       \
        launch<S, false>(*job, stream);                                                            \
    }
    TD_CUDA_FOR_FLOAT(job->x_dtype, LAUNCH)
#undef LAUNCH
}
