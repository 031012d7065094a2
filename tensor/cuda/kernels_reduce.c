/* Reductions of any dimensions of a tensor of any strides. x's dimensions are of two kinds, kept
 * and reduced; the one that lies closest in memory decides how threads share the work. The cut into
 * segments depends on the shape alone. */
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch_memory.h"
#include "tensor/cuda/launch_reduce.h"

#include <math.h>

enum {
    SHORT_RUN = 16,     /* reduced runs below this are better taken as columns */
    WARP_RUN = 512,     /* up to here a warp does an output */
    WANTED_BLOCKS = 528 /* a few for each multiprocessor of a large GPU */
};

static void add_dimension(td_cuda_walk *to, const td_cuda_walk *all, int d)
{
    to->shape[to->ndim] = all->shape[d];
    to->stride[0][to->ndim] = all->stride[0][d];
    to->stride[1][to->ndim] = all->stride[1][d];
    to->count *= all->shape[d];
    to->ndim++;
}

static void at_least_one(td_cuda_walk *walk)
{
    if (walk->ndim == 0) {
        walk->shape[0] = walk->ndim = 1;
    }
}

/* Parts a walk over x and y (expanded to x's shape) into kept and reduced dimensions. */
static void cuda_reduce_part_dimensions(td_cuda_reduce_job *job, const td_cuda_walk *all)
{
    td_cuda_walk kept = { .count = 1 }, reduced = { .count = 1 };
    bool last_kept = false;
    for (int d = 0; d < all->ndim; d++) {
        last_kept = all->stride[1][d] != 0;
        add_dimension(last_kept ? &kept : &reduced, all, d);
    }
    for (int d = 0; d < kept.ndim; d++) { /* operand 0 is y */
        int64_t x = kept.stride[0][d];
        kept.stride[0][d] = kept.stride[1][d];
        kept.stride[1][d] = x;
    }
    at_least_one(&kept);
    at_least_one(&reduced);
    bool short_runs = reduced.count < SHORT_RUN && kept.count > reduced.count;
    job->by = last_kept || short_runs     ? TD_CUDA_BY_COLUMNS
              : reduced.count <= WARP_RUN ? TD_CUDA_BY_WARP
                                          : TD_CUDA_BY_BLOCK;
    job->kept = kept;
    job->reduced = reduced;
}

/* Chooses segments: as many as keep a GPU busy, none too short. Returns the tiles of outputs. */
static int64_t cuda_reduce_cut(td_cuda_reduce_job *job)
{
    int64_t outputs = td_cuda_reduce_outputs(job->by), total = job->reduced.count;
    int64_t tiles = (job->kept.count + outputs - 1) / outputs;
    int64_t least = job->by == TD_CUDA_BY_COLUMNS ? 128 : job->by == TD_CUDA_BY_WARP ? 512 : 4096;
    int64_t wanted = (WANTED_BLOCKS + tiles - 1) / tiles, most = (total + least - 1) / least;
    job->segments = wanted < most ? wanted : most;
    job->segment = (total + job->segments - 1) / job->segments;
    job->segments = (total + job->segment - 1) / job->segment;
    return tiles;
}

static void cuda_reduce_run(td_cuda_reduce_job *job, const td_tensor *x, const td_cuda_walk *all,
                            const char *operation)
{
    cuda_reduce_part_dimensions(job, all);
    int64_t tiles = cuda_reduce_cut(job);
    td_device device = td_device_of(x);
    if (job->segments > 1) {
        size_t count = (size_t)(job->segments * job->kept.count);
        job->partial = td_scratch(device, count * sizeof *job->partial);
        job->counters = td_cuda_counters(device, tiles);
    }
    td_cuda_launch_reduce(job, td_cuda_stream(x));
    td_cuda_launched(operation);
    td_scratch_free(device, job->partial);
}

/* Reducing nothing: 0, or what MEAN and MAX make of it. */
static void cuda_reduce_empty(td_reduce_op op, td_tensor *y, bool accumulate)
{
    if (td_numel(y) > 0 && !(accumulate && op == TD_REDUCE_SUM)) {
        td_cuda_fill(y, op == TD_REDUCE_SUM ? 0.0 : (op == TD_REDUCE_MEAN ? NAN : -INFINITY));
    }
}

void td_cuda_reduce(td_reduce_op op, td_tensor *y, const td_tensor *x, bool accumulate)
{
    td_tensor expanded = *y;
    for (int d = 0; d < x->ndim; d++) {
        if (y->shape[d] != x->shape[d]) {
            expanded.shape[d] = x->shape[d];
            expanded.stride[d] = 0;
        }
    }
    if (td_numel(x) == 0) {
        cuda_reduce_empty(op, y, accumulate);
        return;
    }
    td_cuda_walk all = td_cuda_walk_of(2, (const td_tensor *[]){ x, &expanded });
    td_cuda_reduce_job job = {
        .kind = op == TD_REDUCE_MAX ? TD_CUDA_MAX : TD_CUDA_SUM,
        .x_dtype = x->dtype,
        .y_dtype = y->dtype,
        .x = td_ptr(x),
        .y = td_ptr(y),
        .divisor = op == TD_REDUCE_MEAN ? (double)(td_numel(x) / td_numel(y)) : 1.0,
        .accumulate = accumulate,
    };
    cuda_reduce_run(&job, x, &all, "reduce");
}

/* *sum, on the device; x is not empty. */
static void add_squares(double *sum, const td_tensor *x)
{
    td_cuda_walk all = td_cuda_walk_of(1, &x);
    for (int d = 0; d < all.ndim; d++) {
        all.stride[1][d] = 0;
    }
    td_cuda_reduce_job job = {
        .kind = TD_CUDA_SQUARES,
        .x_dtype = x->dtype,
        .y_dtype = TD_F64,
        .x = td_ptr(x),
        .y = sum,
        .divisor = 1.0,
    };
    cuda_reduce_run(&job, x, &all, "sum_of_squares");
}

double td_cuda_sum_of_squares(const td_tensor *x)
{
    if (td_numel(x) == 0) {
        return 0.0;
    }
    td_device device = td_device_of(x);
    double value = 0.0, *sum = td_scratch(device, sizeof *sum);
    add_squares(sum, x);
    td_cuda_fetch(device, &value, sum, sizeof value, "sum_of_squares");
    td_scratch_free(device, sum);
    return value;
}

/* ---- clipping ---- */

/* Gradients of one flat memory (all) take two launches. */
void td_cuda_clip(td_tensor *const *x, int count, td_tensor *all, double max_norm, double *norm)
{
    if (count == 0) {
        if (norm != NULL) {
            *norm = 0.0;
        }
        return;
    }
    td_device device = td_device_of(x[0]);
    cudaStream_t stream = td_cuda_stream(x[0]);
    td_tensor *const *list = all != NULL ? &all : x;
    int lists = all != NULL ? 1 : count, blocks = 0, done = 0;
    for (int i = 0; i < lists; i++) {
        blocks += td_cuda_square_blocks(td_numel(list[i]));
    }
    double *sums = td_scratch(device, (size_t)(blocks + 1) * sizeof *sums);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < lists; i++) {
            const td_tensor *t = list[i];
            int64_t n = td_numel(t);
            if (n == 0 && (pass == 0 || blocks > 0)) {
                continue;
            }
            if (pass == 0) {
                td_cuda_launch_square_sums(sums + 1 + done, td_ptr(t), t->dtype, n, stream);
                done += td_cuda_square_blocks(n);
            } else {
                td_cuda_launch_clip(td_ptr(t), t->dtype, n, sums + 1, blocks, max_norm, sums,
                                    stream);
            }
        }
    }
    td_cuda_launched("clip");
    if (norm != NULL) {
        td_cuda_fetch(device, norm, sums, sizeof *norm, "clip");
    }
    td_scratch_free(device, sums);
}
