/* The gates of an LSTM's step, some rows at a time: these stay in the first-level cache from one
 * operation to the next, and the threads share them. */
#include "tensor/cpu/ops.h"
#include "tensor/cpu/ops_walk.h"
#include "tensor/kernels/lstm.h"

enum { COST = 8 }; /* of an element of h, in copies */

typedef struct lstm_job {
    td_tensor *gates, *cells, *h;
    const td_tensor *c;
} lstm_job;

static td_tensor rows_of(const td_tensor *t, int64_t begin, int64_t end)
{
    td_tensor rows = *t;
    rows.shape[0] = end - begin;
    rows.offset += begin * t->stride[0];
    return rows;
}

static void gates_range(void *ctx, int64_t begin, int64_t end)
{
    const lstm_job *job = ctx;
    td_tensor gates = rows_of(job->gates, begin, end), cells = rows_of(job->cells, begin, end);
    td_tensor h = rows_of(job->h, begin, end), c = rows_of(job->c, begin, end);
    td_lstm_gates(td_cpu_kernels(), &gates, &cells, &h, &c);
}

void td_cpu_lstm_gates(td_tensor *gates, td_tensor *cells, td_tensor *h, const td_tensor *c)
{
    lstm_job job = { gates, cells, h, c };
    int64_t rows = h->shape[0];
    td_parallel(td_device_of(h), rows, td_item_chunk(rows, COST * h->shape[1]), gates_range, &job);
}

typedef struct lstm_grad_job {
    td_tensor *dgates, *dc;
    const td_tensor *dh, *gates, *cells, *c;
} lstm_grad_job;

static void grad_range(void *ctx, int64_t begin, int64_t end)
{
    const lstm_grad_job *job = ctx;
    td_tensor dgates = rows_of(job->dgates, begin, end), dc = rows_of(job->dc, begin, end);
    td_tensor dh = rows_of(job->dh, begin, end), gates = rows_of(job->gates, begin, end);
    td_tensor cells = rows_of(job->cells, begin, end), c = rows_of(job->c, begin, end);
    td_lstm_gates_grad(td_cpu_kernels(), &dgates, &dc, &dh, &gates, &cells, &c);
}

void td_cpu_lstm_gates_grad(td_tensor *dgates, td_tensor *dc, const td_tensor *dh,
                            const td_tensor *gates, const td_tensor *cells, const td_tensor *c)
{
    lstm_grad_job job = { dgates, dc, dh, gates, cells, c };
    int64_t rows = dh->shape[0];
    td_parallel(td_device_of(dh), rows, td_item_chunk(rows, COST * dh->shape[1]), grad_range, &job);
}
