#include "data/dataset.h"
#include "tensor/extend.h"

#include <stdlib.h>

static int64_t count_all(const td_sampler *sampler, int64_t length)
{
    (void)sampler;
    return length;
}

static void free_sampler(td_sampler *sampler)
{
    free(sampler);
}

void td_sampler_free(td_sampler *sampler)
{
    if (sampler != NULL) {
        sampler->free(sampler);
    }
}

/* ---- sequential ---- */

static int64_t sequential_order(td_sampler *sampler, uint64_t epoch, int64_t length, int64_t *index)
{
    (void)sampler;
    (void)epoch;
    for (int64_t i = 0; i < length; i++) {
        index[i] = i;
    }
    return length;
}

td_sampler *td_sequential_sampler(void)
{
    td_sampler *sampler = malloc(sizeof *sampler);
    if (sampler == NULL) {
        td_fail(TD_E_NOMEM, "no memory for a sampler");
        return NULL;
    }
    *sampler = (td_sampler){ .order = sequential_order, .count = count_all, .free = free_sampler };
    return sampler;
}

/* ---- random ---- */

typedef struct random_sampler {
    td_sampler base;
    td_generator *generator; /* NULL: the default one of the thread that asks for an epoch */
} random_sampler;

static int64_t random_order(td_sampler *sampler, uint64_t epoch, int64_t length, int64_t *index)
{
    (void)epoch;
    td_generator *source = ((random_sampler *)sampler)->generator;
    td_generator fresh;
    td_generator_seed(&fresh,
                      (uint64_t)td_random_i63(source != NULL ? source : td_default_generator()));
    td_random_permutation(&fresh, index, length);
    return length;
}

td_sampler *td_random_sampler(td_generator *g)
{
    random_sampler *sampler = malloc(sizeof *sampler);
    if (sampler == NULL) {
        td_fail(TD_E_NOMEM, "no memory for a sampler");
        return NULL;
    }
    *sampler = (random_sampler){
        .base = { .order = random_order, .count = count_all, .free = free_sampler },
        .generator = g,
    };
    return &sampler->base;
}
