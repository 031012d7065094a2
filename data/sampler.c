/* Samplers of one process: in order, or shuffled with PyTorch's generator. */
#include "data/dataset.h"

#include <stdlib.h>

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
    td_known_sampler *s = (td_known_sampler *)sampler;
    td_generator *g = s->generator != NULL ? s->generator : td_default_generator(), fresh;
    uint64_t seed = (uint64_t)td_random_i63(g);
    g->order = (td_epoch_order){ TD_ORDER_SHUFFLED, seed, epoch, length };
    s->drawn = g->order;
    td_generator_seed(&fresh, seed);
    td_random_permutation(&fresh, index, length);
    return length;
}

static int64_t count_all(const td_sampler *sampler, int64_t length)
{
    (void)sampler;
    return length;
}

void td_known_sampler_free(td_sampler *sampler)
{
    free(sampler);
}

td_known_sampler *td_known_sampler_of(td_sampler *sampler)
{
    return sampler->free == td_known_sampler_free ? (td_known_sampler *)sampler : NULL;
}

static td_sampler *sampler_new(td_known_sampler known)
{
    td_known_sampler *sampler = malloc(sizeof *sampler);
    TD_CHECK_NULL(sampler != NULL, TD_E_NOMEM, "no memory for a sampler");
    *sampler = known;
    sampler->base.count = count_all;
    sampler->base.free = td_known_sampler_free;
    return &sampler->base;
}

td_sampler *td_sequential_sampler(void)
{
    return sampler_new(
        (td_known_sampler){ .base.order = sequential_order, .drawn.kind = TD_ORDER_PLAIN });
}

td_sampler *td_random_sampler(td_generator *g)
{
    return sampler_new((td_known_sampler){
        .base.order = random_order, .drawn.kind = TD_ORDER_SHUFFLED, .generator = g });
}

/* ---- what ranks share ---- */

/* Of one rank. */
static int64_t share_of(const td_deal *deal, int64_t length)
{
    int64_t world = deal->world_size > 0 ? deal->world_size : 1;
    if (deal->no_padding && deal->each > 0) {
        int64_t batches = (length + deal->each - 1) / deal->each;
        int64_t mine = (batches - deal->rank + world - 1) / world;
        int64_t missing = batches * deal->each - length; /* in the last batch */
        bool has_last = batches > 0 && (batches - 1) % world == deal->rank;
        return batches > deal->rank ? mine * deal->each - (has_last ? missing : 0) : 0;
    }
    int64_t total = deal->no_padding  ? length
                    : deal->drop_last ? length / world * world
                                      : (length + world - 1) / world * world;
    return total > deal->rank ? (total - deal->rank + world - 1) / world : 0;
}

int64_t td_deal_count(const td_deal *deal, int64_t length)
{
    return share_of(deal, length) * (deal->parts > 0 ? deal->parts : 1);
}

/* After its end the order begins again, as often as needed. */
void td_deal_samples(const td_deal *deal, const int64_t *all, int64_t length, int64_t begin,
                     int64_t *index)
{
    int64_t world = deal->world_size > 0 ? deal->world_size : 1;
    int64_t share = share_of(deal, length - begin), parts = deal->parts > 0 ? deal->parts : 1;
    int64_t each = deal->parts > 0 ? deal->each : share, whole = deal->no_padding ? deal->each : 0;
    for (int64_t first = 0; first < share; first += each) {
        for (int64_t part = 0; part < parts; part++) {
            int64_t rank = deal->rank + part * deal->stride;
            rank = rank < world ? rank : world - 1;
            for (int64_t i = first; i < share && i < first + each; i++) {
                int64_t from =
                    whole > 0 ? (rank + i / whole * world) * whole + i % whole : rank + i * world;
                int64_t place = (begin + from) % length;
                *index++ = all != NULL ? all[place] : place;
            }
        }
    }
}

void td_sampler_free(td_sampler *sampler)
{
    if (sampler != NULL) {
        sampler->free(sampler);
    }
}
