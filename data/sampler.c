/* Samplers of one process: in order, or shuffled with PyTorch's generator. */
#include "data/dataset.h"
#include "tensor/extend.h"

#include <stdlib.h>

typedef struct plain_sampler {
    td_sampler base;
    td_generator *generator; /* NULL: the default one of the thread that asks for an epoch */
} plain_sampler;

static int64_t sequential_order(td_sampler *sampler, uint64_t epoch, int64_t length, int64_t *index)
{
    (void)sampler;
    (void)epoch;
    for (int64_t i = 0; i < length; i++) {
        index[i] = i;
    }
    return length;
}

static int64_t random_order(td_sampler *sampler, uint64_t epoch, int64_t length, int64_t *index)
{
    (void)epoch;
    td_generator *source = ((plain_sampler *)sampler)->generator;
    td_generator fresh;
    td_generator_seed(&fresh,
                      (uint64_t)td_random_i63(source != NULL ? source : td_default_generator()));
    td_random_permutation(&fresh, index, length);
    return length;
}

static int64_t count_all(const td_sampler *sampler, int64_t length)
{
    (void)sampler;
    return length;
}

static void free_sampler(td_sampler *sampler)
{
    free(sampler);
}

static td_sampler *sampler_new(td_sampler base, td_generator *g)
{
    plain_sampler *sampler = malloc(sizeof *sampler);
    if (sampler == NULL) {
        td_fail(TD_E_NOMEM, "no memory for a sampler");
        return NULL;
    }
    *sampler = (plain_sampler){ .base = base, .generator = g };
    sampler->base.count = count_all;
    sampler->base.free = free_sampler;
    return &sampler->base;
}

td_sampler *td_sequential_sampler(void)
{
    return sampler_new((td_sampler){ .order = sequential_order }, NULL);
}

td_sampler *td_random_sampler(td_generator *g)
{
    return sampler_new((td_sampler){ .order = random_order }, g);
}

void td_sampler_free(td_sampler *sampler)
{
    if (sampler != NULL) {
        sampler->free(sampler);
    }
}
