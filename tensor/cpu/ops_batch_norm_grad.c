/* The gradient of batch normalisation (+ add) (relu). With g = dy where the relu let it through,
 * n rows, x_hat = (x - mean) * inv_std, per channel:
 *
 *     dbias = sum(g)    dweight = sum(g x_hat)    dadd = g
 *     dx = weight inv_std (g - sum(g)/n - x_hat sum(g x_hat)/n)     or, in evaluation, w inv_std g
 *
 * First the sums, then dx; both passes read dy, x and y. */
#include "tensor/cpu/loops.h"
#include "tensor/cpu/ops.h"
#include "tensor/cpu/ops_dense.h"
#include "tensor/cpu/ops_norm.h"

#include <string.h>

typedef struct grad_job {
    const td_loops *loops;
    int64_t size, rows, channels, chunk;
    const char *dy, *x, *y; /* y NULL: no relu */
    char *dx, *dadd;
    bool add_dx, add_dadd;
    const void *mean, *a, *b, *c; /* dx = a g + b (x - mean) + c; b NULL: dx = a g */
    double *sums;                 /* [chunks][4][channels]: g, g (x - mean), and one block's */
} grad_job;

static void sums_range(void *ctx, int64_t begin, int64_t end)
{
    const grad_job *job = ctx;
    int64_t channels = job->channels;
    double *g = job->sums + begin / job->chunk * 4 * channels, *block = g + 2 * channels;
    memset(g, 0, (size_t)(2 * channels) * sizeof *g);
    for (int64_t r = begin; r < end; r += TD_NORM_BLOCK) {
        int64_t n = end - r < TD_NORM_BLOCK ? end - r : TD_NORM_BLOCK;
        int64_t at = r * channels * job->size;
        job->loops->norm_grad_sums(n, channels, job->dy + at, job->x + at,
                                   job->y ? job->y + at : NULL, job->mean, block, block + channels);
        for (int64_t i = 0; i < 2 * channels; i++) {
            g[i] += block[i];
        }
    }
}

/* Leaves the sums over all rows in sums[0..2*channels). */
static void find_sums(grad_job *job, td_device device)
{
    td_parallel(device, job->rows, job->chunk, sums_range, job);
    for (int64_t r = job->chunk; r < job->rows; r += job->chunk) {
        const double *part = job->sums + r / job->chunk * 4 * job->channels;
        for (int64_t i = 0; i < 2 * job->channels; i++) {
            job->sums[i] += part[i];
        }
    }
}

static void apply_range(void *ctx, int64_t begin, int64_t end)
{
    const grad_job *job = ctx;
    int64_t at = begin * job->channels * job->size;
    job->loops->norm_grad_apply(end - begin, job->channels, job->dx ? job->dx + at : NULL,
                                job->add_dx, job->dadd ? job->dadd + at : NULL, job->add_dadd,
                                job->dy + at, job->x + at, job->y ? job->y + at : NULL, job->mean,
                                job->a, job->b, job->c);
}

static void put(td_tensor *t, int64_t c, bool accumulate, double value)
{
    if (t) {
        td_set_channel(t, c, value + (accumulate ? td_channel(t, c, 0.0) : 0.0));
    }
}

/* Per channel: the gradients of weight and bias, and the constants of dx. */
static void prepare_channels(const td_batch_norm_grad_args *args, const grad_job *job,
                             char *constants)
{
    td_dtype dtype = args->x->dtype;
    int64_t channels = job->channels, bytes = channels * job->size;
    for (int64_t c = 0; c < channels; c++) {
        double inv_std = td_channel(args->inv_std, c, 1.0);
        double scale = td_channel(args->weight, c, 1.0) * inv_std;
        td_store_element(constants + bytes, dtype, c, scale);
        if (!job->sums) {
            continue;
        }
        double g = job->sums[c], gx = job->sums[channels + c], n = (double)job->rows;
        put(args->dbias, c, args->accumulate_dbias, g);
        put(args->dweight, c, args->accumulate_dweight, gx * inv_std);
        td_store_element(constants + 2 * bytes, dtype, c, -scale * inv_std * inv_std * gx / n);
        td_store_element(constants + 3 * bytes, dtype, c, -scale * g / n);
    }
}

/* The two passes, on staged tensors. */
static void run_grad(const td_batch_norm_grad_args *args, grad_job *job, td_device device)
{
    int64_t channels = job->channels, bytes = channels * job->size;
    char *constants = td_scratch(device, (size_t)(4 * bytes)); /* mean, a, b, c */
    for (int64_t c = 0; c < channels; c++) {
        td_store_element(constants, args->x->dtype, c, td_channel(args->mean, c, 0.0));
    }
    job->mean = constants;
    if ((args->training && args->dx) || args->dweight || args->dbias) {
        int64_t chunks = (job->rows + job->chunk - 1) / job->chunk;
        job->sums = td_scratch(device, (size_t)(chunks * 4 * channels) * sizeof(double));
        find_sums(job, device);
    }
    prepare_channels(args, job, constants);
    job->a = constants + bytes;
    job->b = args->training ? constants + 2 * bytes : NULL;
    job->c = constants + 3 * bytes;
    if (job->dx || job->dadd) {
        td_parallel(device, job->rows, job->chunk, apply_range, job);
    }
    td_scratch_free(device, job->sums);
    td_scratch_free(device, constants);
}

void td_cpu_batch_norm_grad(const td_batch_norm_grad_args *args)
{
    const td_tensor *x = args->x;
    int64_t numel = td_numel(x), channels = x->shape[1];
    if (numel == 0) { /* sums of nothing */
        for (int64_t c = 0; c < channels; c++) {
            put(args->dbias, c, args->accumulate_dbias, 0.0);
            put(args->dweight, c, args->accumulate_dweight, 0.0);
        }
        return;
    }
    td_staged sdy, sx, sy, sdx, sdadd;
    grad_job job = {
        .loops = td_loops_of(x->dtype),
        .size = (int64_t)td_dtype_size(x->dtype),
        .rows = numel / channels,
        .channels = channels,
        .chunk = td_norm_chunk(channels),
        .dy = td_stage_in(&sdy, args->dy, TD_IMAGE),
        .x = td_stage_in(&sx, x, TD_IMAGE),
        .y = td_stage_in(&sy, args->relu ? args->y : NULL, TD_IMAGE),
        .dx = td_stage_out(&sdx, args->dx, TD_IMAGE, args->accumulate_dx),
        .dadd = td_stage_out(&sdadd, args->dadd, TD_IMAGE, args->accumulate_dadd),
        .add_dx = args->accumulate_dx,
        .add_dadd = args->accumulate_dadd,
    };
    run_grad(args, &job, td_device_of(x));
    td_stage_end(&sdadd);
    td_stage_end(&sdx);
    td_stage_end(&sy);
    td_stage_end(&sx);
    td_stage_end(&sdy);
}
