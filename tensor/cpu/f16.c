/* Converts arrays between f16 and f32, by F16C where the processor has it. */
#include "tensor/f16.h"

#include "tensor/backend.h"
#include "tensor/cpu/isa.h"

#if TD_X86
#include <immintrin.h>

/* Every processor with AVX2 has F16C, too. Both return how many elements they have done. */
#define F16C __attribute__((target("avx2,f16c")))

F16C static int64_t widen_f16c(int64_t n, float *y, const td_f16 *x)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i bits = _mm_loadu_si128((const __m128i *)(const void *)(x + i));
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(bits));
    }
    return i;
}

F16C static int64_t narrow_f16c(int64_t n, td_f16 *y, const float *x)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i bits = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)(y + i), bits);
    }
    return i;
}
#else
static int64_t widen_f16c(int64_t n, float *y, const td_f16 *x)
{
    return (void)n, (void)y, (void)x, 0;
}

static int64_t narrow_f16c(int64_t n, td_f16 *y, const float *x)
{
    return (void)n, (void)y, (void)x, 0;
}
#endif

void td_f16_widen(int64_t n, float *y, const td_f16 *x)
{
    int64_t done = td_cpu_has_avx2() ? widen_f16c(n, y, x) : 0;
    for (int64_t i = done; i < n; i++) {
        y[i] = td_f16_to_f32(x[i]);
    }
}

void td_f16_narrow(int64_t n, td_f16 *y, const float *x)
{
    int64_t done = td_cpu_has_avx2() ? narrow_f16c(n, y, x) : 0;
    for (int64_t i = done; i < n; i++) {
        y[i] = td_f32_to_f16(x[i]);
    }
}
