/* Products of few rows by a large matrix, which they read once: generation. A task is a strip of
 * columns. The rows of B are read in runs, eight side by side; if B lies turned, its columns are,
 * 16 side by side, and are transposed in registers or in the first-level cache. B may be bf16,
 * which is widened there. The terms of each element are added up in the order of gemm.c, so a row
 * has the same bits as among many. */
#include "tensor/cpu/gemm_few.h"

#include "tensor/cpu/loops.h"

#include <string.h>

enum {
    LEAST = 1 << 18,   /* elements of B; smaller matrices stay in the caches */
    MOST_STRIP = 1024, /* columns */
    MOST_SUMS = 4096,  /* of a strip: they stay in the first-level cache */
    LEAST_STRIP = 64,
    TURNED = 16, /* columns of B side by side, if it lies turned */
};

typedef struct few_job {
    const td_gemm_desc *desc;
    int64_t strip;
} few_job;

bool td_gemm_is_few(const td_gemm_desc *d)
{
    bool turned = d->b_row == 1 && d->b_col != 1;
    return d->dtype == TD_F32 && !d->bf16 && d->batch.count == 1 && d->m <= TD_FEW_ROWS &&
           (turned || d->b_col == 1) && (double)d->n * (double)d->k >= LEAST;
}

/* C's strip = or += sums; behind the last block comes the bias. */
static void few_add_block(const td_gemm_desc *d, const float *sums, int64_t j0, int64_t n, bool add,
                          bool last)
{
    const float *bias = last ? d->bias : NULL;
    for (int64_t r = 0; r < d->m; r++) {
        float *c = (float *)d->c + r * d->c_row + j0;
        const float *sum = sums + r * n;
        for (int64_t j = 0; j < n; j++) {
            float value = add ? sum[j] + c[j] : sum[j];
            c[j] = bias != NULL ? value + bias[j0 + j] : value;
        }
    }
}

/* A block of a B that lies turned, if the processor has no better way: transposed in the
 * first-level cache. */
static void few_turn_block(td_few_rows *rows)
{
    _Alignas(64) float wide[TD_GEMM_BLOCK_K * TURNED], turned[TD_GEMM_BLOCK_K * TURNED];
    int64_t col = rows->b_row;
    for (int64_t j = 0; rows->bf16 && j < rows->n; j++) {
        td_loops_of(TD_BF16)->widen(rows->k, wide + j * TD_GEMM_BLOCK_K,
                                    (const td_bf16 *)rows->b + j * col);
    }
    td_gemm_kernels_for(TD_F32)->pack(turned, TURNED, rows->bf16 ? wide : rows->b, rows->k, rows->n,
                                      1, rows->bf16 ? TD_GEMM_BLOCK_K : col);
    rows->b = turned;
    rows->b_row = TURNED;
    td_loops_of(TD_F32)->transformer.few_rows(rows);
}

/* The sums of a block. */
static void few_block(const td_gemm_desc *d, td_few_rows *rows)
{
    const td_gemm_kernels *kernels = td_gemm_kernels_for(TD_F32);
    if (d->b_col == 1) {
        td_loops_of(rows->bf16 ? TD_BF16 : TD_F32)->transformer.few_rows(rows);
    } else if (kernels->few_turned != NULL && rows->k % 8 == 0 && rows->n >= 8) {
        kernels->few_turned(rows);
    } else {
        few_turn_block(rows);
    }
}

/* Columns [j0, j0 + n), which are read side by side. */
static void few_part(const td_gemm_desc *d, int64_t j0, int64_t n)
{
    int64_t size = d->b_dtype == TD_BF16 ? sizeof(td_bf16) : sizeof(float);
    _Alignas(64) float sums[MOST_SUMS];
    for (int64_t k0 = 0; k0 < d->k; k0 += TD_GEMM_BLOCK_K) {
        int64_t k = td_min64(TD_GEMM_BLOCK_K, d->k - k0);
        const char *b = (const char *)d->b + (k0 * d->b_row + j0 * d->b_col) * size;
        td_few_rows rows = { .m = d->m,
                             .n = n,
                             .k = k,
                             .a = (const float *)d->a + k0 * d->a_col,
                             .a_row = d->a_row,
                             .a_col = d->a_col,
                             .b = b,
                             .bf16 = d->b_dtype == TD_BF16,
                             .b_row = d->b_col == 1 ? d->b_row : d->b_col,
                             .c = sums,
                             .c_row = n };
        few_block(d, &rows);
        few_add_block(d, sums, j0, n, d->accumulate || k0 > 0, k0 + k == d->k);
    }
}

static void few_strip_task(void *ctx, int64_t task)
{
    const few_job *job = ctx;
    int64_t begin = task * job->strip, end = td_min64(begin + job->strip, job->desc->n);
    int64_t part = job->desc->b_col == 1 ? job->strip : TURNED;
    for (int64_t j0 = begin; j0 < end; j0 += part) {
        few_part(job->desc, j0, td_min64(part, end - j0));
    }
}

void td_gemm_few(td_pool *pool, const td_gemm_desc *desc)
{
    few_job job = { desc, LEAST_STRIP };
    if (desc->b_col == 1) { /* long runs: few tasks, as long as each thread has one */
        int64_t share = td_divide_up(desc->n, td_pool_threads(pool));
        int64_t strip = td_divide_up(share, LEAST_STRIP) * LEAST_STRIP;
        job.strip = td_min64(strip, td_min64(MOST_STRIP, MOST_SUMS / desc->m));
    }
    td_pool_run(pool, td_divide_up(desc->n, job.strip), few_strip_task, &job);
}
