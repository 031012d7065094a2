/* Batch normalisation and group normalisation. Training goes over x twice: for the statistics, and
 * to normalise, the second time backwards, because the end of x is what the caches still hold. Each
 * block of rows gives its mean and its sum of squares about that mean; blocks are merged in double
 * by the formula for the variance of a union (Chan, Golub and LeVeque 1979), so a large mean costs
 * no accuracy. */
#include "tensor/cpu/ops.h"
#include "tensor/cpu/ops_norm.h"

#include <math.h>
#include <string.h>

typedef struct norm_job {
    const td_loops *loops;
    td_dtype dtype;
    int64_t size, rows, channels, chunk, block; /* rows of a task, and that it writes together */
    const char *x, *add;
    char *y;
    td_norm_activation activation;
    td_norm_constants constants;
    double *moments; /* [chunks][4][channels]: mean, m2, and room for one block's */
} norm_job;

/* Adds the moments of nb rows (b) to those of na rows (a). */
static void merge_moments(int64_t channels, double *restrict mean_a, double *restrict m2_a,
                          double na, const double *restrict mean_b, const double *restrict m2_b,
                          double nb)
{
    double share = nb / (na + nb), weight = na * nb / (na + nb);
    for (int64_t c = 0; c < channels; c++) {
        double delta = mean_b[c] - mean_a[c];
        mean_a[c] += delta * share;
        m2_a[c] += m2_b[c] + delta * delta * weight;
    }
}

static void moments_range(void *ctx, int64_t begin, int64_t end)
{
    const norm_job *job = ctx;
    int64_t channels = job->channels;
    double *mean = job->moments + begin / job->chunk * 4 * channels, *m2 = mean + channels;
    double *block_mean = m2 + channels, *block_m2 = block_mean + channels;
    for (int64_t r = begin; r < end; r += TD_NORM_BLOCK) {
        int64_t n = end - r < TD_NORM_BLOCK ? end - r : TD_NORM_BLOCK;
        const char *x = job->x + r * channels * job->size;
        if (r == begin) {
            job->loops->moments(n, channels, x, mean, m2);
            continue;
        }
        job->loops->moments(n, channels, x, block_mean, block_m2);
        merge_moments(channels, mean, m2, (double)(r - begin), block_mean, block_m2, (double)n);
    }
}

/* Takes memory for the moments, which the caller frees, and leaves the mean and m2 of all rows in
 * moments[0..2*channels). */
static void norm_find_moments(norm_job *job, td_device device)
{
    int64_t chunks = (job->rows + job->chunk - 1) / job->chunk;
    job->moments = td_scratch(device, (size_t)(chunks * 4 * job->channels) * sizeof(double));
    td_parallel_chunks(device, job->rows, job->chunk, moments_range, job);
    for (int64_t r = job->chunk; r < job->rows; r += job->chunk) {
        int64_t n = job->rows - r < job->chunk ? job->rows - r : job->chunk;
        const double *part = job->moments + r / job->chunk * 4 * job->channels;
        merge_moments(job->channels, job->moments, job->moments + job->channels, (double)r, part,
                      part + job->channels, (double)n);
    }
}

static void normalize_range(void *ctx, int64_t begin, int64_t end)
{
    const norm_job *job = ctx;
    for (int64_t r = begin; r < end; r += job->block) {
        int64_t n = end - r < job->block ? end - r : job->block;
        int64_t at = r * job->channels * job->size;
        job->loops->normalize(n, job->channels, job->y + at, job->x + at, &job->constants,
                              job->add ? job->add + at : NULL, job->activation == TD_NORM_RELU);
        if (job->activation == TD_NORM_GELU) { /* while the block is in the cache */
            td_cpu_unary_run(TD_UNARY_gelu, job->dtype, n * job->channels, job->y + at,
                             job->y + at);
        }
    }
}

static void update_running(td_tensor *running, int64_t c, double momentum, double value)
{
    if (running) {
        td_set_channel(running, c,
                       (1.0 - momentum) * td_channel(running, c, 0.0) + momentum * value);
    }
}

/* Per channel: statistics, what they leave behind, and the constants of y = (x - mean) * scale +
 * shift. What rounding takes from the mean goes into the shift. */
static void norm_prepare_channels(const td_batch_norm_args *a, const norm_job *job, void *mean_of,
                                  void *scale_of, void *shift_of)
{
    td_dtype dtype = td_norm_dtype(a->x->dtype);
    double n = (double)job->rows;
    for (int64_t c = 0; c < job->channels; c++) {
        double mean, variance;
        if (a->training) {
            double m2 = job->moments[job->channels + c];
            mean = job->moments[c];
            variance = m2 / n;
            update_running(a->running_mean, c, a->momentum, mean);
            update_running(a->running_var, c, a->momentum, m2 / (n > 1.0 ? n - 1.0 : 1.0));
        } else {
            mean = td_channel(a->running_mean, c, 0.0);
            variance = td_channel(a->running_var, c, 1.0);
        }
        double inv_std = 1.0 / sqrt(variance + a->eps);
        double scale = td_channel(a->weight, c, 1.0) * inv_std;
        td_set_channel(a->mean, c, mean);
        td_set_channel(a->inv_std, c, inv_std);
        td_store_element(mean_of, dtype, c, mean);
        td_store_element(scale_of, dtype, c, scale);
        double lost = mean - td_load_element(mean_of, dtype, c);
        td_store_element(shift_of, dtype, c, td_channel(a->bias, c, 0.0) - lost * scale);
    }
    if (a->affine) {
        size_t bytes = (size_t)job->channels * td_dtype_size(dtype);
        memcpy(td_ptr(a->affine), scale_of, bytes);
        memcpy((char *)td_ptr(a->affine) + bytes, shift_of, bytes);
    }
}

void td_cpu_batch_norm(const td_batch_norm_args *a)
{
    const td_tensor *x = a->x;
    td_device device = td_device_of(x);
    int64_t numel = td_numel(x), channels = x->shape[1];
    if (channels == 0 || (numel == 0 && a->training)) { /* an empty batch has no statistics */
        return;
    }
    td_staged sx, sadd, sy;
    norm_job job = {
        .loops = td_loops_of(x->dtype),
        .dtype = (td_dtype)x->dtype,
        .size = (int64_t)td_dtype_size(x->dtype),
        .rows = numel / channels,
        .channels = channels,
        .chunk = td_norm_chunk(channels),
        .block = TD_NORM_BLOCK,
        .x = td_stage_in(&sx, x, TD_IMAGE),
        .add = td_stage_in(&sadd, a->add, TD_IMAGE),
        .y = td_stage_out(&sy, a->max_pool ? NULL : a->y, TD_IMAGE, false),
        .activation = a->activation,
    };
    if (a->training) {
        norm_find_moments(&job, device);
    }
    int64_t bytes = channels * (int64_t)td_dtype_size(td_norm_dtype(x->dtype));
    char *mean = td_scratch(device, (size_t)(3 * bytes));
    char *scale = mean + bytes, *shift = scale + bytes;
    norm_prepare_channels(a, &job, mean, scale, shift);
    job.constants = (td_norm_constants){ .mean = mean, .scale = scale, .shift = shift };
    if (a->max_pool) {
        td_pool_normalized(a->y, a->index, x, job.x, a->max_pool, &job.constants);
    } else {
        td_parallel_backwards(device, job.rows, job.chunk, normalize_range, &job);
    }
    td_scratch_free(device, mean);
    td_scratch_free(device, job.moments);
    td_stage_end(&sy, &sadd, &sx);
}

/* ---- group normalisation. An image in the CPU's layout is a matrix with a row per pixel and a
 * column per channel of each picture; statistics of columns, merged, are those of groups ---- */

/* Mean and variance of the `each` columns from `first` on. */
static double group_moments(const norm_job *job, int64_t first, int64_t each, double *variance)
{
    const double *means = job->moments + first, *m2 = means + job->channels;
    double mean = 0.0, sum = 0.0;
    for (int64_t i = 0; i < each; i++) {
        mean += means[i];
    }
    mean /= (double)each;
    for (int64_t i = 0; i < each; i++) {
        sum += m2[i] + (double)job->rows * (means[i] - mean) * (means[i] - mean);
    }
    *variance = sum / (double)(job->rows * each);
    return mean;
}

/* As prepare_channels. */
static void norm_prepare_groups(const norm_job *job, td_tensor *means, td_tensor *inv_stds,
                                const td_tensor *weight, const td_tensor *bias, double eps,
                                char *mean_of)
{
    td_dtype dtype = means->dtype;
    int64_t bytes = job->channels * job->size, groups = means->shape[1];
    int64_t each = job->channels / td_numel(means);
    for (int64_t group = 0; group < td_numel(means); group++) {
        int64_t first = group * each, channel = group % groups * each;
        double variance, mean = group_moments(job, first, each, &variance);
        double inv_std = 1.0 / sqrt(variance + eps);
        td_store_element(td_ptr(means), dtype, group, mean);
        td_store_element(td_ptr(inv_stds), dtype, group, inv_std);
        double lost = mean - td_load_element(td_ptr(means), dtype, group);
        for (int64_t i = 0; i < each; i++) {
            double scale = td_channel(weight, channel + i, 1.0) * inv_std;
            td_store_element(mean_of, dtype, first + i, mean);
            td_store_element(mean_of + bytes, dtype, first + i, scale);
            td_store_element(mean_of + 2 * bytes, dtype, first + i,
                             td_channel(bias, channel + i, 0.0) - lost * scale);
        }
    }
}

void td_cpu_group_norm(td_tensor *y, td_tensor *mean, td_tensor *inv_std, const td_tensor *x,
                       const td_tensor *weight, const td_tensor *bias, double eps)
{
    td_device device = td_device_of(x);
    int64_t columns = x->shape[0] * x->shape[1];
    td_staged sx, sy;
    norm_job job = {
        .loops = td_loops_of(x->dtype),
        .dtype = (td_dtype)x->dtype,
        .size = (int64_t)td_dtype_size(x->dtype),
        .rows = td_numel(x) / columns,
        .channels = columns,
        .chunk = td_group_norm_chunk(columns),
        .block = td_group_norm_block(columns),
        .x = td_stage_in(&sx, x, TD_IMAGE),
        .y = td_stage_out(&sy, y, TD_IMAGE, false),
    };
    norm_find_moments(&job, device);
    char *constants = td_scratch(device, (size_t)(3 * columns * job.size));
    norm_prepare_groups(&job, mean, inv_std, weight, bias, eps, constants);
    job.constants = (td_norm_constants){ .mean = constants,
                                         .scale = constants + columns * job.size,
                                         .shift = constants + 2 * columns * job.size };
    td_parallel_backwards(device, job.rows, job.chunk, normalize_range, &job);
    td_scratch_free(device, constants);
    td_scratch_free(device, job.moments);
    td_stage_end(&sy, &sx);
}
