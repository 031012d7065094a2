/* Random numbers.
 *
 * td_generator is PyTorch's CPU generator (MT19937, Matsumoto and Nishimura 1998): the same seed
 * gives the same numbers as in PyTorch. It draws initial weights and the order of samples. Dropout,
 * crops and flips draw from Philox (Salmon et al. 2011) instead: a Philox number depends only on a
 * key and a counter, so it is the same for any number of threads or workers and on every device. */
#pragma once

#include "tensor/tensor.h"

TD_BEGIN_C

/* How an epoch's samples were ordered, if that is known: one after the other, or permuted by a
 * generator that was seeded for it. */
typedef enum td_order_kind {
    TD_ORDER_UNKNOWN,
    TD_ORDER_PLAIN,
    TD_ORDER_OWN,
    TD_ORDER_SHUFFLED
} td_order_kind;
typedef struct td_epoch_order {
    int64_t kind;         /* a td_order_kind; this wide, so that a generator has no gaps */
    uint64_t seed, epoch; /* of a shuffled order */
    int64_t length;
} td_epoch_order;

/* A plain value: copy it to save a generator's state. The fields are for the library. */
typedef struct td_generator {
    uint32_t state[624];
    int32_t next;       /* index of the next word in state; 624: none left */
    int32_t has_cached; /* normal numbers are drawn in pairs */
    double cached_normal;
    uint64_t seed;        /* of the last td_generator_seed */
    td_epoch_order order; /* the last order of samples whose seed was drawn from it */
} td_generator;

/* Seeds a generator, like torch.Generator().manual_seed(seed). */
void td_generator_seed(td_generator *g, uint64_t seed);

/* Each thread has a default generator, which the library owns. td_manual_seed seeds the calling
 * thread's, and also the streams of Dropout; until then the seed is 5489. */
td_generator *td_default_generator(void);
void td_manual_seed(uint64_t seed);

/* td_uniform_ and td_normal_ fill a float tensor in place, in row-major order of its shape for
 * every memory order. The numbers are PyTorch's numbers for f32, converted to t's dtype.
 * td_uniform_ draws from [from, to). */
/* g NULL: the default generator. */
void td_uniform_inplace_at(td_tensor *t, double from, double to, td_generator *g, td_site at);
void td_normal_inplace_at(td_tensor *t, double mean, double std, td_generator *g, td_site at);
/* Brings g to the state that it has after td_uniform_ or td_normal_ of a tensor of `count`
 * elements. */
void td_uniform_skip(td_generator *g, int64_t count);
void td_normal_skip(td_generator *g, int64_t count);

/* A key of Philox: the run's seed, and the number of the layer, transform or rank that draws. */
typedef struct td_philox_key {
    uint64_t seed;
    uint64_t stream;
} td_philox_key;

/* ---- what you call ---- */

#define td_uniform_(...) td_uniform_inplace_at(__VA_ARGS__, TD_HERE)
#define td_normal_(...) td_normal_inplace_at(__VA_ARGS__, TD_HERE)

TD_END_C
