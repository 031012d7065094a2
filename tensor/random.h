/* Random numbers.
 *
 * td_generator is PyTorch's CPU generator (MT19937), equal number by number; it serves
 * initialisation and the order of data. td_philox is counter-based: what is drawn per element or
 * per sample in training (dropout, crops, flips) depends only on (seed, stream) and (a, b), so it
 * is the same for any number of threads or workers, and on every device. */
#ifndef TD_TENSOR_RANDOM_H
#define TD_TENSOR_RANDOM_H

#include "tensor/tensor.h"

typedef struct td_generator {
    uint32_t state[624];
    int32_t next;       /* index of the next word; 624: refill first */
    int32_t has_cached; /* scalar normals come in pairs */
    double cached_normal;
    uint64_t seed; /* what it was seeded with */
} td_generator;

void td_generator_seed(td_generator *g, uint64_t seed);

/* The calling thread's default generator, seeded 5489 until td_manual_seed. */
td_generator *td_default_generator(void);
void td_manual_seed(uint64_t seed);

uint32_t td_random_u32(td_generator *g);
uint64_t td_random_u64(td_generator *g); /* (first draw << 32) | second */
int64_t td_random_i63(td_generator *g);  /* u64 & 2^63-1: what seeds a loader's epoch */
float td_random_f32(td_generator *g);    /* [0,1), 24 bits */
double td_random_f64(td_generator *g);   /* [0,1), 53 bits */
int64_t td_random_int(td_generator *g, int64_t low, int64_t high); /* [low, high) */
double td_random_normal(td_generator *g);                          /* scalar path, Box-Muller */
bool td_random_bernoulli(td_generator *g, double p);
void td_random_permutation(td_generator *g, int64_t *out, int64_t n);

/* Fill a float tensor in row-major order of its shape, whatever its strides. f32 draws as PyTorch
 * does for f32; other float types receive the f32 values converted. */
void td_uniform_(td_tensor *t, double from, double to, td_generator *g);
void td_normal_(td_tensor *t, double mean, double std, td_generator *g);

/* Philox4x32-10 (Salmon et al. 2011): four 32-bit words for a key and a 128-bit counter. */
typedef struct td_philox_key {
    uint64_t seed;   /* the run's */
    uint64_t stream; /* the layer, transform or rank that draws */
} td_philox_key;
void td_philox(td_philox_key key, uint64_t a, uint64_t b, uint32_t out[4]);

/* The generator's own key, for tensor/philox.h. */
uint64_t td_philox_mixed_key(td_philox_key key);

#endif
