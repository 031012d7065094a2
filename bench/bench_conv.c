/* The convolutions of ResNet-18 on 32x32 pictures (ImageNet stem), pass by pass: milliseconds, and
 * GFLOP/s of useful work (padding not counted), in f32, bf16 and split f32 (bf16x3), beside the
 * speed of a loop of nothing but multiply-adds of f32.
 *
 *     bench_conv [batch] [threads] [seconds per measurement] [precision...]
 */
#include "bench/memory.h"
#include "tensor/cpu/cpus.h"
#include "tensor/cpu/conv.h"
#include "tensor/extend.h"
#include "tensor/cpu/isa.h"
#include "tensor/f16.h"
#include "tensor/precision.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if TD_X86
#include <immintrin.h>
#endif

typedef struct layer {
    const char *name;
    int count; /* how often the network has it */
    int ic, oc, in, kernel, stride, pad;
} layer;

static const layer layers[] = {
    { "conv1 7x7 s2   3->64  at 32", 1, 3, 64, 32, 7, 2, 3 },
    { "3x3       64->64      at 8", 4, 64, 64, 8, 3, 1, 1 },
    { "3x3 s2    64->128     at 8", 1, 64, 128, 8, 3, 2, 1 },
    { "1x1 s2    64->128     at 8", 1, 64, 128, 8, 1, 2, 0 },
    { "3x3      128->128     at 4", 3, 128, 128, 4, 3, 1, 1 },
    { "3x3 s2   128->256     at 4", 1, 128, 256, 4, 3, 2, 1 },
    { "1x1 s2   128->256     at 4", 1, 128, 256, 4, 1, 2, 0 },
    { "3x3      256->256     at 2", 3, 256, 256, 2, 3, 1, 1 },
    { "3x3 s2   256->512     at 2", 1, 256, 512, 2, 3, 2, 1 },
    { "1x1 s2   256->512     at 2", 1, 256, 512, 2, 1, 2, 0 },
    { "3x3      512->512     at 1", 3, 512, 512, 1, 3, 1, 1 },
};

enum { LAYERS = sizeof layers / sizeof layers[0], PASSES = 3, PEAK_LOOPS = 2000000 };

static td_pool *pool;
static double budget = 0.15;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the speed of multiply-adds alone ---- */

static volatile float peak_result;

#if TD_X86
static TD_TARGET_AVX512 void peak_avx512(void)
{
    __m512 sum[16], a = _mm512_set1_ps(0.5f);
    for (int i = 0; i < 16; i++) {
        sum[i] = _mm512_set1_ps((float)i);
    }
    for (int n = 0; n < PEAK_LOOPS; n++) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            sum[i] = _mm512_fmadd_ps(sum[i], a, a);
        }
    }
    for (int i = 1; i < 16; i++) {
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    }
    peak_result = _mm512_reduce_add_ps(sum[0]);
}

static TD_TARGET_AVX2 void peak_avx2(void)
{
    __m256 sum[12], a = _mm256_set1_ps(0.5f);
    for (int i = 0; i < 12; i++) {
        sum[i] = _mm256_set1_ps((float)i);
    }
    for (int n = 0; n < PEAK_LOOPS; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) {
            sum[i] = _mm256_fmadd_ps(sum[i], a, a);
        }
    }
    for (int i = 1; i < 12; i++) {
        sum[0] = _mm256_add_ps(sum[0], sum[i]);
    }
    peak_result = sum[0][0];
}
#endif

static void peak_task(void *ctx, int64_t task)
{
    (void)task;
#if TD_X86
    if (*(td_isa *)ctx >= TD_ISA_AVX512) {
        peak_avx512();
    } else {
        peak_avx2();
    }
#else
    (void)ctx;
#endif
}

/* GFLOP/s of all threads together, the best of several runs; 0 where there is no such loop. */
static double measure_peak(int threads)
{
    td_isa isa = td_isa_current();
    if (isa == TD_ISA_PORTABLE) {
        return 0;
    }
    double flops = isa >= TD_ISA_AVX512 ? 16. * 16 * 2 : 12. * 8 * 2, best = 1e30;
    for (int i = 0; i < 8; i++) {
        double start = now();
        td_pool_run(pool, threads, peak_task, &isa);
        double time = now() - start;
        best = time < best ? time : best;
    }
    return flops * PEAK_LOOPS * threads / best / 1e9;
}

/* ---- layers ---- */

typedef struct tensors {
    td_conv2d_desc desc;
    void *x, *y;
    float *w;
    void *workspace;
} tensors;

static float *make(int64_t count)
{
    float *p = bench_memory((size_t)count * sizeof *p);
    if (!p) {
        fprintf(stderr, "bench_conv: out of memory; try a smaller batch\n");
        exit(1);
    }
    uint32_t bits = 1;
    for (int64_t i = 0; i < count; i++) {
        bits = bits * 1664525u + 1013904223u;
        p[i] = (float)(bits >> 8) / (float)(1 << 23) - 1;
    }
    return p;
}

/* bf16 in the memory of f32, where bf16 is wanted. */
static void *as_dtype(float *values, const td_conv2d_desc *desc, int64_t count)
{
    td_bf16 *rounded = (td_bf16 *)(void *)values;
    for (int64_t i = 0; desc->dtype == TD_BF16 && i < count; i++) {
        td_bf16 h = td_f32_to_bf16(values[i]);
        memcpy(&rounded[i], &h, sizeof h);
    }
    return values;
}

static tensors make_tensors(const layer *l, int batch, td_precision precision)
{
    int out = (l->in + 2 * l->pad - l->kernel) / l->stride + 1;
    tensors t = { .desc = { .dtype = precision == TD_PRECISION_BF16 ? TD_BF16 : TD_F32,
                            .n = batch,
                            .ic = l->ic,
                            .ih = l->in,
                            .iw = l->in,
                            .oc = l->oc,
                            .oh = out,
                            .ow = out,
                            .kh = l->kernel,
                            .kw = l->kernel,
                            .stride_h = l->stride,
                            .stride_w = l->stride,
                            .pad_h = l->pad,
                            .pad_w = l->pad,
                            .dil_h = 1,
                            .dil_w = 1,
                            .groups = 1,
                            .bf16 = precision != TD_PRECISION_FP32,
                            .weight_dtype = TD_F32 } };
    size_t bytes = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        size_t need = td_conv2d_workspace(&t.desc, (td_conv2d_pass)pass);
        bytes = need > bytes ? need : bytes;
    }
    t.x = as_dtype(make((int64_t)l->in * l->in * batch * l->ic), &t.desc,
                   (int64_t)l->in * l->in * batch * l->ic);
    t.y = as_dtype(make((int64_t)out * out * batch * l->oc), &t.desc,
                   (int64_t)out * out * batch * l->oc);
    t.w = make((int64_t)l->kernel * l->kernel * l->ic * l->oc);
    t.workspace = make((int64_t)bytes / 4 + 1);
    return t;
}

static void free_tensors(tensors *t)
{
    free(t->x);
    free(t->y);
    free(t->w);
    free(t->workspace);
}

/* Multiply-adds that do not meet padding, times two. */
static double useful_flops(const layer *l, int batch)
{
    int out = (l->in + 2 * l->pad - l->kernel) / l->stride + 1, met = 0;
    for (int o = 0; o < out; o++) {
        for (int tap = 0; tap < l->kernel; tap++) {
            int in = o * l->stride - l->pad + tap;
            met += in >= 0 && in < l->in;
        }
    }
    return 2. * batch * l->ic * l->oc * met * met;
}

static void run_pass(tensors *t, int pass)
{
    td_conv2d_run(
        pool,
        &(td_conv2d_call){
            .desc = &t->desc, .pass = (td_conv2d_pass)pass, .x = t->x, .w = t->w, .y = t->y },
        t->workspace);
}

/* Seconds: the shortest of many runs, since other work on the machine only ever adds. */
static double measure(tensors *t, int pass)
{
    double best = 1e30, start = now();
    for (int i = 0; i < 3 || now() - start < budget; i++) {
        double begin = now();
        run_pass(t, pass);
        double time = now() - begin;
        best = time < best ? time : best;
    }
    return best;
}

static void bench_precision(td_precision precision, int batch)
{
    double total[PASSES] = { 0 }, flops = 0;
    printf("\n%-28s    %-17s %-17s %-17s\n", td_precision_name(precision), "forward",
           "backward-data", "backward-weights");
    for (int i = 0; i < LAYERS; i++) {
        const layer *l = &layers[i];
        tensors t = make_tensors(l, batch, precision);
        double useful = useful_flops(l, batch);
        printf("%-28s x%d", l->name, l->count);
        for (int pass = 0; pass < PASSES; pass++) {
            if (i == 0 && pass == TD_CONV2D_BACKWARD_DATA) { /* pictures need no gradient */
                printf(" %17s", "");
                continue;
            }
            double time = measure(&t, pass);
            printf(" %7.3f ms %6.0f", time * 1e3, useful / time / 1e9);
            total[pass] += time * l->count;
            flops += useful * l->count;
        }
        printf("\n");
        free_tensors(&t);
    }
    double sum = total[0] + total[1] + total[2];
    printf("%-28s    %7.2f ms        %7.2f ms        %7.2f ms\n", "all, as often as it is there",
           total[0] * 1e3, total[1] * 1e3, total[2] * 1e3);
    printf("together %.2f ms, %.2f GFLOP, %.0f GFLOP/s\n", sum * 1e3, flops / 1e9,
           flops / sum / 1e9);
}

int main(int argc, char **argv)
{
    int batch = argc > 1 ? atoi(argv[1]) : 256;
    int threads = argc > 2 ? atoi(argv[2]) : td_default_threads();
    budget = argc > 3 ? atof(argv[3]) : budget;
    pool = batch > 0 ? td_pool_new(threads) : NULL;
    if (!pool) {
        fprintf(stderr,
                "usage: bench_conv [batch] [threads] [seconds per measurement] [precision...]\n");
        return 1;
    }
    printf("batch %d, %d threads, %s, multiply-adds of f32 alone: %.0f GFLOP/s\n", batch, threads,
           td_isa_name(td_isa_current()), measure_peak(threads));
    for (int p = 0; p < TD_PRECISION_COUNT; p++) {
        bool wanted = argc <= 4;
        for (int i = 4; i < argc; i++) {
            wanted = wanted || strcmp(argv[i], td_precision_name((td_precision)p)) == 0;
        }
        if (wanted && p != TD_PRECISION_FP32 && td_isa_current() < TD_ISA_AVX512_BF16) {
            printf("\n%s: this instruction set multiplies no bf16\n",
                   td_precision_name((td_precision)p));
        } else if (wanted) {
            bench_precision((td_precision)p, batch);
        }
    }
    td_pool_free(pool);
    return 0;
}
