/* The Mersenne Twister MT19937 (Matsumoto and Nishimura 1998), drawn from as PyTorch's CPU
 * generator does. */
#include "tensor/random.h"
#include "tensor/extend.h"

#include <math.h>

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

bool td_random_bernoulli(td_generator *g, double p)
{
    return td_random_f64(g) < p;
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
