/*
 * Matrix products of many shapes, plain and transposed, one or several: that they are right, and
 * how fast beside oneDNN, if that is there. The table has the worst first.
 *
 *     bench_gemm_sweep [shapes] [seed] [ms per measurement]
 */
#include "bench/sweep.h"

#include "tensor/cpu/cpus.h"
#include "tensor/cpu/isa.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_ROWS = 2000, CHECKS = 24 };

static const double MAX_FLOPS = 6e8, MAX_ELEMENTS = 1.2e7, ERROR_LIMIT = 1e-6;

typedef struct job {
    td_gemm_desc desc;
    td_pool *pool;
    void *workspace;
} job;

/* Fills in dense strides: of A and B as they are, or transposed. */
static void lay_out(td_gemm_desc *d, bool transpose_a, bool transpose_b)
{
    d->a_row = transpose_a ? 1 : d->k;
    d->a_col = transpose_a ? d->m : 1;
    d->b_row = transpose_b ? 1 : d->n;
    d->b_col = transpose_b ? d->k : 1;
    d->c_row = d->n;
    d->batch.a = d->m * d->k;
    d->batch.b = d->k * d->n;
    d->batch.c = d->m * d->n;
}

static td_gemm_desc random_shape(uint64_t *seed)
{
    td_gemm_desc d = { .dtype = TD_F32 };
    double work, elements;
    do {
        d.m = sweep_pick(seed, 1, 2048);
        d.n = sweep_pick(seed, 1, 2048);
        d.k = sweep_pick(seed, 1, 2048);
        d.batch.count = sweep_random(seed) < 0.75 ? 1 : sweep_pick(seed, 2, 64);
        work = 2 * (double)d.m * (double)d.n * (double)d.k * (double)d.batch.count;
        elements = (double)d.batch.count * (double)(d.m * d.k + d.k * d.n + d.m * d.n);
    } while (work > MAX_FLOPS || work < 1e4 || elements > MAX_ELEMENTS);
    lay_out(&d, sweep_random(seed) < 0.4, sweep_random(seed) < 0.4);
    return d;
}

static double largest_error(const td_gemm_desc *d, uint64_t *seed)
{
    const float *a = d->a, *b = d->b, *c = d->c;
    double worst = 0;
    for (int i = 0; i < CHECKS; i++) {
        int64_t t = (int64_t)(sweep_random(seed) * (double)d->batch.count);
        int64_t row = (int64_t)(sweep_random(seed) * (double)d->m);
        int64_t column = (int64_t)(sweep_random(seed) * (double)d->n);
        double sum = 0, scale = 0;
        for (int64_t k = 0; k < d->k; k++) {
            double term = (double)a[t * d->batch.a + row * d->a_row + k * d->a_col] *
                          (double)b[t * d->batch.b + k * d->b_row + column * d->b_col];
            sum += term;
            scale += fabs(term);
        }
        double error = fabs(c[t * d->batch.c + row * d->c_row + column] - sum) / scale;
        worst = error <= worst ? worst : error; /* NaN stays */
    }
    return worst;
}

static void run_gemm(void *user)
{
    job *j = user;
    td_gemm(j->pool, &j->desc, j->workspace);
}

static sweep_row measure(td_gemm_desc d, td_pool *pool, double ms, uint64_t seed)
{
    sweep_row row = { .flops = 2 * (double)(d.m * d.n) * (double)(d.k * d.batch.count) };
    float *a = sweep_make(d.batch.count * d.batch.a, &seed),
          *b = sweep_make(d.batch.count * d.batch.b, &seed);
    float *c = sweep_make(d.batch.count * d.batch.c, &seed);
    d.a = a;
    d.b = b;
    d.c = c;
    job j = { d, pool, sweep_make((int64_t)td_gemm_workspace(&d) / 4 + 1, &seed) };
    snprintf(row.name, sizeof row.name, "%lld x (m%lld n%lld k%lld) A%s B%s",
             (long long)d.batch.count, (long long)d.m, (long long)d.n, (long long)d.k,
             d.a_col == 1 ? "" : "^T", d.b_col == 1 ? "" : "^T");
    onednn *peer = onednn_gemm(&d);
    sweep_measure(&row, ms, run_gemm, &j, peer);
    row.error = largest_error(&d, &seed);
    onednn_free(peer);
    free(a);
    free(b);
    free(c);
    free(j.workspace);
    return row;
}

int main(int argc, char **argv)
{
    static sweep_row rows[MAX_ROWS];
    onednn_prepare(argv);
    int shapes = argc > 1 ? atoi(argv[1]) : 100;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    double ms = argc > 3 ? atof(argv[3]) : 20;
    td_pool *pool = td_pool_new(td_default_threads());
    if (!pool || shapes <= 0 || shapes > MAX_ROWS || !(ms > 0)) {
        fprintf(stderr, "usage: bench_gemm_sweep [shapes] [seed] [ms]\n");
        return 2;
    }
    printf("%d threads, %s\n", td_pool_threads(pool), td_isa_name(td_isa_current()));
    for (int i = 0; i < shapes; i++) {
        rows[i] = measure(random_shape(&seed), pool, ms, seed);
    }
    bool right = sweep_report(rows, shapes, ERROR_LIMIT);
    td_pool_free(pool);
    return right ? 0 : 1;
}
