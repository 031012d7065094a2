/* Random numbers.
 *
 * td_generator is PyTorch's CPU generator (MT19937): the same seed gives the same numbers. It draws
 * initial weights and the order of data. What is drawn per element or per sample in training
 * (dropout, crops, flips) comes from Philox, a generator by counter: such a number depends only on
 * its key and its counter, so that it is the same for any number of threads or workers and on every
 * device. */
#ifndef TD_TENSOR_RANDOM_H
#define TD_TENSOR_RANDOM_H

#include "tensor/tensor.h"

TD_BEGIN_C

typedef struct td_generator {
    uint32_t state[624];
    int32_t next;       /* index of the next word; 624: refill first */
    int32_t has_cached; /* scalar normals come in pairs */
    double cached_normal;
    uint64_t seed; /* the last td_generator_seed */
} td_generator;

void td_generator_seed(td_generator *g, uint64_t seed);

/* The calling thread's default generator; its seed is 5489 until td_manual_seed. */
td_generator *td_default_generator(void);
void td_manual_seed(uint64_t seed);

double td_random_f64(td_generator *g);                             /* in [0,1), 53 bits */
int64_t td_random_int(td_generator *g, int64_t low, int64_t high); /* in [low, high) */
void td_random_permutation(td_generator *g, int64_t *out, int64_t n);

/* Fill a float tensor, in row-major order of its shape, whatever its strides. f32 gets PyTorch's
 * numbers for f32; other float dtypes get those numbers converted. */
void td_uniform_inplace_at(td_tensor *t, double from, double to, td_generator *g, td_site at);
void td_normal_inplace_at(td_tensor *t, double mean, double std, td_generator *g, td_site at);
#define td_uniform_(...) td_uniform_inplace_at(__VA_ARGS__, TD_HERE)
#define td_normal_(...) td_normal_inplace_at(__VA_ARGS__, TD_HERE)

/* Philox's key: the run's seed, and the number of the layer, transform or rank that draws. */
typedef struct td_philox_key {
    uint64_t seed;
    uint64_t stream;
} td_philox_key;

TD_END_C

#endif
