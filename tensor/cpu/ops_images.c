/* Pictures gathered from many, cut, mirrored and looked up. (Loaders on the CPU have a faster way:
 * data/augment.c.) */
#include "tensor/cpu/ops.h"
#include "tensor/kernels/images.h"

typedef struct picture_job {
    td_tensor *y;
    int64_t *labels;
    const uint8_t *pictures;
    const float *values;
    const td_picture_cut *cuts;
} picture_job;

static void pictures_range(void *ctx, int64_t begin, int64_t end)
{
    const picture_job *job = ctx;
    const td_tensor *y = job->y;
    int64_t channels = y->shape[1], height = y->shape[2], width = y->shape[3];
    for (int64_t i = begin; i < end; i++) {
        const uint8_t *picture = job->pictures + job->cuts[i].picture * channels * height * width;
        job->labels[i] = job->cuts[i].label;
        for (int64_t k = 0; k < channels * height * width; k++) {
            int64_t w = k % width, h = k / width % height, c = k / width / height;
            uint8_t byte =
                td_picture_byte(&job->cuts[i], picture + c * height * width, height, width, h, w);
            td_store_element(td_ptr(y), y->dtype,
                             i * y->stride[0] + c * y->stride[1] + h * y->stride[2] +
                                 w * y->stride[3],
                             (double)job->values[c * 256 + byte]);
        }
    }
}

void td_cpu_pictures(td_tensor *y, td_tensor *labels, const td_tensor *pictures,
                     const td_tensor *values, const td_picture_cut *cuts)
{
    picture_job job = { y, td_ptr(labels), td_ptr(pictures), td_ptr(values), cuts };
    int64_t count = y->shape[0], size = count > 0 ? td_numel(y) / count : 0;
    td_parallel(td_device_of(y), count, size, pictures_range, &job);
}
