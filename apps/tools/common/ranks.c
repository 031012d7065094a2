/* What a program does in each rank: begins the job, and combines numbers of all ranks. */
#include "apps/tools/common/ranks.h"

#include "tensor/system/text.h"

#include <stdint.h>
#include <stdio.h>

void ranks_begin(train_args *args)
{
    int local = td_dist_local_world_size();
    printf("[init] == local rank: %d, global rank: %d ==\n", td_dist_local_rank(), td_dist_rank());
    fflush(stdout);
    if (args->workers > 0 && !train_args_find(args, "workers")->given) {
        args->workers = args->workers > local ? args->workers / local : 1;
    }
}

bool ranks_first(void)
{
    return td_dist_rank() == 0;
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
