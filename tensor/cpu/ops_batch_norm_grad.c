/* The gradients of batch and group normalisation. Batch normalisation (+ add) (relu or gelu).
 * With g = dy times the activation's slope, n rows, x_hat = (x - mean) * inv_std, per channel:
 *
 *     dbias = sum(g)    dweight = sum(g x_hat)    dadd = g
 *     dx = weight inv_std (g - sum(g)/n - x_hat sum(g x_hat)/n)     or, in evaluation, w inv_std g
 *
 * First the sums, then dx, backwards, because the end of what the first pass read is still in the
 * caches. Where the addend's gradient is written anyway, the second pass reads it as g. */
#include "tensor/cpu/ops.h"
#include "tensor/cpu/ops_norm.h"

#include <string.h>

typedef struct grad_job {
    const td_loops *loops;
    td_dtype dtype;
    int64_t size, rows, channels, chunk, block; /* as norm_job's */
    td_norm_mask mask;
    const char *dy, *x, *y; /* y: TD_NORM_MASK_Y only */
    char *gelu_g;           /* where the first pass leaves g, which the second reads as dy */
    char *dx, *dadd;
    bool add_dx, add_dadd;
    bool keep; /* the first pass leaves g in dadd */
    td_norm_constants constants;
    double *sums; /* [chunks][4][channels]: g, g (x - mean), and one block's */
} grad_job;

/* What a block of rows reads, byte offset `at` from the beginning. */
static td_norm_grad norm_grad_block_at(const grad_job *job, int64_t at)
{
    return (td_norm_grad){
        .mask = job->mask, .dy = job->dy + at, .x = job->x + at, .y = job->y ? job->y + at : NULL
    };
}

/* g = dy times gelu's slope, of n rows from r on. What gelu was taken of, as its dtype held it, is
 * computed again, by whole rows or pieces of one. */
static void gelu_grad(const grad_job *job, int64_t r, int64_t n)
{
    enum { BYTES = 16384 };
    _Alignas(64) char value[BYTES];
    int64_t channels = job->channels, most = BYTES / job->size;
    int64_t wide = channels < most ? channels : most, high = most / wide;
    int64_t size = (int64_t)td_dtype_size(td_norm_dtype(job->dtype));
    const td_norm_constants *all = &job->constants;
    for (int64_t i = 0; i < n; i += high) {
        int64_t rows = n - i < high ? n - i : high;
        for (int64_t c = 0; c < channels; c += wide) {
            int64_t columns = channels - c < wide ? channels - c : wide;
            int64_t at = ((r + i) * channels + c) * job->size;
            td_norm_constants own = { .mean = (const char *)all->mean + c * size,
                                      .scale = (const char *)all->scale + c * size,
                                      .shift = (const char *)all->shift + c * size };
            job->loops->normalize(rows, columns, value, job->x + at, &own, NULL, false);
            td_cpu_unary_grad_run(TD_UNARY_gelu, job->dtype, rows * columns, job->gelu_g + at,
                                  job->dy + at, value);
        }
    }
}

static void sums_range(void *ctx, int64_t begin, int64_t end)
{
    const grad_job *job = ctx;
    int64_t channels = job->channels;
    double *g = job->sums + begin / job->chunk * 4 * channels, *block = g + 2 * channels;
    memset(g, 0, (size_t)(2 * channels) * sizeof *g);
    for (int64_t r = begin; r < end; r += TD_NORM_BLOCK) {
        int64_t n = end - r < TD_NORM_BLOCK ? end - r : TD_NORM_BLOCK;
        int64_t at = r * channels * job->size;
        td_norm_grad from = norm_grad_block_at(job, at);
        if (job->gelu_g) {
            gelu_grad(job, r, n);
            from.dy = job->gelu_g + at;
        }
        job->loops->norm_grad_sums(n, channels, &from, &job->constants,
                                   job->keep ? job->dadd + at : NULL, block, block + channels);
        for (int64_t i = 0; i < 2 * channels; i++) {
            g[i] += block[i];
        }
    }
}

/* Leaves the sums over all rows in sums[0..2*channels). */
static void find_sums(grad_job *job, td_device device)
{
    td_parallel_chunks(device, job->rows, job->chunk, sums_range, job);
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
    for (int64_t r = begin; r < end; r += job->block) {
        int64_t n = end - r < job->block ? end - r : job->block;
        int64_t at = r * job->channels * job->size;
        td_norm_grad from = norm_grad_block_at(job, at);
        if (job->keep) {
            from.mask = TD_NORM_MASK_NONE;
            from.dy = job->dadd + at;
        } else if (job->dadd) {
            job->loops->masked(n * job->channels, job->dadd + at, job->add_dadd, from.dy, from.y);
        }
        if (job->dx) {
            job->loops->norm_grad_apply(n, job->channels, job->dx + at, job->add_dx, &from,
                                        &job->constants);
        }
    }
}

static void norm_grad_put(td_tensor *t, int64_t c, bool accumulate, double value)
{
    if (t) {
        td_set_channel(t, c, value + (accumulate ? td_channel(t, c, 0.0) : 0.0));
    }
}

/* Per channel: the gradients of weight and bias, and the constants of dx. */
static void norm_grad_prepare_channels(const td_batch_norm_grad_args *args, const grad_job *job,
                                       char *a)
{
    td_dtype dtype = td_norm_dtype(args->x->dtype);
    int64_t channels = job->channels, bytes = channels * (int64_t)td_dtype_size(dtype);
    for (int64_t c = 0; c < channels; c++) {
        double inv_std = td_channel(args->inv_std, c, 1.0);
        double scale = td_channel(args->weight, c, 1.0) * inv_std;
        td_store_element(a, dtype, c, scale);
        if (!job->sums) {
            continue;
        }
        double g = job->sums[c], gx = job->sums[channels + c], n = (double)job->rows;
        norm_grad_put(args->dbias, c, args->accumulate_dbias, g);
        norm_grad_put(args->dweight, c, args->accumulate_dweight, gx * inv_std);
        td_store_element(a + bytes, dtype, c, -scale * inv_std * inv_std * gx / n);
        td_store_element(a + 2 * bytes, dtype, c, -scale * g / n);
    }
}

/* Where the activation is gelu or a pooling follows, the first pass writes g, and the second reads
 * it as dy. g lies in dx if dx is overwritten (the second pass reads an element of g before it
 * writes that of dx); otherwise in scratch memory, which is returned. Leaves the sums, too. */
static void *take_g(const td_batch_norm_grad_args *args, grad_job *job, td_device device)
{
    void *scratch = NULL, *g = job->dx;
    if (!job->dx || job->add_dx) {
        g = scratch = td_scratch(device, (size_t)(job->rows * job->channels * job->size));
    }
    if (args->max_pool) {
        td_pool_grad_and_sums(g, args->dy, args->index, args->x, job->x, args->max_pool,
                              &job->constants, job->sums);
    } else {
        job->gelu_g = g;
        find_sums(job, device);
    }
    job->dy = g;
    return scratch;
}

/* The two passes, on staged tensors. */
static void norm_run_grad(const td_batch_norm_grad_args *args, grad_job *job, td_device device)
{
    td_dtype dtype = td_norm_dtype(args->x->dtype);
    int64_t channels = job->channels, bytes = channels * (int64_t)td_dtype_size(dtype);
    char *mean = td_scratch(device, (size_t)(6 * bytes)); /* mean, scale, shift, a, b, c */
    for (int64_t c = 0; c < channels; c++) {
        td_store_element(mean, dtype, c, td_channel(args->mean, c, 0.0));
    }
    if (args->affine) {
        memcpy(mean + bytes, td_ptr(args->affine), (size_t)(2 * bytes));
    }
    char *a = mean + 3 * bytes;
    job->constants = (td_norm_constants){
        .mean = mean,
        .scale = mean + bytes,
        .shift = mean + 2 * bytes,
        .a = a,
        .b = args->training ? a + bytes : NULL,
        .c = a + 2 * bytes,
    };
    void *scratch = NULL; /* g, where dx cannot hold it */
    bool makes_g = args->max_pool || args->activation == TD_NORM_GELU;
    bool wants_sums = makes_g || (args->training && args->dx) || args->dweight || args->dbias;
    if (wants_sums) {
        int64_t chunks = (job->rows + job->chunk - 1) / job->chunk;
        job->sums = td_scratch(device, (size_t)(chunks * 4 * channels) * sizeof(double));
        job->keep = job->dadd && !job->add_dadd && job->mask == TD_NORM_MASK_Y;
        if (makes_g) {
            scratch = take_g(args, job, device);
        } else {
            find_sums(job, device);
        }
    }
    norm_grad_prepare_channels(args, job, a);
    if (job->dx || (job->dadd && !job->keep)) {
        td_parallel_backwards(device, job->rows, job->chunk, apply_range, job);
    }
    td_scratch_free(device, scratch);
    td_scratch_free(device, job->sums);
    td_scratch_free(device, mean);
}

static td_norm_mask norm_grad_mask_of(const td_batch_norm_grad_args *args)
{
    if (args->activation != TD_NORM_RELU || args->max_pool) { /* or g is made first */
        return TD_NORM_MASK_NONE;
    }
    return args->affine ? TD_NORM_MASK_X : TD_NORM_MASK_Y;
}

void td_cpu_batch_norm_grad(const td_batch_norm_grad_args *args)
{
    const td_tensor *x = args->x;
    int64_t numel = td_numel(x), channels = x->shape[1];
    if (numel == 0) { /* sums of nothing */
        for (int64_t c = 0; c < channels; c++) {
            norm_grad_put(args->dbias, c, args->accumulate_dbias, 0.0);
            norm_grad_put(args->dweight, c, args->accumulate_dweight, 0.0);
        }
        return;
    }
    td_norm_mask mask = norm_grad_mask_of(args);
    td_staged sdy, sx, sy, sdx, sdadd;
    grad_job job = {
        .loops = td_loops_of(x->dtype),
        .dtype = (td_dtype)x->dtype,
        .size = (int64_t)td_dtype_size(x->dtype),
        .rows = numel / channels,
        .channels = channels,
        .chunk = td_norm_chunk(channels),
        .block = TD_NORM_BLOCK,
        .mask = mask,
        .dy = td_stage_in(&sdy, args->max_pool ? NULL : args->dy, TD_IMAGE),
        .x = td_stage_in(&sx, x, TD_IMAGE),
        .y = td_stage_in(&sy, mask == TD_NORM_MASK_Y ? args->y : NULL, TD_IMAGE),
        .dx = td_stage_out(&sdx, args->dx, TD_IMAGE, args->accumulate_dx),
        .dadd = td_stage_out(&sdadd, args->dadd, TD_IMAGE, args->accumulate_dadd),
        .add_dx = args->accumulate_dx,
        .add_dadd = args->accumulate_dadd,
    };
    norm_run_grad(args, &job, td_device_of(x));
    td_stage_end(&sdadd, &sdx, &sy, &sx, &sdy);
}

/* ---- group normalisation: as above, but with means over groups of columns ---- */

/* Per column of a picture: the constants of dx = a g + b (x - mean) + c. */
static void norm_grad_prepare_groups(const grad_job *job, const td_tensor *weight,
                                     const td_tensor *inv_std, char *a)
{
    td_dtype dtype = inv_std->dtype;
    int64_t bytes = job->channels * job->size, groups = inv_std->shape[1];
    int64_t each = job->channels / td_numel(inv_std);
    double n = (double)(job->rows * each);
    char *b = a + bytes, *c = b + bytes;
    for (int64_t group = 0; group < td_numel(inv_std); group++) {
        const double *sum_g = job->sums + group * each, *sum_gx = sum_g + job->channels;
        int64_t first = group * each, channel = group % groups * each;
        double std = td_load_element(td_ptr(inv_std), dtype, group), g = 0.0, gx = 0.0;
        for (int64_t i = 0; i < each; i++) {
            double w = td_channel(weight, channel + i, 1.0);
            g += w * sum_g[i];
            gx += w * sum_gx[i];
        }
        for (int64_t i = 0; i < each; i++) {
            td_store_element(a, dtype, first + i, td_channel(weight, channel + i, 1.0) * std);
            td_store_element(b, dtype, first + i, -std * std * std * gx / n);
            td_store_element(c, dtype, first + i, -std * g / n);
        }
    }
}

/* The gradients of weight and bias: sums over pictures. */
static void put_group_sums(const grad_job *job, td_tensor *dweight, bool accumulate_dweight,
                           td_tensor *dbias, bool accumulate_dbias, const td_tensor *inv_std)
{
    int64_t pictures = inv_std->shape[0], groups = inv_std->shape[1];
    int64_t channels = job->channels / pictures, each = channels / groups;
    for (int64_t c = 0; c < channels; c++) {
        double g = 0.0, gx = 0.0;
        for (int64_t i = c, group = c / each; i < job->channels; i += channels, group += groups) {
            g += job->sums[i];
            gx += job->sums[job->channels + i] *
                  td_load_element(td_ptr(inv_std), inv_std->dtype, group);
        }
        norm_grad_put(dweight, c, accumulate_dweight, gx);
        norm_grad_put(dbias, c, accumulate_dbias, g);
    }
}

void td_cpu_group_norm_grad(td_tensor *dx, td_tensor *dweight, td_tensor *dbias,
                            const td_tensor *dy, const td_tensor *x, const td_tensor *weight,
                            const td_tensor *mean, const td_tensor *inv_std, bool accumulate_dx,
                            bool accumulate_dweight, bool accumulate_dbias)
{
    td_device device = td_device_of(x);
    int64_t columns = x->shape[0] * x->shape[1], each = columns / td_numel(mean);
    if (dx && !accumulate_dx && !td_is_layout(dy, TD_IMAGE)) { /* dx is computed in place */
        td_cpu_copy(dx, dy);
        dy = dx;
    }
    td_staged sdy, sx, sdx;
    grad_job job = {
        .loops = td_loops_of(x->dtype),
        .dtype = (td_dtype)x->dtype,
        .size = (int64_t)td_dtype_size(x->dtype),
        .rows = td_numel(x) / columns,
        .channels = columns,
        .chunk = td_group_norm_chunk(columns),
        .block = td_group_norm_block(columns),
        .mask = TD_NORM_MASK_NONE,
        .dy = td_stage_in(&sdy, dy, TD_IMAGE),
        .x = td_stage_in(&sx, x, TD_IMAGE),
        .dx = td_stage_out(&sdx, dx, TD_IMAGE, accumulate_dx),
        .add_dx = accumulate_dx,
    };
    int64_t bytes = columns * job.size, chunks = (job.rows + job.chunk - 1) / job.chunk;
    char *constants = td_scratch(device, (size_t)(4 * bytes)); /* mean, a, b, c */
    for (int64_t group = 0, i = 0; group < td_numel(mean); group++) {
        double value = td_load_element(td_ptr(mean), x->dtype, group);
        for (int64_t end = i + each; i < end; i++) {
            td_store_element(constants, x->dtype, i, value);
        }
    }
    job.constants = (td_norm_constants){ .mean = constants,
                                         .a = constants + bytes,
                                         .b = constants + 2 * bytes,
                                         .c = constants + 3 * bytes };
    job.sums = td_scratch(device, (size_t)(chunks * 4 * columns) * sizeof(double));
    find_sums(&job, device);
    put_group_sums(&job, dweight, accumulate_dweight, dbias, accumulate_dbias, inv_std);
    if (job.dx) {
        norm_grad_prepare_groups(&job, weight, inv_std, constants + bytes);
        td_parallel_backwards(device, job.rows, job.chunk, apply_range, &job);
    }
    td_scratch_free(device, job.sums);
    td_scratch_free(device, constants);
    td_stage_end(&sdx, &sx, &sdy);
}
