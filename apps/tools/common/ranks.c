/* What a program does in each rank: begins the job, and combines numbers of all ranks. */
#include "apps/tools/common/ranks.h"

#include "tensor/system/text.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

bool ranks_elastic(void)
{
    return getenv("TANDEM_ELASTIC") != NULL && td_dist_is_launched();
}

static int rank_number(const char *name, int here)
{
    const char *text = ranks_elastic() && !td_dist_is_initialized() ? getenv(name) : NULL;
    return text != NULL ? atoi(text) : here;
}

int ranks_local(void)
{
    return rank_number("LOCAL_RANK", td_dist_local_rank());
}

int ranks_local_size(void)
{
    return rank_number("LOCAL_WORLD_SIZE", td_dist_local_world_size());
}

bool ranks_first(void)
{
    return rank_number("RANK", td_dist_rank()) == 0;
}

void ranks_begin(train_args *args)
{
    int size = ranks_local_size();
    printf("[init] == local rank: %d, global rank: %d ==\n", ranks_local(),
           rank_number("RANK", td_dist_rank()));
    fflush(stdout);
    if (args->workers > 0 && !train_args_find(args, "workers")->given) {
        args->workers = args->workers > size ? args->workers / size : 1;
    }
}

td_status ranks_sum(double *values, int count)
{
    return !td_dist_is_initialized() ? TD_OK : td_all_reduce_numbers(NULL, values, count);
}

td_status ranks_barrier(void)
{
    return td_dist_is_initialized() ? td_barrier(NULL) : TD_OK;
}

td_status ranks_agree(const char *what, const char *text)
{
    /* Below 2^32, so that sums are exact. */
    double hash = (uint32_t)td_hash_text(TD_HASH_BEGIN, text), sum = hash;
    TD_TRY(ranks_sum(&sum, 1));
    TD_CHECK(sum == hash * td_dist_world_size(), TD_E_MISMATCH,
             "the ranks have different %s: rank %d has '%s'", what, td_dist_rank(), text);
    return TD_OK;
}
