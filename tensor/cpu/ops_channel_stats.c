/* Sums of channels and of their squares, for batch normalisation: the general way, a pass of its
 * own over what a convolution has written. */
#include "tensor/cpu/cpu_device.h"
#include "tensor/cpu/gemm_kernels.h"
#include "tensor/cpu/ops.h"
#include "tensor/cpu/ops_dense.h"
#include "tensor/cpu/ops_half.h"

#include <string.h>

enum {
    MIN_ROWS = 64,   /* of a block of sums */
    MAX_BLOCKS = 64, /* their sums are added one after the other */
};

typedef struct stats_job {
    td_dtype dtype;
    const char *y; /* [rows][channels] */
    int64_t rows, channels;
    int64_t block, blocks; /* of rows */
    double *partial;       /* [blocks][2][channels] */
} stats_job;

/* out[n] = elements of the array as float or better. */
static void load(td_dtype dtype, int64_t n, double *out, const void *array)
{
    if (td_is_half(dtype)) {
        float values[TD_HALF_PIECE];
        td_half_load(dtype, n, values, array, 1);
        for (int64_t i = 0; i < n; i++) {
            out[i] = values[i];
        }
    } else if (dtype == TD_F32) {
        for (int64_t i = 0; i < n; i++) {
            out[i] = ((const float *)array)[i];
        }
    } else {
        memcpy(out, array, (size_t)n * sizeof *out);
    }
}

static void stats_task(void *ctx, int64_t task)
{
    const stats_job *job = ctx;
    double *sum = job->partial + task * 2 * job->channels, *squares = sum + job->channels;
    int64_t size = (int64_t)td_dtype_size(job->dtype);
    int64_t end = td_min64(job->rows, (task + 1) * job->block);
    memset(sum, 0, (size_t)job->channels * 2 * sizeof *sum);
    for (int64_t row = task * job->block; row < end; row++) {
        for (int64_t c0 = 0; c0 < job->channels; c0 += TD_HALF_PIECE) {
            int64_t n = td_min64(TD_HALF_PIECE, job->channels - c0);
            double values[TD_HALF_PIECE];
            load(job->dtype, n, values, job->y + (row * job->channels + c0) * size);
            for (int64_t i = 0; i < n; i++) {
                sum[c0 + i] += values[i];
                squares[c0 + i] += values[i] * values[i];
            }
        }
    }
}

void td_cpu_channel_stats(td_tensor *stats, const td_tensor *y)
{
    td_device device = td_device_of(y);
    td_staged sy, out;
    stats_job job = { .dtype = y->dtype, .channels = y->shape[1] };
    job.y = td_stage_in(&sy, y, TD_IMAGE);
    job.rows = job.channels > 0 ? td_numel(y) / job.channels : 0;
    job.block = td_divide_up(job.rows, MAX_BLOCKS);
    job.block = job.block > MIN_ROWS ? job.block : MIN_ROWS;
    job.blocks = td_divide_up(job.rows, job.block);
    int64_t count = 2 * job.channels;
    job.partial = td_scratch(device, (size_t)(job.blocks * count) * sizeof *job.partial);
    td_pool_run(td_cpu_pool(device), job.blocks, stats_task, &job);
    double *total = td_stage_out(&out, stats, TD_ROW_MAJOR, false);
    memset(total, 0, (size_t)count * sizeof *total);
    for (int64_t b = 0; b < job.blocks; b++) {
        for (int64_t i = 0; i < count; i++) {
            total[i] += job.partial[b * count + i];
        }
    }
    td_stage_end(&out);
    td_scratch_free(device, job.partial);
    td_stage_end(&sy);
}
