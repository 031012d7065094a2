/* Products of few rows by a large matrix, which they read once: generation. A task is a strip of
 * columns. The rows of B are read in runs, eight side by side; if B lies turned, 128 x 64 of it at
 * a time are transposed into the first-level cache. B may be bf16, which is widened there. The
 * terms of each element are added up in the order of gemm.c, so a row has the same bits as among
 * many. */
#include "tensor/cpu/gemm_few.h"

#include "tensor/cpu/gemm_kernels.h"
#include "tensor/cpu/loops.h"

#include <string.h>

enum {
    LEAST = 1 << 18,  /* elements of B; smaller matrices stay in the caches */
    MOST_STRIP = 512, /* columns */
    TURNED_STRIP = 64,
    WIDE_ROWS = 16, /* rows of bf16 that are widened together: as many elements as a turned block */
};

typedef struct few_job {
    const td_gemm_desc *desc;
    int64_t strip;
} few_job;

bool td_gemm_is_few(const td_gemm_desc *d)
{
    bool turned = d->b_row == 1 && d->b_col != 1;
    return d->dtype == TD_F32 && !d->bf16 && d->batch == 1 && d->m <= TD_FEW_ROWS &&
           (turned || d->b_col == 1) && (double)d->n * (double)d->k >= LEAST;
}

/* C's strip = or += sums; behind the last block comes the bias. */
static void few_add_block(const td_gemm_desc *d, const float *sums, int64_t j0, int64_t n, bool add,
                          bool last)
{
    const float *bias = last ? d->bias : NULL;
    for (int64_t r = 0; r < d->m; r++) {
        float *c = (float *)d->c + r * d->c_row + j0;
        const float *sum = sums + r * MOST_STRIP;
        for (int64_t j = 0; j < n; j++) {
            float value = add ? sum[j] + c[j] : sum[j];
            c[j] = bias != NULL ? value + bias[j0 + j] : value;
        }
    }
}

/* k x n elements of B, which is turned, as rows of f32. room: two blocks. */
static const float *few_turn(const td_gemm_desc *d, const void *b, int64_t k, int64_t n,
                             float *room)
{
    float *wide = room + TD_GEMM_BLOCK_K * TURNED_STRIP;
    bool narrow = d->b_dtype == TD_BF16;
    for (int64_t j = 0; narrow && j < n; j++) {
        td_loops_of(TD_BF16)->widen(k, wide + j * TD_GEMM_BLOCK_K,
                                    (const td_bf16 *)b + j * d->b_col);
    }
    td_gemm_kernels_for(TD_F32)->pack(room, TURNED_STRIP, narrow ? wide : b, k, n, 1,
                                      narrow ? TD_GEMM_BLOCK_K : d->b_col);
    return room;
}

/* The sums of a block. */
static void few_block(const td_gemm_desc *d, td_few_rows rows, const void *b, float *room)
{
    const td_loops *loops = td_loops_of(TD_F32), *narrow = td_loops_of(TD_BF16);
    const float *a = rows.a;
    int64_t k = rows.k;
    if (d->b_col != 1) {
        rows.b = few_turn(d, b, k, rows.n, room);
        rows.b_row = TURNED_STRIP;
    } else if (d->b_dtype == TD_BF16) {
        rows.b = room;
        rows.b_row = rows.n;
        for (int64_t p = 0; p < k; p += rows.k) {
            rows.k = td_min64(WIDE_ROWS, k - p);
            for (int64_t i = 0; i < rows.k; i++) {
                narrow->widen(rows.n, room + i * rows.n, (const td_bf16 *)b + (p + i) * d->b_row);
            }
            rows.a = a + p * d->a_col;
            rows.more = p > 0;
            loops->transformer.few_rows(&rows);
        }
        return;
    }
    loops->transformer.few_rows(&rows);
}

static void few_strip_task(void *ctx, int64_t task)
{
    const few_job *job = ctx;
    const td_gemm_desc *d = job->desc;
    int64_t size = d->b_dtype == TD_BF16 ? sizeof(td_bf16) : sizeof(float);
    _Alignas(64) float sums[TD_FEW_ROWS * MOST_STRIP], room[2 * TD_GEMM_BLOCK_K * TURNED_STRIP];
    int64_t j0 = task * job->strip, n = td_min64(job->strip, d->n - j0);
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
                             .b_row = d->b_row,
                             .c = sums,
                             .c_row = MOST_STRIP };
        few_block(d, rows, b, room);
        few_add_block(d, sums, j0, n, d->accumulate || k0 > 0, k0 + k == d->k);
    }
}

void td_gemm_few(td_pool *pool, const td_gemm_desc *desc)
{
    int64_t share = td_divide_up(desc->n, 4 * td_pool_threads(pool));
    few_job job = { desc, TURNED_STRIP };
    if (desc->b_col == 1) {
        int64_t strip = td_divide_up(share, TURNED_STRIP) * TURNED_STRIP;
        job.strip = td_min64(strip, MOST_STRIP);
    }
    td_pool_run(pool, td_divide_up(desc->n, job.strip), few_strip_task, &job);
}
