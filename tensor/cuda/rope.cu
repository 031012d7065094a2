/* Rotary positions: a thread has a pair of elements of a token, in all of its heads. */
#include "tensor/cuda/compute.cuh"
#include "tensor/cuda/launch_transformer.h"

template <class S> __global__ void __launch_bounds__(TD_CUDA_THREADS) rope(td_cuda_rope_job r)
{
    typedef typename td_computed<S>::type T;
    const td_rope_params &p = r.params;
    int64_t pairs = r.width / 2, other = p.interleaved ? 1 : pairs;
    for (int64_t i = TD_WALK_BEGIN; i < r.batch * r.tokens * pairs; i += TD_WALK_STEP) {
        int64_t row = td_divide(i, pairs), j = i - row * pairs;
        int64_t b = td_divide(row, r.tokens), t = row - b * r.tokens;
        double angle = (double)(p.past + t) * p.scale * pow(p.base, -(double)j / (double)pairs);
        T c = (T)cos(angle), s = (T)(p.backwards ? -sin(angle) : sin(angle));
        j *= p.interleaved ? 2 : 1;
        const S *from = (const S *)r.x.memory + b * r.x.batch + t * r.x.token + j;
        S *to = (S *)r.y.memory + b * r.y.batch + t * r.y.token + j;
        TD_UNROLLED(4)
        for (int64_t h = 0; h < r.heads; h++, from += r.x.head, to += r.y.head) {
            T x0 = td_get(from[0]), x1 = td_get(from[other]);
            T y0 = FMA(x0, c, -(x1 * s)), y1 = FMA(x1, c, x0 * s);
            to[0] = td_put<S>(r.accumulate ? td_get(to[0]) + y0 : y0);
            to[other] = td_put<S>(r.accumulate ? td_get(to[other]) + y1 : y1);
        }
    }
}

extern "C" void td_cuda_launch_rope(td_dtype dtype, const td_cuda_rope_job *r, cudaStream_t stream)
{
    unsigned blocks =
        td_blocks(r->batch * r->tokens * (r->width / 2), TD_CUDA_THREADS, TD_CUDA_MOST_BLOCKS);
#define LAUNCH(S) TD_LAUNCH((rope<S>), blocks, TD_CUDA_THREADS, stream, *r);
    TD_CUDA_FOR_FLOAT(dtype, LAUNCH)
#undef LAUNCH
}
