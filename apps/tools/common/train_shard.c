/* --shard: what several processes share instead of each keeping all of it. */
#include "apps/tools/common/train.h"

#include <string.h>

void train_shard_option(train_args *args)
{
    args->shard = "none";
    cli_option *o = train_args_text(
        args, "shard", "WHAT", &args->shard,
        "What the processes share instead of each keeping all of it: none, or optimizer (its "
        "state: ZeRO-1; the weights are those of none, bit for bit)");
    o->choices = "none|optimizer";
    o->resume = CLI_RESTORE;
    o->unwritten = "none";
}

td_shard train_shard_of(const train_args *args)
{
    bool optimizer = args->shard != NULL && strcmp(args->shard, "optimizer") == 0;
    return optimizer ? TD_SHARD_OPTIMIZER : TD_SHARD_NONE;
}

bool train_shards(const train_run *r)
{
    return r->ddp.shard != TD_SHARD_NONE && td_is_ddp(r->net);
}

void train_shard_tell(const train_run *r)
{
    if (train_shards(r)) {
        double mib = (double)td_ddp_shard_stats(r->net).state / 1048576.0;
        td_printf_rank0("the optimizer's state is cut into %d windows: %.1f MiB a process\n",
                        td_dist_world_size(), mib);
    } else if (r->ddp.shard != TD_SHARD_NONE) {
        td_printf_rank0("--shard: there is one process, and nothing is shared\n");
    }
}
