/* Rotary positions: sines and cosines of each token once, then all heads of all sequences. */
#include "tensor/cpu/ops.h"

#include <math.h>

typedef struct rope_job {
    const td_loops *loops;
    const td_rope_params *params;
    td_dtype dtype; /* of turns */
    int64_t tokens, heads, pairs, size;
    double *frequency; /* [pairs] */
    char *turns;       /* [tokens][2][pairs] */
    const td_tensor *x;
    td_tensor *y;
    bool accumulate;
} rope_job;

static void turns_range(void *ctx, int64_t begin, int64_t end)
{
    const rope_job *job = ctx;
    const td_rope_params *p = job->params;
    for (int64_t t = begin; t < end; t++) {
        int64_t row = 2 * t * job->pairs;
        for (int64_t j = 0; j < job->pairs; j++) {
            double angle = (double)(p->past + t) * p->scale * job->frequency[j];
            td_store_element(job->turns, job->dtype, row + j, cos(angle));
            td_store_element(job->turns, job->dtype, row + job->pairs + j,
                             p->backwards ? -sin(angle) : sin(angle));
        }
    }
}

static void *rope_head_of(const td_tensor *x, const rope_job *job, int64_t row, int64_t head)
{
    int64_t at = row / job->tokens * x->stride[0] + row % job->tokens * x->stride[1];
    return (char *)td_ptr(x) + (at + head * x->stride[2]) * job->size;
}

static void rope_range(void *ctx, int64_t begin, int64_t end)
{
    const rope_job *job = ctx;
    int64_t row = 2 * job->pairs * (int64_t)td_dtype_size(job->dtype);
    for (int64_t i = begin; i < end; i++) {
        for (int64_t head = 0; head < job->heads; head++) {
            job->loops->transformer.rope(job->pairs, job->params->interleaved,
                                         rope_head_of(job->y, job, i, head),
                                         rope_head_of(job->x, job, i, head),
                                         job->turns + i % job->tokens * row, job->accumulate);
        }
    }
}

void td_cpu_rope(td_tensor *y, const td_tensor *x, const td_rope_params *params, bool accumulate)
{
    td_device device = td_device_of(y);
    if (td_numel(y) == 0) {
        return;
    }
    td_staged sx, sy;
    sx.scratch = sy.scratch = NULL;
    if (x->stride[3] != 1) {
        td_stage_in(&sx, x, TD_ROW_MAJOR);
        x = sx.tensor;
    }
    if (y->stride[3] != 1) {
        td_stage_out(&sy, y, TD_ROW_MAJOR, accumulate);
        y = sy.tensor;
    }
    rope_job job = {
        .loops = td_loops_of(x->dtype),
        .params = params,
        .dtype = x->dtype == TD_F64 ? TD_F64 : TD_F32,
        .tokens = x->shape[1],
        .heads = x->shape[2],
        .pairs = x->shape[3] / 2,
        .size = (int64_t)td_dtype_size(x->dtype),
        .x = x,
        .y = y,
        .accumulate = accumulate,
    };
    enum { ANGLE_COST = 32 }; /* an angle's functions, in copies of an element */
    int64_t rows = x->shape[0] * job.tokens, turns = 2 * job.tokens * job.pairs;
    job.frequency = td_scratch(device, (size_t)job.pairs * sizeof(double));
    job.turns = td_scratch(device, (size_t)turns * td_dtype_size(job.dtype));
    for (int64_t j = 0; j < job.pairs; j++) {
        job.frequency[j] = pow(params->base, -(double)j / (double)job.pairs);
    }
    td_parallel(device, job.tokens, job.pairs * ANGLE_COST, turns_range, &job);
    td_parallel(device, rows, job.heads * job.pairs * 2, rope_range, &job);
    td_scratch_free(device, job.turns);
    td_scratch_free(device, job.frequency);
    td_stage_end(&sy, &sx);
}
