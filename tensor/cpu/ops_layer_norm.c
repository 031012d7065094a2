/* Layer and RMS normalisation over contiguous rows of size d. */
#include "tensor/cpu/ops.h"

#include <string.h>

enum { GRAD_ROWS = 64 }; /* rows whose sums for weight and bias are one partial sum */

typedef struct layer_job {
    const td_loops *loops;
    td_dtype dtype;
    int64_t size, d;
    char *out; /* y, or dx (NULL: not wanted) */
    const char *x, *dy;
    const void *weight, *bias;
    void *mean, *inv_std; /* mean NULL: RMS normalisation */
    double eps;
    bool accumulate;
    double *partial; /* [blocks][2][d]: sums of dy * x_hat and of dy; NULL: not wanted */
} layer_job;

static void layer_norm_range(void *ctx, int64_t begin, int64_t end)
{
    const layer_job *job = ctx;
    int64_t step = job->d * job->size;
    for (int64_t r = begin; r < end; r++) {
        double mean, inv_std;
        job->loops->layer_norm(job->d, job->out + r * step, job->x + r * step, job->weight,
                               job->bias, job->eps, job->mean != NULL, &mean, &inv_std);
        if (job->mean != NULL) {
            td_store_element(job->mean, job->dtype, r, mean);
        }
        td_store_element(job->inv_std, job->dtype, r, inv_std);
    }
}

void td_cpu_layer_norm(td_tensor *y, td_tensor *mean, td_tensor *inv_std, const td_tensor *x,
                       const td_tensor *weight, const td_tensor *bias, double eps)
{
    td_staged sy, sx, sw, sb;
    layer_job job = {
        .loops = td_loops_of(x->dtype),
        .dtype = x->dtype,
        .size = (int64_t)td_dtype_size(x->dtype),
        .d = x->shape[x->ndim - 1],
        .out = td_stage_out(&sy, y, TD_ROW_MAJOR, false),
        .x = td_stage_in(&sx, x, TD_ROW_MAJOR),
        .weight = td_stage_in(&sw, weight, TD_ROW_MAJOR),
        .bias = td_stage_in(&sb, bias, TD_ROW_MAJOR),
        .mean = mean != NULL ? td_ptr(mean) : NULL,
        .inv_std = td_ptr(inv_std),
        .eps = eps,
    };
    int64_t rows = td_numel(inv_std);
    if (td_numel(x) > 0) {
        td_parallel(td_device_of(x), rows, job.d, layer_norm_range, &job);
    }
    td_stage_end(&sb, &sw, &sx, &sy);
}

/* One block of GRAD_ROWS rows. */
static void layer_norm_grad_block(void *ctx, int64_t begin, int64_t end)
{
    const layer_job *job = ctx;
    int64_t step = job->d * job->size;
    double *dyx = NULL, *dy = NULL;
    if (job->partial) {
        dyx = job->partial + begin / GRAD_ROWS * 2 * job->d;
        dy = dyx + job->d;
        memset(dyx, 0, (size_t)(2 * job->d) * sizeof *dyx);
    }
    for (int64_t r = begin; r < end; r++) {
        double mean = job->mean != NULL ? td_load_element(job->mean, job->dtype, r) : 0.0;
        job->loops->layer_norm_grad(job->d, job->out ? job->out + r * step : NULL, job->accumulate,
                                    dyx, dy, job->dy + r * step, job->x + r * step, job->weight,
                                    job->mean != NULL, mean,
                                    td_load_element(job->inv_std, job->dtype, r));
    }
}

/* to[d] = or += the sum over blocks. */
static void add_blocks(td_tensor *to, bool accumulate, const double *partial, int64_t blocks,
                       int64_t d)
{
    for (int64_t i = 0; to && i < d; i++) {
        double sum = 0.0;
        for (int64_t b = 0; b < blocks; b++) {
            sum += partial[b * 2 * d + i];
        }
        int64_t at = i * to->stride[0];
        double old = accumulate ? td_load_element(td_ptr(to), to->dtype, at) : 0.0;
        td_store_element(td_ptr(to), to->dtype, at, old + sum);
    }
}

void td_cpu_layer_norm_grad(td_tensor *dx, td_tensor *dweight, td_tensor *dbias,
                            const td_tensor *dy, const td_tensor *x, const td_tensor *weight,
                            const td_tensor *mean, const td_tensor *inv_std, bool accumulate_dx,
                            bool accumulate_dweight, bool accumulate_dbias)
{
    td_device device = td_device_of(x);
    int64_t rows = td_numel(inv_std), blocks = (rows + GRAD_ROWS - 1) / GRAD_ROWS;
    td_staged sdx, sdy, sx, sw;
    layer_job job = {
        .loops = td_loops_of(x->dtype),
        .dtype = x->dtype,
        .size = (int64_t)td_dtype_size(x->dtype),
        .d = x->shape[x->ndim - 1],
        .out = td_stage_out(&sdx, dx, TD_ROW_MAJOR, accumulate_dx),
        .x = td_stage_in(&sx, x, TD_ROW_MAJOR),
        .dy = td_stage_in(&sdy, dy, TD_ROW_MAJOR),
        .weight = td_stage_in(&sw, weight, TD_ROW_MAJOR),
        .mean = mean != NULL ? td_ptr(mean) : NULL,
        .inv_std = td_ptr(inv_std),
        .accumulate = accumulate_dx,
    };
    if (dweight || dbias) {
        job.partial = td_scratch(device, (size_t)(blocks * 2 * job.d) * sizeof(double));
    }
    td_parallel_chunks(device, rows, GRAD_ROWS, layer_norm_grad_block, &job);
    if (job.partial) {
        add_blocks(dweight, accumulate_dweight, job.partial, blocks, job.d);
        add_blocks(dbias, accumulate_dbias, job.partial + job.d, blocks, job.d);
        td_scratch_free(device, job.partial);
    }
    td_stage_end(&sw, &sx, &sdy, &sdx);
}

void td_cpu_rms_norm(td_tensor *y, td_tensor *inv_rms, const td_tensor *x, const td_tensor *weight,
                     double eps)
{
    td_cpu_layer_norm(y, NULL, inv_rms, x, weight, NULL, eps);
}

void td_cpu_rms_norm_grad(td_tensor *dx, td_tensor *dweight, const td_tensor *dy,
                          const td_tensor *x, const td_tensor *weight, const td_tensor *inv_rms,
                          bool accumulate_dx, bool accumulate_dweight)
{
    td_cpu_layer_norm_grad(dx, dweight, NULL, dy, x, weight, NULL, inv_rms, accumulate_dx,
                           accumulate_dweight, false);
}
