/* DistributedSampler: which samples of an epoch are this rank's. The same numbers as PyTorch's. */
#include "data/dataset.h"
#include "dist/dist.h"
#include "tensor/extend.h"

#include <stdlib.h>

static int64_t distributed_count(const td_sampler *sampler, int64_t length)
{
    const td_deal *deal = &((const td_known_sampler *)sampler)->deal;
    TD_CHECK(!deal->drop_last || length >= deal->world_size || deal->no_padding, TD_E_ARG,
             "td_distributed_sampler: %lld samples give none to each of %d ranks, and "
             "drop_last drops the rest: use fewer ranks, or no drop_last",
             (long long)length, deal->world_size);
    return td_deal_count(deal, length);
}

static int64_t distributed_order(td_sampler *sampler, uint64_t epoch, int64_t length,
                                 int64_t *index)
{
    td_known_sampler *s = (td_known_sampler *)sampler;
    int64_t *all = NULL;
    if (s->drawn.kind == TD_ORDER_SHUFFLED) {
        all = malloc((size_t)(length > 0 ? length : 1) * sizeof *all);
        if (all == NULL) {
            td_fail(TD_E_NOMEM, "no memory to shuffle %lld samples", (long long)length);
            return -1;
        }
        s->drawn = (td_epoch_order){ TD_ORDER_SHUFFLED, s->seed + epoch, epoch, length };
        td_generator g;
        td_generator_seed(&g, s->drawn.seed);
        td_random_permutation(&g, all, length);
    }
    td_deal_samples(&s->deal, all, length, 0, index);
    free(all);
    return td_deal_count(&s->deal, length);
}

td_sampler *td_distributed_sampler_at(td_distributed_options o, td_site at)
{
    td_deal deal = o.deal;
    if (deal.world_size == 0) {
        bool given = o.world_size != 0;
        deal = (td_deal){ .rank = given ? o.rank : td_dist_rank(),
                          .world_size = given ? o.world_size : td_dist_world_size(),
                          .drop_last = o.drop_last,
                          .no_padding = o.no_padding };
    }
    TD_REQUIRE(deal.world_size >= 1 && deal.rank >= 0 && deal.rank < deal.world_size, at,
               "td_distributed_sampler: there is no rank %d in a world of %d; ranks go from 0 to "
               "world_size - 1",
               deal.rank, deal.world_size);
    td_known_sampler *s = malloc(sizeof *s);
    TD_REQUIRE(s != NULL, at, "td_distributed_sampler: no memory for a sampler");
    *s = (td_known_sampler){
        .base = { .order = distributed_order,
                  .count = distributed_count,
                  .free = td_known_sampler_free },
        .deal = deal,
        .drawn.kind = o.shuffle ? TD_ORDER_SHUFFLED : TD_ORDER_PLAIN,
        .seed = o.seed,
    };
    return &s->base;
}
