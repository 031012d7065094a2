/* Cross-entropy over rows of logits that come in chunks of the vocabulary. A row's chunk is read in
 * pieces, which 16-bit floats are converted for. */
#include "tensor/cpu/ops.h"

#include <math.h>
#include <string.h>

enum {
    PIECE = 1024, /* logits */
    EXP_COST = 2, /* an element's exp, in copies of an element */
    TOP = 0,      /* a row's numbers: the largest logit, afterwards the logarithm of the sum; */
    SUM = 1,      /* the sum of exponentials of the distances to it; */
    OWN = 2,      /* the label's logit */
    NUMBERS = 3,
};

typedef struct chunk_job {
    const td_loops *loops, *halves;
    td_dtype dtype;                    /* of the logits */
    int64_t size, words, pitch, first; /* pitch: elements from a row to the next */
    char *logits;
    double *stats;
    const int64_t *labels;
    int64_t ignore;
    double scale;
} chunk_job;

static chunk_job chunk_job_of(const td_tensor *logits, const td_tensor *stats, int64_t first)
{
    bool half = logits->dtype == TD_BF16;
    return (chunk_job){ .loops = td_loops_of(half ? TD_F32 : logits->dtype),
                        .halves = half ? td_loops_of(TD_BF16) : NULL,
                        .dtype = half ? TD_F32 : logits->dtype,
                        .size = (int64_t)td_dtype_size(logits->dtype),
                        .words = logits->shape[1],
                        .pitch = logits->stride[0],
                        .first = first,
                        .logits = td_ptr(logits),
                        .stats = td_ptr(stats) };
}

/* n logits of a row as numbers that are computed with: themselves, or in `room`. */
static char *open_piece(const chunk_job *job, char *at, int64_t n, float room[PIECE])
{
    if (job->halves != NULL) {
        job->halves->widen(n, room, at);
        return (char *)room;
    }
    return at;
}

static void chunk_range(void *ctx, int64_t begin, int64_t end)
{
    const chunk_job *job = ctx;
    float room[PIECE];
    for (int64_t r = begin; r < end; r++) {
        double *row = job->stats + r * NUMBERS;
        int64_t label = job->labels[r] - job->first;
        if (job->first == 0) {
            row[TOP] = -INFINITY;
            row[SUM] = 0.0;
            row[OWN] = NAN;
        }
        for (int64_t i = 0; i < job->words; i += PIECE) {
            int64_t n = job->words - i < PIECE ? job->words - i : PIECE;
            char *x = open_piece(job, job->logits + (r * job->pitch + i) * job->size, n, room);
            job->loops->transformer.add_exponentials(n, x, &row[TOP], &row[SUM]);
            if (label >= i && label < i + n) {
                row[OWN] = td_load_element(x, job->dtype, label - i);
            }
        }
    }
}

void td_cpu_entropy_chunk(td_tensor *stats, const td_tensor *logits, const td_tensor *labels,
                          int64_t first)
{
    td_staged label;
    chunk_job job = chunk_job_of(logits, stats, first);
    job.labels = td_stage_in(&label, labels, TD_ROW_MAJOR);
    int64_t rows = logits->shape[0];
    td_parallel(td_device_of(logits), rows, job.words * EXP_COST, chunk_range, &job);
    td_stage_end(&label);
}

void td_cpu_entropy_end(td_tensor *loss, td_tensor *total, td_tensor *stats,
                        const td_tensor *labels, const td_entropy_params *params)
{
    td_device device = td_device_of(stats);
    td_staged label;
    int64_t n = stats->shape[0], counted = 0;
    const int64_t *of = td_stage_in(&label, labels, TD_ROW_MAJOR);
    double *losses = td_scratch(device, (size_t)n * sizeof *losses), *row = td_ptr(stats);
    for (int64_t i = 0; i < n; i++, row += NUMBERS) {
        bool counts = of[i] != params->ignore;
        double log_sum = log(row[SUM]); /* both the largest logit and the label's may be huge */
        losses[i] = counts ? log_sum - (row[OWN] - row[TOP]) : 0.0;
        row[TOP] += log_sum;
        counted += counts;
    }
    double sum = td_loops_of(TD_F64)->sum(n, losses, 1);
    td_store_element(td_ptr(loss), loss->dtype, 0, params->sum ? sum : sum / (double)counted);
    td_store_element(td_ptr(total), TD_F64, 0, (double)counted);
    td_scratch_free(device, losses);
    td_stage_end(&label);
}

static void chunk_grad_range(void *ctx, int64_t begin, int64_t end)
{
    const chunk_job *job = ctx;
    float room[PIECE];
    for (int64_t r = begin; r < end; r++) {
        char *row = job->logits + r * job->pitch * job->size;
        int64_t label = job->labels[r] - job->first;
        if (job->labels[r] == job->ignore) {
            memset(row, 0, (size_t)(job->words * job->size));
            continue;
        }
        for (int64_t i = 0; i < job->words; i += PIECE) {
            int64_t n = job->words - i < PIECE ? job->words - i : PIECE;
            char *x = open_piece(job, row + i * job->size, n, room);
            job->loops->transformer.entropy_piece_grad(n, x, job->stats[r * NUMBERS + TOP],
                                                       job->scale);
            if (label >= i && label < i + n) {
                double own = td_load_element(x, job->dtype, label - i);
                td_store_element(x, job->dtype, label - i, own - job->scale);
            }
            if (job->halves != NULL) {
                job->halves->narrow(n, row + i * job->size, room);
            }
        }
    }
}

void td_cpu_entropy_chunk_grad(td_tensor *logits, const td_tensor *dloss, const td_tensor *total,
                               const td_tensor *stats, const td_tensor *labels, int64_t first,
                               const td_entropy_params *params)
{
    td_staged label;
    chunk_job job = chunk_job_of(logits, stats, first);
    job.labels = td_stage_in(&label, labels, TD_ROW_MAJOR);
    job.ignore = params->ignore;
    job.scale = td_load_element(td_ptr(dloss), dloss->dtype, 0);
    if (!params->sum) {
        job.scale /= td_load_element(td_ptr(total), TD_F64, 0);
    }
    int64_t rows = logits->shape[0];
    td_parallel(td_device_of(logits), rows, job.words * EXP_COST, chunk_grad_range, &job);
    td_stage_end(&label);
}
