/* Pictures gathered from many that stay on the GPU as bytes, cut, mirrored and looked up. */
#include "tensor/cuda/compute.cuh"
#include "tensor/cuda/launch_train.h"
#include "tensor/kernels/images.h"

struct strides {
    int64_t n, c, h, w;
};

/* Neighbouring threads take neighbouring channels, as images lie on GPUs. */
template <class S>
__global__ void pictures(S *y, strides s, int64_t count, int64_t c, int64_t h, int64_t w,
                         int64_t *labels, const uint8_t *all, const float *values,
                         const td_picture_cut *cuts)
{
    TD_ROLLED
    for (int64_t i = TD_WALK_BEGIN; i < count; i += TD_WALK_STEP) {
        int64_t channel = i % c, column = i / c % w, row = i / c / w % h, n = i / c / w / h;
        td_picture_cut cut = cuts[n];
        if (channel == 0 && column == 0 && row == 0) {
            labels[n] = cut.label;
        }
        const uint8_t *plane = all + (cut.picture * c + channel) * h * w;
        uint8_t byte = td_picture_byte(&cut, plane, h, w, row, column);
        y[n * s.n + channel * s.c + row * s.h + column * s.w] =
            td_put<S>(values[channel * 256 + byte]);
    }
}

extern "C" void td_cuda_launch_pictures(td_dtype dtype, void *y, const int64_t *stride, int64_t n,
                                        int64_t c, int64_t h, int64_t w, int64_t *labels,
                                        const uint8_t *all, const float *values,
                                        const td_picture_cut *cuts, cudaStream_t stream)
{
    strides s = { stride[0], stride[1], stride[2], stride[3] };
    int64_t count = n * c * h * w;
    unsigned blocks = td_blocks(count, TD_CUDA_THREADS, TD_CUDA_MOST_BLOCKS);
#define LAUNCH(S)                                                                                  \
    TD_LAUNCH((pictures<S>), blocks, TD_CUDA_THREADS, stream, (S *)y, s, count, c, h, w, labels,   \
              all, values, cuts)
    TD_CUDA_FOR_FLOAT(dtype, LAUNCH)
#undef LAUNCH
}
