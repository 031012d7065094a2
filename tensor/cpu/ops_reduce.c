/* Reductions of any dimensions of a tensor of any strides.
 *
 * x is walked in its memory order. Its dimensions are of two kinds, kept and reduced, and the
 * innermost one decides: if it is kept, rows of x are added to a row of sums; if it is reduced,
 * each output is the sum of runs. The work is cut into blocks of outputs and, where there are few
 * outputs, into segments of the reduced elements, whose partial results are combined in order.
 * All of that depends on the shape alone. */
#include "tensor/cpu/cpu_device.h"
#include "tensor/cpu/ops.h"

#include <math.h>

enum {
    MAX_OUTPUTS = 1024, /* of a block: their sums are on the stack */
    MIN_COLUMNS = 64,   /* of a block whose outputs lie side by side */
    SHORT_RUN = 16,     /* reduced runs below this are better taken as columns */
    ENOUGH_BLOCKS = 64, /* with as many blocks of outputs no segments are needed */
};

typedef enum reduce_kind { KIND_SUM, KIND_MAX, KIND_SQUARES } reduce_kind;

typedef struct reduce_job {
    const td_loops *loops;
    reduce_kind kind;
    td_walk kept;    /* operands x and y */
    td_walk reduced; /* operand x */
    bool by_columns;
    td_dtype dtype;
    const char *x;
    int64_t block, blocks;     /* of outputs */
    int64_t segment, segments; /* of reduced elements */
    double *partial;           /* [segments][outputs] */
    /* the results */
    char *y;
    td_dtype y_dtype;
    double divisor;
    bool accumulate;
} reduce_job;

static double identity_of(reduce_kind kind)
{
    return kind == KIND_MAX ? -INFINITY : 0.0;
}

static double combine(reduce_kind kind, double a, double b)
{
    if (kind == KIND_MAX) {
        return b > a || b != b ? b : a;
    }
    return a + b;
}

static double reduce_run(const reduce_job *job, int64_t n, const void *x, int64_t sx)
{
    switch (job->kind) {
    case KIND_MAX:
        return job->loops->largest(n, x, sx);
    case KIND_SQUARES:
        return job->loops->sum_squares(n, x, sx);
    default:
        return job->loops->sum(n, x, sx);
    }
}

/* acc[n] takes reduced elements [r0, r1) of n outputs whose first is at x, sx apart. */
static void reduce_outputs(const reduce_job *job, int64_t n, double *acc, const char *x, int64_t sx,
                           int64_t r0, int64_t r1)
{
    const td_walk *walk = &job->reduced;
    int64_t size = (int64_t)td_dtype_size(job->dtype), stride = walk->stride[0][0];
    for (int64_t i = 0; i < n; i++) {
        acc[i] = identity_of(job->kind);
    }
    td_cursor c;
    for (int64_t m = td_cursor_start(&c, walk, r0, r1); m; m = td_cursor_next(&c)) {
        const char *from = x + c.offset[0] * size;
        if (job->by_columns && job->kind == KIND_MAX) {
            job->loops->largest_columns(n, acc, m, from, stride, sx);
        } else if (job->by_columns) {
            job->loops->sum_columns(n, acc, m, from, stride, sx);
        } else {
            for (int64_t i = 0; i < n; i++) {
                double part = reduce_run(job, m, from + i * sx * size, stride);
                acc[i] = combine(job->kind, acc[i], part);
            }
        }
    }
}

/* Writes n results, the outputs that begin at number `first`. */
static void write_outputs(const reduce_job *job, int64_t first, int64_t n, const double *values)
{
    td_cursor c;
    for (int64_t m = td_cursor_start(&c, &job->kept, first, first + n); m; m = td_cursor_next(&c)) {
        for (int64_t i = 0; i < m; i++) {
            int64_t at = c.offset[1] + i * job->kept.stride[1][0];
            double value = *values++ / job->divisor;
            if (job->accumulate) {
                value += td_load_element(job->y, job->y_dtype, at);
            }
            td_store_element(job->y, job->y_dtype, at, value);
        }
    }
}

/* One block of outputs over one segment. */
static void reduce_task(void *ctx, int64_t task)
{
    const reduce_job *job = ctx;
    int64_t outputs = job->kept.count, total = job->reduced.count;
    int64_t segment = task / job->blocks, first = task % job->blocks * job->block;
    int64_t last = outputs - first < job->block ? outputs : first + job->block;
    int64_t r0 = segment * job->segment;
    int64_t r1 = total - r0 < job->segment ? total : r0 + job->segment;
    double local[MAX_OUTPUTS];
    double *acc = job->partial ? job->partial + segment * outputs + first : local;
    int64_t size = (int64_t)td_dtype_size(job->dtype), done = 0;
    td_cursor c;
    for (int64_t n = td_cursor_start(&c, &job->kept, first, last); n; n = td_cursor_next(&c)) {
        reduce_outputs(job, n, acc + done, job->x + c.offset[0] * size, job->kept.stride[0][0], r0,
                       r1);
        done += n;
    }
    if (!job->partial) {
        write_outputs(job, first, last - first, acc);
    }
}

/* Adds the segments' partial results of a range of outputs to those of the first one. */
static void combine_range(void *ctx, int64_t begin, int64_t end)
{
    const reduce_job *job = ctx;
    for (int64_t s = 1; s < job->segments; s++) {
        const double *part = job->partial + s * job->kept.count;
        for (int64_t i = begin; i < end; i++) {
            job->partial[i] = combine(job->kind, job->partial[i], part[i]);
        }
    }
    if (job->y) {
        write_outputs(job, begin, end - begin, job->partial + begin);
    }
}

/* Parts a walk over x and y (expanded to x's shape) into kept and reduced dimensions. */
static void reduce_part_dimensions(reduce_job *job, const td_walk *all)
{
    td_walk *kept = &job->kept, *reduced = &job->reduced;
    kept->operands = 2;
    reduced->operands = 1;
    kept->ndim = reduced->ndim = 0;
    kept->count = reduced->count = 1;
    for (int d = 0; d < all->ndim; d++) {
        td_walk *to = all->stride[1][d] == 0 ? reduced : kept;
        to->size[to->ndim] = all->size[d];
        to->stride[0][to->ndim] = all->stride[0][d];
        to->stride[1][to->ndim] = all->stride[1][d];
        to->count *= all->size[d];
        to->ndim++;
    }
    td_walk *both[2] = { kept, reduced };
    for (int i = 0; i < 2; i++) {
        if (both[i]->ndim == 0) {
            both[i]->ndim = 1;
            both[i]->size[0] = 1;
            both[i]->stride[0][0] = both[i]->stride[1][0] = 1;
        }
    }
    bool short_runs = reduced->size[0] < SHORT_RUN && kept->size[0] > reduced->size[0];
    job->by_columns = job->kind != KIND_SQUARES && (all->stride[1][0] != 0 || short_runs);
}

/* Chooses blocks and segments. */
static void reduce_cut(reduce_job *job)
{
    int64_t outputs = job->kept.count, total = job->reduced.count;
    int64_t whole = TD_CHUNK_ELEMENTS;
    if (outputs * total <= TD_INLINE_ELEMENTS) {
        whole = TD_INLINE_ELEMENTS;
    }
    int64_t block = whole / total, least = job->by_columns ? MIN_COLUMNS : 1;
    block = block < least ? least : block;
    block = block > MAX_OUTPUTS ? MAX_OUTPUTS : block;
    job->block = block < outputs ? block : outputs;
    job->blocks = (outputs + job->block - 1) / job->block;
    job->segment = total;
    if (job->blocks < ENOUGH_BLOCKS && total * job->block > 2 * whole) {
        job->segment = (whole + job->block - 1) / job->block;
    }
    job->segments = (total + job->segment - 1) / job->segment;
}

/* The result of one output is also left in *value if that is wanted. */
static void run_reduce(reduce_job *job, td_device device, const td_walk *all, double *value)
{
    reduce_part_dimensions(job, all);
    reduce_cut(job);
    job->loops = td_loops_of(job->dtype);
    if (job->segments > 1 || value) {
        size_t count = (size_t)(job->segments * job->kept.count);
        job->partial = td_scratch(device, count * sizeof *job->partial);
    }
    td_pool *pool = td_cpu_pool(device);
    td_pool_run(pool, job->segments * job->blocks, reduce_task, job);
    if (job->partial) {
        td_parallel(device, job->kept.count, job->segments, combine_range, job);
        if (value) {
            *value = job->partial[0];
        }
        td_scratch_free(device, job->partial);
    }
}

/* Reducing nothing: 0, or what MEAN and MAX make of it. */
static void reduce_empty(td_reduce_op op, td_tensor *y, bool accumulate)
{
    if (td_numel(y) > 0 && !(accumulate && op == TD_REDUCE_SUM)) {
        td_cpu_fill(y, op == TD_REDUCE_SUM ? 0.0 : (op == TD_REDUCE_MEAN ? NAN : -INFINITY));
    }
}

void td_cpu_reduce(td_reduce_op op, td_tensor *y, const td_tensor *x, bool accumulate)
{
    td_tensor expanded = *y;
    for (int d = 0; d < x->ndim; d++) {
        if (y->shape[d] != x->shape[d]) {
            expanded.shape[d] = x->shape[d];
            expanded.stride[d] = 0;
        }
    }
    td_walk all;
    td_walk_init(&all, 2, (const td_tensor *[]){ x, &expanded });
    if (all.count == 0) {
        reduce_empty(op, y, accumulate);
        return;
    }
    reduce_job job = {
        .kind = op == TD_REDUCE_MAX ? KIND_MAX : KIND_SUM,
        .dtype = x->dtype,
        .x = td_ptr(x),
        .y = td_ptr(y),
        .y_dtype = y->dtype,
        .divisor = op == TD_REDUCE_MEAN ? (double)(all.count / td_numel(y)) : 1.0,
        .accumulate = accumulate,
    };
    run_reduce(&job, td_device_of(x), &all, NULL);
}

double td_cpu_sum_of_squares(const td_tensor *x)
{
    td_walk all;
    td_walk_init(&all, 2, (const td_tensor *[]){ x, NULL });
    if (all.count == 0) {
        return 0.0;
    }
    reduce_job job = { .kind = KIND_SQUARES, .dtype = x->dtype, .x = td_ptr(x), .divisor = 1.0 };
    if (all.count == 1) {
        all.stride[1][0] = 0;
    }
    double value = 0.0;
    run_reduce(&job, td_device_of(x), &all, &value);
    return value;
}
