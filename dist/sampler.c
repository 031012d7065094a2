/* DistributedSampler: which samples of an epoch are this rank's. The same numbers as PyTorch's. */
#include "dist/dist.h"
#include "tensor/extend.h"

#include <stdlib.h>

typedef struct distributed_sampler {
    td_sampler base;
    td_distributed_options options; /* world_size is at least 1 */
} distributed_sampler;

/* The number of samples of all ranks: world_size times each rank's number; without padding, the
 * dataset's length. */
static int64_t total_of(const td_distributed_options *o, int64_t length)
{
    int64_t world = o->world_size;
    if (o->no_padding) {
        return length;
    }
    return o->drop_last ? length / world * world : (length + world - 1) / world * world;
}

static int64_t distributed_count(const td_sampler *sampler, int64_t length)
{
    const td_distributed_options *o = &((const distributed_sampler *)sampler)->options;
    int64_t total = total_of(o, length), world = o->world_size;
    if (o->drop_last && total == 0) {
        return td_fail(TD_E_ARG,
                       "td_distributed_sampler: %lld samples give none to each of %lld ranks, and "
                       "drop_last drops the rest: use fewer ranks, or no drop_last",
                       (long long)length, (long long)world);
    }
    return total > o->rank ? (total - o->rank + world - 1) / world : 0;
}

static int64_t distributed_order(td_sampler *sampler, uint64_t epoch, int64_t length,
                                 int64_t *index)
{
    const td_distributed_options *o = &((const distributed_sampler *)sampler)->options;
    int64_t *all = NULL;
    if (o->shuffle) {
        all = malloc((size_t)(length > 0 ? length : 1) * sizeof *all);
        if (all == NULL) {
            td_fail(TD_E_NOMEM, "no memory to shuffle %lld samples", (long long)length);
            return -1;
        }
        td_generator g;
        td_generator_seed(&g, o->seed + epoch);
        td_random_permutation(&g, all, length);
    }
    int64_t count = distributed_count(sampler, length);
    for (int64_t i = 0; i < count; i++) {
        /* After its end the order begins again, as often as needed. */
        int64_t place = (o->rank + i * o->world_size) % length;
        index[i] = o->shuffle ? all[place] : place;
    }
    free(all);
    return count;
}

static void distributed_free(td_sampler *sampler)
{
    free(sampler);
}

td_sampler *td_distributed_sampler_at(td_distributed_options o, td_site at)
{
    if (o.world_size == 0) {
        o.rank = td_dist_rank();
        o.world_size = td_dist_world_size();
    }
    TD_REQUIRE(o.world_size >= 1 && o.rank >= 0 && o.rank < o.world_size, at,
               "td_distributed_sampler: there is no rank %d in a world of %d; ranks go from 0 to "
               "world_size - 1",
               o.rank, o.world_size);
    distributed_sampler *s = malloc(sizeof *s);
    TD_REQUIRE(s != NULL, at, "td_distributed_sampler: no memory for a sampler");
    *s = (distributed_sampler){
        .base = { .order = distributed_order,
                  .count = distributed_count,
                  .free = distributed_free },
        .options = o,
    };
    return &s->base;
}
