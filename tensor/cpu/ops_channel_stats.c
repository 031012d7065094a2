/* Sums of channels and of their squares, for batch normalisation: the general way, a pass of its
 * own over what a convolution has written. */
#include "tensor/cpu/cpu_device.h"
#include "tensor/cpu/gemm_kernels.h"
#include "tensor/cpu/loops.h"
#include "tensor/cpu/ops.h"
#include "tensor/staged.h"
#include "tensor/storage.h"
#include "tensor/extend.h"

#include <string.h>

enum {
    MIN_ROWS = 64,   /* of a block of sums */
    MAX_BLOCKS = 64, /* their sums are added one after the other */
    FLOAT_ROWS = 8,  /* are added up in the tensor's own type before they go on in double */
};

typedef struct stats_job {
    const td_loops *loops;
    td_dtype dtype;
    const char *y; /* [rows][channels] */
    int64_t rows, channels;
    int64_t block, blocks; /* of rows */
    double *partial;       /* [blocks][4][channels]: sums, squares, and one block's */
} stats_job;

static void stats_task(void *ctx, int64_t task)
{
    const stats_job *job = ctx;
    int64_t count = 2 * job->channels, size = (int64_t)td_dtype_size(job->dtype);
    double *sum = job->partial + task * 2 * count, *block = sum + count;
    int64_t end = td_min64(job->rows, (task + 1) * job->block);
    memset(sum, 0, (size_t)count * sizeof *sum);
    for (int64_t row = task * job->block; row < end; row += FLOAT_ROWS) {
        job->loops->norm_sums(td_min64(FLOAT_ROWS, end - row), job->channels,
                              job->y + row * job->channels * size, block, block + job->channels);
        for (int64_t i = 0; i < count; i++) {
            sum[i] += block[i];
        }
    }
}

void td_cpu_channel_stats(td_tensor *stats, const td_tensor *y)
{
    td_device device = td_device_of(y);
    td_staged sy, out;
    td_dtype dtype = y->dtype == TD_F16 ? TD_F32 : y->dtype;
    stats_job job = { .loops = td_loops_of(dtype), .dtype = dtype, .channels = y->shape[1] };
    job.y = td_stage_in_as(&sy, y, TD_IMAGE, dtype);
    job.rows = job.channels > 0 ? td_numel(y) / job.channels : 0;
    job.block = td_divide_up(job.rows, MAX_BLOCKS);
    job.block = job.block > MIN_ROWS ? job.block : MIN_ROWS;
    job.blocks = td_divide_up(job.rows, job.block);
    int64_t count = 2 * job.channels;
    job.partial = td_scratch(device, (size_t)(job.blocks * 2 * count) * sizeof *job.partial);
    td_pool_run(td_cpu_pool(device), job.blocks, stats_task, &job);
    double *total = td_stage_out(&out, stats, TD_ROW_MAJOR, false);
    memset(total, 0, (size_t)count * sizeof *total);
    for (int64_t b = 0; b < job.blocks; b++) {
        for (int64_t i = 0; i < count; i++) {
            total[i] += job.partial[b * 2 * count + i];
        }
    }
    td_stage_end(&out);
    td_scratch_free(device, job.partial);
    td_stage_end(&sy);
}
