/* Kernels that check or follow indices: embedding and its gradient, range checks, hits of top k. */
#include "tensor/cpu/ops.h"

#include <stdatomic.h>
#include <string.h>

/* ---- embedding ---- */

enum { STRIP = 64 }; /* columns of a table that one task adds to */

typedef struct embedding_job {
    const td_loops *loops;
    int64_t size, d, count; /* bytes of an element, columns, indices */
    const int64_t *index;
    char *to;
    const char *from;
} embedding_job;

static void embedding_range(void *ctx, int64_t begin, int64_t end)
{
    const embedding_job *job = ctx;
    int64_t bytes = job->d * job->size;
    for (int64_t i = begin; i < end; i++) {
        memcpy(job->to + i * bytes, job->from + job->index[i] * bytes, (size_t)bytes);
    }
}

void td_cpu_embedding(td_tensor *y, const td_tensor *table, const td_tensor *index)
{
    td_staged sy, stable, sindex;
    embedding_job job = {
        .size = (int64_t)td_dtype_size(table->dtype),
        .d = table->shape[1],
        .index = td_stage_in(&sindex, index, TD_ROW_MAJOR),
        .from = td_stage_in(&stable, table, TD_ROW_MAJOR),
        .to = td_stage_out(&sy, y, TD_ROW_MAJOR, false),
    };
    int64_t count = td_numel(index);
    td_parallel(td_device_of(y), count, job.d, embedding_range, &job);
    td_stage_end(&sy, &stable, &sindex);
}

/* A strip of columns: all indices in order, so that sums do not depend on threads. */
static void embedding_grad_strips(void *ctx, int64_t begin, int64_t end)
{
    const embedding_job *job = ctx;
    int64_t first = begin * STRIP, last = end * STRIP < job->d ? end * STRIP : job->d;
    for (int64_t i = 0; i < job->count; i++) {
        job->loops->axpy(last - first, job->to + (job->index[i] * job->d + first) * job->size, 1,
                         1.0, job->from + (i * job->d + first) * job->size, 1);
    }
}

void td_cpu_embedding_grad(td_tensor *dtable, const td_tensor *dy, const td_tensor *index,
                           bool accumulate)
{
    td_staged sdtable, sdy, sindex;
    embedding_job job = {
        .loops = td_loops_of(dy->dtype),
        .size = (int64_t)td_dtype_size(dy->dtype),
        .d = dtable->shape[1],
        .count = td_numel(index),
        .index = td_stage_in(&sindex, index, TD_ROW_MAJOR),
        .from = td_stage_in(&sdy, dy, TD_ROW_MAJOR),
        .to = td_stage_out(&sdtable, dtable, TD_ROW_MAJOR, accumulate),
    };
    if (!accumulate) {
        td_cpu_fill(sdtable.tensor, 0.0);
    }
    int64_t strips = (job.d + STRIP - 1) / STRIP;
    td_parallel(td_device_of(dy), strips, STRIP * job.count, embedding_grad_strips, &job);
    td_stage_end(&sdtable, &sdy, &sindex);
}

/* ---- range checks ---- */

typedef struct range_check {
    td_walk walk;
    const int64_t *index;
    uint64_t limit;
    atomic_bool outside;
} range_check;

static void check_range(void *ctx, int64_t begin, int64_t end)
{
    range_check *job = ctx;
    int64_t stride = job->walk.stride[0][0];
    int any = 0;
    td_cursor c;
    for (int64_t n = td_cursor_start(&c, &job->walk, begin, end); n; n = td_cursor_next(&c)) {
        const int64_t *index = job->index + c.offset[0];
        for (int64_t i = 0; i < n; i++) {
            any |= (uint64_t)index[i * stride] >= job->limit; /* negative ones are large */
        }
    }
    if (any) {
        atomic_store_explicit(&job->outside, true, memory_order_relaxed);
    }
}

/* The first element outside, in row-major order; there is one. */
static int64_t find_outside(const td_tensor *index, int64_t limit)
{
    td_staged rows;
    const int64_t *value = td_stage_in(&rows, index, TD_ROW_MAJOR);
    while (*value >= 0 && *value < limit) {
        value++;
    }
    int64_t bad = *value;
    td_stage_end(&rows);
    return bad;
}

bool td_cpu_indices_in_range(const td_tensor *index, int64_t limit, int64_t *bad)
{
    range_check job = { .index = td_ptr(index), .limit = limit > 0 ? (uint64_t)limit : 0 };
    atomic_init(&job.outside, false);
    td_walk_init(&job.walk, 1, &index);
    int64_t count = job.walk.count;
    td_parallel(td_device_of(index), count, 1, check_range, &job);
    if (!atomic_load(&job.outside)) {
        return true;
    }
    *bad = find_outside(index, limit);
    return false;
}

/* Whether fewer than k of n elements come before the one at `label`. */
static bool is_in_top(const void *x, td_dtype dtype, int64_t first, int64_t n, int64_t label,
                      int64_t k)
{
    if (label < 0 || label >= n) {
        return false;
    }
    double own = td_load_element(x, dtype, first + label);
    int64_t before = 0;
    for (int64_t c = 0; c < n && before < k; c++) {
        double value = td_load_element(x, dtype, first + c);
        before += value > own || (value == own && c < label);
    }
    return own == own && before < k;
}

void td_cpu_count_top(td_tensor *count, const td_tensor *x, const td_tensor *labels, int64_t k)
{
    td_staged sx, slabels;
    const void *values = td_stage_in(&sx, x, TD_ROW_MAJOR);
    const int64_t *wanted = td_stage_in(&slabels, labels, TD_ROW_MAJOR);
    int64_t found = 0, classes = x->shape[1];
    for (int64_t i = 0; i < x->shape[0]; i++) {
        found += is_in_top(values, x->dtype, i * classes, classes, wanted[i], k);
    }
    *(int64_t *)td_ptr(count) = found;
    td_stage_end(&slabels, &sx);
}
