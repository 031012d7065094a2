/* Filling tensors with random numbers, as PyTorch's CPU kernels do on machines with AVX2: the order
 * of the draws, the approximations of log, sin and cos, and where a product and a sum are rounded
 * once (fmaf) or twice are all part of the result, so each is written out.
 *
 * The vectorised normal takes 16 uniforms at a time; its polynomials are Cephes' logf, sinf and
 * cosf (Moshier). */
#include "tensor/random.h"

#include "tensor/backend.h"
#include "tensor/storage.h"
#include "tensor/extend.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 16, PAIRS = BLOCK / 2 };

static void uniform_values(td_generator *g, float *values, int64_t count, float from, float to)
{
    float width = to - from;
    for (int64_t i = 0; i < count; i++) {
        values[i] = fmaf(td_random_f32(g), width, from);
    }
}

/* ---- log, sin and cos ---- */

/* log(x) for x > 0: x = m * 2^e with m in [sqrt(1/2), sqrt(2)), a polynomial for log(1 + (m-1)),
 * and e*log(2) added in two parts, so that the larger one is exact. */
static inline float cephes_log(float x)
{
    const float smallest_normal = 0x1p-126f, sqrt_half = 0.707106781186547524f;
    const float log2_high = 0.693359375f, log2_low = -2.12194440e-4f;

    x = x < smallest_normal ? smallest_normal : x;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int32_t exponent = (int32_t)(bits >> 23) - 126;
    bits = (bits & 0x007fffffu) | 0x3f000000u; /* the fraction, as a float in [1/2, 1) */
    float m;
    memcpy(&m, &bits, sizeof m);
    bool low = m < sqrt_half;
    float e = (float)exponent - (low ? 1.0f : 0.0f);
    float r = (m - 1.0f) + (low ? m : 0.0f);

    float square = r * r;
    float y = 7.0376836292e-2f;
    y = fmaf(y, r, -1.1514610310e-1f);
    y = fmaf(y, r, 1.1676998740e-1f);
    y = fmaf(y, r, -1.2420140846e-1f);
    y = fmaf(y, r, 1.4249322787e-1f);
    y = fmaf(y, r, -1.6668057665e-1f);
    y = fmaf(y, r, 2.0000714765e-1f);
    y = fmaf(y, r, -2.4999993993e-1f);
    y = fmaf(y, r, 3.3333331174e-1f);
    y = y * r;
    y = fmaf(y, square, e * log2_low);
    y = fmaf(-square, 0.5f, y);
    return fmaf(e, log2_high, r + y);
}

/* sin(x) and cos(x) for x >= 0: the octant of x decides which of two polynomials on [-pi/4, pi/4]
 * is which, and the signs. */
static inline void cephes_sincos(float x, float *sine, float *cosine)
{
    const float octants_per_radian = 1.27323954473516f; /* 4/pi */
    /* pi/4 in three parts, for an exact remainder. */
    const float part1 = -0.78515625f, part2 = -2.4187564849853515625e-4f;
    const float part3 = -3.77489497744594108e-8f;

    int32_t octant = (int32_t)(x * octants_per_radian);
    octant = (octant + 1) & ~1; /* the nearest even one */
    float turns = (float)octant;
    float r = fmaf(turns, part1, x);
    r = fmaf(turns, part2, r);
    r = fmaf(turns, part3, r);
    float square = r * r;

    float c = fmaf(2.443315711809948e-5f, square, -1.388731625493765e-3f);
    c = fmaf(c, square, 4.166664568298827e-2f);
    c = c * square;
    c = fmaf(c, square, -(square * 0.5f));
    c = c + 1.0f;

    float s = fmaf(-1.9515295891e-4f, square, 8.3321608736e-3f);
    s = fmaf(s, square, -1.6666654611e-1f);
    s = s * square;
    s = fmaf(s, r, r);

    bool swapped = (octant & 2) != 0;
    bool sine_negative = (octant & 4) != 0;
    bool cosine_negative = ((octant - 2) & 4) == 0;
    float sine_size = swapped ? c : s;
    float cosine_size = swapped ? s : c;
    *sine = sine_negative ? -sine_size : sine_size;
    *cosine = cosine_negative ? -cosine_size : cosine_size;
}

/* ---- normal ---- */

/* Box-Muller on 16 uniforms in place: pair j is values j and j + 8. Loops over the pairs, so that
 * the compiler can do them side by side. */
static inline void normal_block(float *values, float mean, float std)
{
    const float two_pi = 6.28318530717958647692f;
    float radius[PAIRS];
    for (int j = 0; j < PAIRS; j++) { /* 1 - u is in (0,1], as log wants it */
        radius[j] = -2.0f * cephes_log(1.0f - values[j]);
    }
    for (int j = 0; j < PAIRS; j++) {
        radius[j] = sqrtf(radius[j]);
    }
    for (int j = 0; j < PAIRS; j++) {
        float sine, cosine;
        cephes_sincos(two_pi * values[j + PAIRS], &sine, &cosine);
        values[j] = fmaf(radius[j] * cosine, std, mean);
        values[j + PAIRS] = fmaf(radius[j] * sine, std, mean);
    }
}

static inline __attribute__((always_inline)) void normal_blocks_inline(float *values, int64_t count,
                                                                       float mean, float std)
{
    for (int64_t i = 0; i + BLOCK <= count; i += BLOCK) {
        normal_block(values + i, mean, std);
    }
}

#if defined(__x86_64__)
/* The same bits, quicker: fmaf is one instruction here, and a function call otherwise. */
__attribute__((target("avx2,fma"))) static void normal_blocks_fma(float *values, int64_t count,
                                                                  float mean, float std)
{
    normal_blocks_inline(values, count, mean, std);
}
#endif

static void normal_blocks(float *values, int64_t count, float mean, float std)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        normal_blocks_fma(values, count, mean, std);
        return;
    }
#endif
    normal_blocks_inline(values, count, mean, std);
}

static void normal_values(td_generator *g, float *values, int64_t count, double mean, double std)
{
    if (count < BLOCK) {
        for (int64_t i = 0; i < count; i++) {
            values[i] = (float)(td_random_normal(g) * std + mean);
        }
        return;
    }
    uniform_values(g, values, count, 0.0f, 1.0f);
    normal_blocks(values, count, (float)mean, (float)std);
    if (count % BLOCK != 0) { /* the last 16 are drawn again, some of them for the second time */
        float *last = values + count - BLOCK;
        uniform_values(g, last, BLOCK, 0.0f, 1.0f);
        normal_blocks(last, BLOCK, (float)mean, (float)std);
    }
}

/* ---- tensors ---- */

/* Where the f32 values of t are drawn: its own memory if that is the host's, f32 and row-major,
 * otherwise a new tensor, which finish_draw copies and frees. */
static td_tensor *begin_draw(td_tensor *t, const char *what, td_site at)
{
    td_begin_write(t, what, at);
    TD_REQUIRE(td_is_float(t->dtype), at, "%s: %s is not of a float type", what, td_label(t));
    if (t->dtype == TD_F32 && td_is_contiguous(t) && td_backend_of(td_device_of(t)) == NULL) {
        return t;
    }
    td_tensor *drawn = td_new(td_shape_of(t), TD_F32, TD_CPU);
    TD_REQUIRE(drawn != NULL, at, "%s: %s", what, td_last_error());
    return drawn;
}

static void finish_draw(td_tensor *t, td_tensor *drawn)
{
    if (drawn != t) {
        td_copy_(t, drawn);
        td_free(drawn);
    }
}

void td_uniform_inplace_at(td_tensor *t, double from, double to, td_generator *g, td_site at)
{
    TD_REQUIRE(from <= to, at, "td_uniform_: %g to %g is not a range", from, to);
    td_tensor *drawn = begin_draw(t, "td_uniform_", at);
    uniform_values(g, td_ptr(drawn), td_numel(t), (float)from, (float)to);
    finish_draw(t, drawn);
}

void td_normal_inplace_at(td_tensor *t, double mean, double std, td_generator *g, td_site at)
{
    TD_REQUIRE(std >= 0.0, at, "td_normal_: a standard deviation of %g is negative", std);
    td_tensor *drawn = begin_draw(t, "td_normal_", at);
    normal_values(g, td_ptr(drawn), td_numel(t), mean, std);
    finish_draw(t, drawn);
}
