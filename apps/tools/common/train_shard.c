/* --shard: what several processes share instead of each keeping all of it. */
#include "apps/tools/common/ranks.h"
#include "apps/tools/common/train.h"

#include <string.h>

static const char *const words[] = { "none", "optimizer", "gradients", "parameters" };

void train_shard_option(train_args *args)
{
    args->shard = "none";
    cli_option *o = train_args_text(
        args, "shard", "WHAT", &args->shard,
        "What the processes share instead of each keeping all of it: none; optimizer (its state: "
        "ZeRO-1); gradients (too: ZeRO-2); parameters (too: ZeRO-3, FSDP). The weights are those "
        "of none, bit for bit");
    o->choices = "none|optimizer|gradients|parameters";
    o->resume = CLI_RESTORE;
    o->unwritten = "none";
}

td_shard train_shard_of(const train_args *args)
{
    int way = TD_SHARD_PARAMETERS;
    while (way > 0 && (args->shard == NULL || strcmp(args->shard, words[way]) != 0)) {
        way--;
    }
    return (td_shard)way;
}

bool train_shards(const train_run *r)
{
    return r->ddp.shard != TD_SHARD_NONE && td_is_ddp(r->net);
}

bool train_saves_model(const train_run *r)
{
    return ranks_first() || (train_shards(r) && r->ddp.shard == TD_SHARD_PARAMETERS);
}

void train_shard_tell(const train_run *r)
{
    if (train_shards(r)) {
        td_shard_stats s = td_ddp_shard_stats(r->net);
        double mib = (double)(s.state + s.gradients * (r->ddp.shard >= TD_SHARD_GRADIENTS) +
                              s.values * (r->ddp.shard >= TD_SHARD_PARAMETERS)) /
                     1048576.0;
        static const char *const shared[] = { "", "the optimizer's state is",
                                              "the optimizer's state and gradients are",
                                              "the optimizer's state, gradients and values are" };
        td_printf_rank0("%s cut into %d windows: %.1f MiB a process\n", shared[r->ddp.shard],
                        td_dist_world_size(), mib);
    } else if (r->ddp.shard != TD_SHARD_NONE) {
        td_printf_rank0("--shard: there is one process, and nothing is shared\n");
    }
}
