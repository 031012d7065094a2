/* Dropout. Elements are numbered row-major, four of them share a Philox counter. */
#include "tensor/cpu/ops.h"

#include <math.h>

enum { PIECE = 256 };

typedef struct dropout_job {
    const td_loops *loops;
    int64_t size;
    char *y;
    const char *x;
    uint64_t key;
    uint64_t step;
    uint32_t threshold;
    double scale;
    td_numbering of;
    bool accumulate;
} dropout_job;

/* begin is a multiple of 4. */
static void dropout_range(void *ctx, int64_t begin, int64_t end)
{
    const dropout_job *job = ctx;
    int64_t run = job->of.run > 0 ? job->of.run : end, n;
    for (int64_t at = begin; at < end; at += n) {
        int64_t left = run - at % run, number = job->of.first + at / run * job->of.pitch + at % run;
        uint32_t draw[PIECE];
        n = end - at < PIECE ? end - at : PIECE;
        n = left < n ? left : n;
        job->loops->philox((n + 3) / 4, draw, job->key, job->step, (uint64_t)number / 4);
        job->loops->dropout(n, job->y + at * job->size, job->x + at * job->size, draw,
                            job->threshold, job->scale, job->accumulate);
    }
}

void td_cpu_dropout(td_tensor *y, const td_tensor *x, double p, td_philox_key key,
                    const uint64_t *step, td_numbering of, bool accumulate)
{
    td_staged sx, sy;
    double threshold = ceil(p * 0x1p32);
    dropout_job job = {
        .loops = td_loops_of(y->dtype),
        .size = (int64_t)td_dtype_size(y->dtype),
        .x = td_stage_in(&sx, x, TD_ROW_MAJOR),
        .y = td_stage_out(&sy, y, TD_ROW_MAJOR, accumulate),
        .key = td_philox_mixed_key(key),
        .step = *step,
        .threshold = threshold < 0x1p32 ? (uint32_t)threshold : UINT32_MAX,
        .scale = 1.0 / (1.0 - p),
        .of = of,
        .accumulate = accumulate,
    };
    int64_t n = td_numel(y);
    td_parallel(td_device_of(y), n, 1, dropout_range, &job);
    td_stage_end(&sy, &sx);
}
