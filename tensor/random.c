/* Random numbers: the generator, tensors filled with its numbers, and keys of Philox. */
#include "tensor/random.h"

#include "tensor/backend.h"
#include "tensor/kernels/philox.h"

#include <math.h>
#include <string.h>

/* ---- the Mersenne Twister MT19937 (Matsumoto and Nishimura 1998), as in PyTorch ---- */

enum {
    WORDS = 624,
    SHIFT = 397, /* the word that a new one is mixed with lies this far ahead */
};

#define PI 3.14159265358979323846

void td_generator_seed(td_generator *g, uint64_t seed)
{
    /* Only the low half counts, as in PyTorch. */
    g->state[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < WORDS; i++) {
        uint32_t before = g->state[i - 1];
        g->state[i] = 1812433253u * (before ^ (before >> 30)) + i;
    }
    g->next = WORDS;
    g->has_cached = 0;
    g->cached_normal = 0.0;
    g->seed = seed;
    g->order = (td_epoch_order){ 0 };
}

td_generator *td_default_generator(void)
{
    static _Thread_local td_generator generator;
    static _Thread_local bool seeded;
    if (!seeded) {
        td_generator_seed(&generator, 5489);
        seeded = true;
    }
    return &generator;
}

void td_manual_seed(uint64_t seed)
{
    td_generator_seed(td_default_generator(), seed);
}

/* A new word from the top bit of one, the other bits of its neighbour, and a third. */
static uint32_t twist(uint32_t word, uint32_t neighbour, uint32_t ahead)
{
    uint32_t joined = (word & 0x80000000u) | (neighbour & 0x7fffffffu);
    return ahead ^ (joined >> 1) ^ (neighbour & 1u ? 0x9908b0dfu : 0u);
}

static void refill(td_generator *g)
{
    uint32_t *word = g->state;
    for (int i = 0; i < WORDS - SHIFT; i++) {
        word[i] = twist(word[i], word[i + 1], word[i + SHIFT]);
    }
    for (int i = WORDS - SHIFT; i < WORDS - 1; i++) {
        word[i] = twist(word[i], word[i + 1], word[i + SHIFT - WORDS]);
    }
    word[WORDS - 1] = twist(word[WORDS - 1], word[0], word[SHIFT - 1]);
    g->next = 0;
}

uint32_t td_random_u32(td_generator *g)
{
    if (g->next >= WORDS) {
        refill(g);
    }
    uint32_t word = g->state[g->next++];
    word ^= word >> 11;
    word ^= (word << 7) & 0x9d2c5680u;
    word ^= (word << 15) & 0xefc60000u;
    return word ^ (word >> 18);
}

uint64_t td_random_u64(td_generator *g)
{
    uint64_t high = td_random_u32(g);
    return high << 32 | td_random_u32(g);
}

int64_t td_random_i63(td_generator *g)
{
    return (int64_t)(td_random_u64(g) & INT64_MAX);
}

float td_random_f32(td_generator *g)
{
    return (float)(td_random_u32(g) & 0xffffffu) * 0x1p-24f;
}

double td_random_f64(td_generator *g)
{
    return (double)(td_random_u64(g) & ((UINT64_C(1) << 53) - 1)) * 0x1p-53;
}

int64_t td_random_int(td_generator *g, int64_t low, int64_t high)
{
    TD_REQUIRE(low < high, ((td_site){ NULL, 0 }), "td_random_int: [%lld, %lld) contains no number",
               (long long)low, (long long)high);
    uint64_t range = (uint64_t)high - (uint64_t)low;
    uint64_t draw = range >> 32 == 0 ? td_random_u32(g) : td_random_u64(g);
    return (int64_t)((uint64_t)low + draw % range);
}

double td_random_normal(td_generator *g)
{
    if (g->has_cached) {
        g->has_cached = 0;
        return g->cached_normal;
    }
    double u1 = td_random_f64(g);
    double u2 = td_random_f64(g);
    double radius = sqrt(-2.0 * log1p(-u2));
    double angle = 2.0 * PI * u1;
    g->cached_normal = radius * sin(angle);
    g->has_cached = 1;
    return radius * cos(angle);
}

void td_random_permutation(td_generator *g, int64_t *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = i;
    }
    for (int64_t i = 0; i < n - 1; i++) {
        int64_t other = i + (int64_t)(td_random_u32(g) % (uint64_t)(n - i));
        int64_t swapped = out[i];
        out[i] = out[other];
        out[other] = swapped;
    }
}

/* ---- filling ----
 *
 * As PyTorch's CPU kernels do on machines with AVX2: the order of the draws, the approximations of
 * log, sin and cos, and where a product and a sum are rounded once (fmaf) or twice are all part of
 * the result, so each is written out. The vectorised normal takes 16 uniforms at a time; its
 * polynomials are Cephes' logf, sinf and cosf (Moshier). */

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

/* ---- skipping ---- */

void td_uniform_skip(td_generator *g, int64_t count)
{
    for (; count > WORDS - g->next; refill(g)) {
        count -= WORDS - g->next;
    }
    g->next += (int32_t)count;
}

void td_normal_skip(td_generator *g, int64_t count)
{
    float few[BLOCK];
    if (count < BLOCK) { /* of these one may be kept for the next */
        normal_values(g, few, count, 0.0, 1.0);
    } else {
        td_uniform_skip(g, count + (count % BLOCK != 0 ? BLOCK : 0));
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

static td_generator *or_default(td_generator *g)
{
    return g != NULL ? g : td_default_generator();
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
    uniform_values(or_default(g), td_ptr(drawn), td_numel(t), (float)from, (float)to);
    finish_draw(t, drawn);
}

void td_normal_inplace_at(td_tensor *t, double mean, double std, td_generator *g, td_site at)
{
    TD_REQUIRE(std >= 0.0, at, "td_normal_: a standard deviation of %g is negative", std);
    td_tensor *drawn = begin_draw(t, "td_normal_", at);
    normal_values(or_default(g), td_ptr(drawn), td_numel(t), mean, std);
    finish_draw(t, drawn);
}

/* ---- Philox ----
 *
 * Philox's key has 64 bits; ours is a seed and a stream of 64 bits each. The stream is first spread
 * over all bits by an invertible mix (the finalizer of SplitMix64) and then added to the seed by
 * xor. So streams 0, 1, 2, ... of a seed never share a key, stream 0 has the seed itself, and two
 * pairs meet with the chance of 2^-64. */

static uint64_t mix_stream(uint64_t stream)
{
    stream = (stream ^ (stream >> 30)) * 0xbf58476d1ce4e5b9u;
    stream = (stream ^ (stream >> 27)) * 0x94d049bb133111ebu;
    return stream ^ (stream >> 31);
}

uint64_t td_philox_mixed_key(td_philox_key key)
{
    return key.seed ^ mix_stream(key.stream);
}

void td_philox(td_philox_key key, uint64_t a, uint64_t b, uint32_t out[4])
{
    td_philox_words(td_philox_mixed_key(key), a, b, out);
}
