/* Dropout: Philox's words are the CPU's, bit by bit. */
#include "tensor/cuda/compute.cuh"
#include "tensor/cuda/launch_train.h"
#include "tensor/kernels/philox.h"

/* Four elements a thread share a counter. PACKS: all four in one access. */
template <class S, bool PACKS>
__global__ void dropout(int64_t n, S *y, const S *x, td_cuda_draw draw)
{
    typedef typename td_computed<S>::type T;
    enum { LANES = PACKS ? 4 : 1 };
    T scale = (T)draw.scale;
    uint64_t step = draw.step + (draw.more ? *draw.more : 0);
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; 4 * i < n; i += TD_WALK_STEP) {
        uint32_t word[4];
        int64_t run = draw.of.run > 0 ? draw.of.run : n;
        int64_t number = draw.of.first + 4 * i / run * draw.of.pitch + 4 * i % run;
        td_philox_words(draw.key, step, (uint64_t)number / 4, word);
        for (int first = 0; first < 4; first += LANES) {
            int64_t at = 4 * i + first;
            if (at + LANES > n) {
                for (int k = 0; at + k < n; k++) { /* the last pack */
                    T old = draw.accumulate ? td_get(y[at + k]) : (T)0;
                    T kept = word[first + k] >= draw.threshold ? td_get(x[at + k]) * scale : (T)0;
                    y[at + k] = td_put<S>(old + kept);
                }
                break;
            }
            td_pack<S, LANES> from = td_load_pack<LANES>(x + at), to = from;
            if (draw.accumulate) {
                to = td_load_pack<LANES>(y + at);
            }
            for (int k = 0; k < LANES; k++) {
                T old = draw.accumulate ? td_get(to.at[k]) : (T)0;
                T kept = word[first + k] >= draw.threshold ? td_get(from.at[k]) * scale : (T)0;
                to.at[k] = td_put<S>(old + kept);
            }
            td_store_pack<LANES>(y + at, to);
        }
    }
}

extern "C" void td_cuda_launch_dropout(td_dtype dtype, int64_t n, void *y, const void *x,
                                       const td_cuda_draw *draw, cudaStream_t stream)
{
    unsigned blocks = td_blocks((n + 3) / 4, TD_CUDA_THREADS, TD_CUDA_MOST_BLOCKS);
#define LAUNCH(S)                                                                                  \
    if (td_aligned(y, 4 * sizeof(S)) && td_aligned(x, 4 * sizeof(S))) {                            \
        TD_LAUNCH((dropout<S, true>), blocks, TD_CUDA_THREADS, stream, n, (S *)y, (const S *)x,    \
                  *draw);                                                                          \
    } else {                                                                                       \
        TD_LAUNCH((dropout<S, false>), blocks, TD_CUDA_THREADS, stream, n, (S *)y, (const S *)x,   \
                  *draw);                                                                          \
    }
    TD_CUDA_FOR_FLOAT(dtype, LAUNCH)
#undef LAUNCH
}
