/* Softmax along a dimension, and cross-entropy over rows of logits. */
#include "tensor/cpu/ops.h"

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
    td_parallel(td_device_of(y), items, job->d * columns * EXP_COST, fn, job);
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
    td_stage_end(&sy, &sdy);
}

/* ---- cross-entropy ---- */

typedef struct entropy_job {
    const td_loops *loops;
    int64_t size, k;
    char *out; /* NULL: nothing is written beside the losses */
    const char *in;
    const int64_t *labels;
    const char *weight;
    const td_entropy_params *params;
    bool accumulate, per_row;
    double *losses, *weights; /* of each row */
    const td_tensor *dloss;
    double scale;
} entropy_job;

static bool is_label(const entropy_job *job, int64_t row)
{
    return job->labels[row] >= 0 && job->labels[row] < job->k;
}

static void entropy_range(void *ctx, int64_t begin, int64_t end)
{
    const entropy_job *job = ctx;
    int64_t step = job->k * job->size;
    for (int64_t i = begin; i < end; i++) {
        int64_t label = job->labels[i];
        bool counts = label != job->params->ignore, good = is_label(job, i);
        job->losses[i] = counts ? NAN : 0.0;
        job->weights[i] = counts;
        if (counts && good) {
            job->losses[i] = job->loops->cross_entropy(
                job->k, job->out != NULL ? job->out + i * step : NULL, job->in + i * step, label,
                job->weight, job->params->smoothing);
        }
        if (counts && good && job->weight != NULL) {
            td_dtype dtype = job->size == (int64_t)sizeof(double) ? TD_F64 : TD_F32;
            job->weights[i] = td_load_element(job->weight, dtype, label);
        }
    }
}

static void entropy_grad_range(void *ctx, int64_t begin, int64_t end)
{
    const entropy_job *job = ctx;
    int64_t step = job->k * job->size;
    for (int64_t i = begin; i < end; i++) {
        if (job->labels[i] != job->params->ignore && is_label(job, i)) {
            double dloss = td_load_element(td_ptr(job->dloss), job->dloss->dtype,
                                           job->per_row ? i * job->dloss->stride[0] : 0);
            job->loops->cross_entropy_grad(job->k, job->out + i * step,
                                           job->in != NULL ? job->in + i * step : NULL,
                                           job->labels[i], job->weight, job->params->smoothing,
                                           dloss * job->scale, job->accumulate);
        } else if (!job->accumulate) {
            memset(job->out + i * step, 0, (size_t)step);
        }
    }
}

static void store_losses(const entropy_job *job, int64_t n, td_tensor *loss, td_tensor *total)
{
    const td_loops *loops = td_loops_of(TD_F64);
    double all = loops->sum(n, job->weights, 1);
    td_store_element(td_ptr(total), TD_F64, 0, all);
    for (int64_t i = 0; job->per_row && i < n; i++) {
        td_store_element(td_ptr(loss), loss->dtype, i * loss->stride[0], job->losses[i]);
    }
    if (!job->per_row) {
        double sum = loops->sum(n, job->losses, 1);
        td_store_element(td_ptr(loss), loss->dtype, 0, job->params->sum ? sum : sum / all);
    }
}

void td_cpu_cross_entropy(td_tensor *loss, td_tensor *total, td_tensor *log_p,
                          const td_tensor *logits, const td_tensor *labels, const td_tensor *weight,
                          const td_entropy_params *params)
{
    td_device device = td_device_of(logits);
    int64_t n = logits->shape[0], k = logits->shape[1];
    td_staged in, out, label, weights;
    double *rows = td_scratch(device, 2 * (size_t)n * sizeof(double));
    entropy_job job = {
        .loops = td_loops_of(logits->dtype),
        .size = (int64_t)td_dtype_size(logits->dtype),
        .k = k,
        .in = td_stage_in(&in, logits, TD_ROW_MAJOR),
        .out = td_stage_out(&out, log_p, TD_ROW_MAJOR, false),
        .labels = td_stage_in(&label, labels, TD_ROW_MAJOR),
        .weight = td_stage_in(&weights, weight, TD_ROW_MAJOR),
        .params = params,
        .per_row = loss->ndim == 1,
        .losses = rows,
        .weights = rows + n,
    };
    td_parallel(device, n, k * EXP_COST, entropy_range, &job);
    store_losses(&job, n, loss, total);
    td_scratch_free(device, rows);
    td_stage_end(&weights, &label, &out, &in);
}

void td_cpu_cross_entropy_grad(td_tensor *dlogits, const td_tensor *dloss, const td_tensor *total,
                               const td_tensor *log_p, const td_tensor *labels,
                               const td_tensor *weight, const td_entropy_params *params,
                               bool accumulate)
{
    td_device device = td_device_of(dlogits);
    int64_t n = dlogits->shape[0], k = dlogits->shape[1];
    td_staged in, out, label, weights;
    entropy_job job = {
        .loops = td_loops_of(dlogits->dtype),
        .size = (int64_t)td_dtype_size(dlogits->dtype),
        .k = k,
        .in = td_stage_in(&in, log_p, TD_ROW_MAJOR),
        .out = td_stage_out(&out, dlogits, TD_ROW_MAJOR, accumulate),
        .labels = td_stage_in(&label, labels, TD_ROW_MAJOR),
        .weight = td_stage_in(&weights, weight, TD_ROW_MAJOR),
        .params = params,
        .per_row = dloss->ndim == 1,
        .accumulate = accumulate,
        .dloss = dloss,
        .scale =
            params->sum || dloss->ndim == 1 ? 1.0 : 1.0 / td_load_element(td_ptr(total), TD_F64, 0),
    };
    td_parallel(device, n, k * EXP_COST, entropy_grad_range, &job);
    td_stage_end(&weights, &label, &out, &in);
}
