/* Walks over tensors of one shape as over a few long runs. */
#include "tensor/cpu/ops_walk.h"

#include "tensor/cpu/cpu_device.h"

/* Whether dimension a of the walk belongs inside dimension b, by the first operand's strides; the
 * others decide where that one is expanded. */
static bool belongs_inside(const td_walk *w, int a, int b)
{
    for (int k = 0; k < w->operands; k++) {
        int64_t sa = w->stride[k][a], sb = w->stride[k][b];
        if (sa != 0 && sb != 0 && sa != sb) {
            return sa < sb;
        }
    }
    return false;
}

static void swap_dims(td_walk *w, int a, int b)
{
    int64_t t = w->size[a];
    w->size[a] = w->size[b];
    w->size[b] = t;
    for (int k = 0; k < w->operands; k++) {
        t = w->stride[k][a];
        w->stride[k][a] = w->stride[k][b];
        w->stride[k][b] = t;
    }
}

static bool can_merge(const td_walk *w, int inner, int outer)
{
    for (int k = 0; k < w->operands; k++) {
        if (w->stride[k][outer] != w->stride[k][inner] * w->size[inner]) {
            return false;
        }
    }
    return true;
}

static void merge_dims(td_walk *w)
{
    int last = 0;
    for (int d = 1; d < w->ndim; d++) {
        if (can_merge(w, last, d)) {
            w->size[last] *= w->size[d];
            continue;
        }
        last++;
        w->size[last] = w->size[d];
        for (int k = 0; k < w->operands; k++) {
            w->stride[k][last] = w->stride[k][d];
        }
    }
    w->ndim = last + 1;
}

void td_walk_init(td_walk *w, int operands, const td_tensor *const *tensors)
{
    const td_tensor *first = tensors[0];
    w->operands = operands;
    w->ndim = 0;
    w->count = 1;
    for (int d = first->ndim - 1; d >= 0; d--) {
        w->count *= first->shape[d];
        if (first->shape[d] == 1) {
            continue;
        }
        w->size[w->ndim] = first->shape[d];
        for (int k = 0; k < operands; k++) {
            w->stride[k][w->ndim] = tensors[k] ? tensors[k]->stride[d] : 0;
        }
        for (int i = w->ndim; i > 0 && belongs_inside(w, i, i - 1); i--) {
            swap_dims(w, i, i - 1);
        }
        w->ndim++;
    }
    if (w->ndim == 0) { /* one element */
        w->ndim = 1;
        w->size[0] = 1;
        for (int k = 0; k < operands; k++) {
            w->stride[k][0] = 1;
        }
    }
    merge_dims(w);
}

static int64_t run_length(const td_cursor *c)
{
    int64_t rest = c->walk->size[0] - c->index[0];
    return rest < c->left ? rest : c->left;
}

int64_t td_cursor_start(td_cursor *c, const td_walk *w, int64_t begin, int64_t end)
{
    c->walk = w;
    c->left = end - begin;
    c->run = 0;
    if (c->left <= 0) {
        return 0;
    }
    for (int k = 0; k < w->operands; k++) {
        c->offset[k] = 0;
    }
    int64_t rest = begin;
    for (int d = 0; d < w->ndim; d++) {
        c->index[d] = rest % w->size[d];
        rest /= w->size[d];
        for (int k = 0; k < w->operands; k++) {
            c->offset[k] += c->index[d] * w->stride[k][d];
        }
    }
    return c->run = run_length(c);
}

int64_t td_cursor_next(td_cursor *c)
{
    const td_walk *w = c->walk;
    c->left -= c->run;
    if (c->left <= 0) {
        return 0;
    }
    /* A run ends at the end of the innermost dimension, or the walk would be over. */
    for (int k = 0; k < w->operands; k++) {
        c->offset[k] -= c->index[0] * w->stride[k][0];
    }
    c->index[0] = 0;
    for (int d = 1; d < w->ndim; d++) {
        bool carry = ++c->index[d] == w->size[d];
        for (int k = 0; k < w->operands; k++) {
            c->offset[k] += carry ? -(w->size[d] - 1) * w->stride[k][d] : w->stride[k][d];
        }
        if (!carry) {
            break;
        }
        c->index[d] = 0;
    }
    return c->run = run_length(c);
}

typedef struct range_job {
    td_range_fn fn;
    void *ctx;
    int64_t count, chunk;
} range_job;

static void run_range(void *ctx, int64_t task)
{
    const range_job *job = ctx;
    int64_t begin = task * job->chunk;
    int64_t end = job->count - begin < job->chunk ? job->count : begin + job->chunk;
    job->fn(job->ctx, begin, end);
}

void td_parallel_chunks(td_device device, int64_t count, int64_t chunk, td_range_fn fn, void *ctx)
{
    range_job job = { fn, ctx, count, chunk };
    td_pool_run(td_cpu_pool(device), (count + chunk - 1) / chunk, run_range, &job);
}

void td_parallel(td_device device, int64_t count, int64_t cost, td_range_fn fn, void *ctx)
{
    td_parallel_chunks(device, count, td_item_chunk(count, cost), fn, ctx);
}

void td_parallel_backwards(td_device device, int64_t count, int64_t chunk, td_range_fn fn,
                           void *ctx)
{
    range_job job = { fn, ctx, count, chunk };
    td_pool_run_backwards(td_cpu_pool(device), (count + chunk - 1) / chunk, run_range, &job);
}
