/* Softmax along a dimension, and cross-entropy over rows of logits. */
#include "tensor/cpu/loops.h"
#include "tensor/cpu/ops.h"
#include "tensor/staged.h"
#include "tensor/cpu/ops_walk.h"
#include "tensor/element.h"
#include "tensor/storage.h"
#include "tensor/extend.h"

enum { EXP_COST = 2 }; /* an element's exp, in copies of an element */

/* ---- softmax ---- */

typedef struct softmax_job {
    const td_loops *loops;
    int64_t size, d, inner; /* memory is [outer][d][inner] */
    int64_t strips;         /* of neighbouring columns, in each of `outer` */
    char *out;
    const char *in, *y;
    bool log, accumulate;
} softmax_job;

/* The number of columns of a strip, and where in memory it begins, in bytes. */
static int64_t find_strip(const softmax_job *job, int64_t i, int64_t *offset)
{
    int64_t outer = i / job->strips, first = i % job->strips * TD_SOFTMAX_COLUMNS;
    *offset = (outer * job->d * job->inner + first) * job->size;
    int64_t left = job->inner - first;
    return left < TD_SOFTMAX_COLUMNS ? left : TD_SOFTMAX_COLUMNS;
}

static void softmax_range(void *ctx, int64_t begin, int64_t end)
{
    const softmax_job *job = ctx;
    for (int64_t i = begin; i < end; i++) {
        int64_t at, columns = find_strip(job, i, &at);
        job->loops->softmax(job->d, columns, job->inner, job->out + at, job->in + at, job->log);
    }
}

static void softmax_grad_range(void *ctx, int64_t begin, int64_t end)
{
    const softmax_job *job = ctx;
    for (int64_t i = begin; i < end; i++) {
        int64_t at, columns = find_strip(job, i, &at);
        job->loops->softmax_grad(job->d, columns, job->inner, job->out + at, job->in + at,
                                 job->y + at, job->log, job->accumulate);
    }
}

static void run_softmax(softmax_job *job, const td_tensor *y, int dim, td_range_fn fn)
{
    int64_t count = td_numel(y);
    if (count == 0) {
        return;
    }
    job->loops = td_loops_of(y->dtype);
    job->size = (int64_t)td_dtype_size(y->dtype);
    job->d = y->shape[dim];
    job->inner = job->d > 1 ? y->stride[dim] : 1;
    job->strips = (job->inner + TD_SOFTMAX_COLUMNS - 1) / TD_SOFTMAX_COLUMNS;
    int64_t items = count / (job->d * job->inner) * job->strips;
    int64_t columns = job->inner < TD_SOFTMAX_COLUMNS ? job->inner : TD_SOFTMAX_COLUMNS;
    td_parallel(td_device_of(y), items, td_item_chunk(items, job->d * columns * EXP_COST), fn, job);
}

void td_cpu_softmax(td_tensor *y, const td_tensor *x, int dim, bool log)
{
    td_staged sx;
    softmax_job job = { .out = td_ptr(y), .in = td_stage_in_like(&sx, x, y), .log = log };
    run_softmax(&job, y, dim, softmax_range);
    td_stage_end(&sx);
}

void td_cpu_softmax_grad(td_tensor *dx, const td_tensor *dy, const td_tensor *y, int dim, bool log,
                         bool accumulate)
{
    td_staged sdy, sy;
    softmax_job job = {
        .out = td_ptr(dx),
        .in = td_stage_in_like(&sdy, dy, dx),
        .y = td_stage_in_like(&sy, y, dx),
        .log = log,
        .accumulate = accumulate,
    };
    run_softmax(&job, dx, dim, softmax_grad_range);
    td_stage_end(&sy);
    td_stage_end(&sdy);
}

/* ---- cross-entropy ---- */

typedef struct entropy_job {
    const td_loops *loops;
    int64_t size, k;
    char *out;
    const char *in;
    const int64_t *labels;
    double smoothing, scale;
    bool accumulate;
    double *losses;
} entropy_job;

static void entropy_range(void *ctx, int64_t begin, int64_t end)
{
    const entropy_job *job = ctx;
    int64_t step = job->k * job->size;
    for (int64_t i = begin; i < end; i++) {
        job->losses[i] = job->loops->cross_entropy(job->k, job->out + i * step, job->in + i * step,
                                                   job->labels[i], job->smoothing);
    }
}

static void entropy_grad_range(void *ctx, int64_t begin, int64_t end)
{
    const entropy_job *job = ctx;
    int64_t step = job->k * job->size;
    for (int64_t i = begin; i < end; i++) {
        job->loops->cross_entropy_grad(job->k, job->out + i * step, job->in + i * step,
                                       job->labels[i], job->smoothing, job->scale, job->accumulate);
    }
}

void td_cpu_cross_entropy(td_tensor *loss, td_tensor *log_p, const td_tensor *logits,
                          const td_tensor *labels, double smoothing)
{
    td_device device = td_device_of(logits);
    int64_t n = logits->shape[0], k = logits->shape[1];
    td_staged in, out, label;
    entropy_job job = {
        .loops = td_loops_of(logits->dtype),
        .size = (int64_t)td_dtype_size(logits->dtype),
        .k = k,
        .in = td_stage_in(&in, logits, TD_ROW_MAJOR),
        .out = td_stage_out(&out, log_p, TD_ROW_MAJOR, false),
        .labels = td_stage_in(&label, labels, TD_ROW_MAJOR),
        .smoothing = smoothing,
        .losses = td_scratch(device, (size_t)n * sizeof(double)),
    };
    td_parallel(device, n, td_item_chunk(n, k * EXP_COST), entropy_range, &job);
    double sum = td_loops_of(TD_F64)->sum(n, job.losses, 1);
    td_store_element(td_ptr(loss), loss->dtype, 0, sum / (double)n);
    td_scratch_free(device, job.losses);
    td_stage_end(&label);
    td_stage_end(&out);
    td_stage_end(&in);
}

void td_cpu_cross_entropy_grad(td_tensor *dlogits, const td_tensor *dloss, const td_tensor *log_p,
                               const td_tensor *labels, double smoothing, bool accumulate)
{
    td_device device = td_device_of(dlogits);
    int64_t n = log_p->shape[0], k = log_p->shape[1];
    td_staged in, out, label;
    entropy_job job = {
        .loops = td_loops_of(log_p->dtype),
        .size = (int64_t)td_dtype_size(log_p->dtype),
        .k = k,
        .in = td_stage_in(&in, log_p, TD_ROW_MAJOR),
        .out = td_stage_out(&out, dlogits, TD_ROW_MAJOR, accumulate),
        .labels = td_stage_in(&label, labels, TD_ROW_MAJOR),
        .smoothing = smoothing,
        .scale = td_load_element(td_ptr(dloss), dloss->dtype, 0) / (double)n,
        .accumulate = accumulate,
    };
    td_parallel(device, n, td_item_chunk(n, k * EXP_COST), entropy_grad_range, &job);
    td_stage_end(&label);
    td_stage_end(&out);
    td_stage_end(&in);
}
