/* The machine's limits, by two loops: fused multiply-adds that stay in registers, and memory that
 * no cache holds, multiplied in place: what is written has been read, so nothing is moved in vain.
 */
#include "tensor/cpu/cpu_device.h"
#include "tensor/cpu/ops.h"
#include "tensor/clock.h"
#include "tensor/cpu/vectors.h"

#include <stdlib.h>
#include <string.h>

enum {
    CHAINS = TD_NEON ? 24 : 12, /* independent sums: enough to hide an addition's latency in two
                                   units, NEON's in four */
    ROUNDS = 20000,
    TASKS_PER_THREAD = 4,
    REPEATS = 5, /* of the memory's pass */
    PIECE_BYTES = 1 << 20,
    PIECES = 128,
};

/* How long each peak is looked for: just after a start the scheduler may leave all threads on one
 * CPU for some milliseconds. */
static const double PEAK_SECONDS = 0.1;

/* Keeps a sum of all chains, so that the compiler cannot leave the loop out. */
#define PEAK(NAME, TARGET, VEC, SET, FMA)                                                          \
    TARGET static void NAME(void *result)                                                          \
    {                                                                                              \
        VEC sum[CHAINS], a = SET(0.999f), b = SET(0.001f);                                         \
        for (int i = 0; i < CHAINS; i++) {                                                         \
            sum[i] = b;                                                                            \
        }                                                                                          \
        for (int r = 0; r < ROUNDS; r++) {                                                         \
            _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++)                              \
            {                                                                                      \
                sum[i] = FMA(sum[i], a, b);                                                        \
            }                                                                                      \
        }                                                                                          \
        for (int i = 1; i < CHAINS; i++) {                                                         \
            sum[0] += sum[i];                                                                      \
        }                                                                                          \
        memcpy(result, &sum[0], sizeof sum[0]);                                                    \
    }

/* Of f32 and of f64. */
typedef struct peak {
    void (*run)(void *result);
    int lanes;
} peak;
#define PEAKS(NAME, TARGET, VEC, SET, FMA, WIDE, SET_WIDE, FMA_WIDE)                               \
    PEAK(NAME##_peak_f32, TARGET, VEC, SET, FMA)                                                   \
    PEAK(NAME##_peak_f64, TARGET, WIDE, SET_WIDE, FMA_WIDE)                                        \
    static const peak NAME##_peaks[2] = { { NAME##_peak_f32, sizeof(VEC) / sizeof(float) },        \
                                          { NAME##_peak_f64, sizeof(WIDE) / sizeof(double) } };

PEAKS(f32, , f32x4, f32_set1, f32_fma, f64x2, f64_set1, f64_fma)
#if TD_X86
PEAKS(avx2, TD_TARGET_AVX2, __m256, _mm256_set1_ps, _mm256_fmadd_ps, __m256d, _mm256_set1_pd,
      _mm256_fmadd_pd)
PEAKS(avx512, TD_TARGET_AVX512, __m512, _mm512_set1_ps, _mm512_fmadd_ps, __m512d, _mm512_set1_pd,
      _mm512_fmadd_pd)
#endif

static void peak_task(void *ctx, int64_t task)
{
    (void)task;
    _Alignas(64) char result[64];
    ((const peak *)ctx)->run(result);
}

static double measure_peak(td_device device, bool wide)
{
    peak loop = (*TD_OF_VECTORS(peaks))[wide];
    td_pool *pool = td_cpu_pool(device);
    int64_t tasks = (int64_t)td_pool_threads(pool) * TASKS_PER_THREAD;
    double best = 0.0, start = td_clock(), end = start;
    while (end - start < PEAK_SECONDS) {
        double begin = end;
        td_pool_run(pool, tasks, peak_task, &loop);
        end = td_clock();
        double rate = 2.0 * CHAINS * ROUNDS * loop.lanes * (double)tasks / (end - begin);
        best = rate > best ? rate : best;
    }
    return best;
}

/* One piece of memory times nearly 1. */
static void scale_task(void *ctx, int64_t task)
{
    float *piece = (float *)ctx + task * (PIECE_BYTES / (int64_t)sizeof(float));
    for (int64_t i = 0; i < PIECE_BYTES / (int64_t)sizeof(float); i++) {
        piece[i] *= 0.9999f;
    }
}

td_status td_cpu_measure_limits(td_device device, td_limits *limits)
{
    enum { BYTES = PIECES * PIECE_BYTES };
    float *memory = malloc(BYTES);
    TD_CHECK(memory != NULL, TD_E_NOMEM, "no memory to measure how fast it is (128 MiB)");
    for (int64_t i = 0; i < BYTES / (int64_t)sizeof(float); i++) {
        memory[i] = 1.0f;
    }
    *limits = (td_limits){ measure_peak(device, false), measure_peak(device, true), 0.0 };
    for (int i = 0; i < REPEATS; i++) {
        double begin = td_clock();
        td_pool_run(td_cpu_pool(device), PIECES, scale_task, memory);
        double rate = 2.0 * BYTES / (td_clock() - begin);
        limits->memory = rate > limits->memory ? rate : limits->memory;
    }
    free(memory);
    return TD_OK;
}

td_status td_cpu_check_precision(td_device device, td_precision precision)
{
    TD_CHECK(precision != TD_PRECISION_TF32 && precision != TD_PRECISION_FP16, TD_E_UNSUPPORTED,
             "%s does not compute in %s, which is for GPUs: use fp32, bf16 or bf16x3",
             td_device_name(device), td_precision_name(precision));
    return TD_OK;
}
