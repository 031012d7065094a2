/* Lesson 3: the small network on several hosts.
 *
 * Against wine_ddp_spawn.c one thing is new: a process's number on its host is no longer its number
 * among all. The program is started once on each host, with the host's own --node-rank:
 *
 *   host0$ wine_ddp_multinode --nodes 2 --node-rank 0 --dist-url tcp://host0:12355
 *   host1$ wine_ddp_multinode --nodes 2 --node-rank 1 --dist-url tcp://host0:12355 */
#include "apps/common/wine.h"

typedef struct job {
    wine_run wine;
    int64_t nodes, procs_per_node, node_rank;
    const char *url; /* where the ranks meet: a port on the first host */
} job;

static td_status lesson(train_run *r)
{
    TD_TRY(train_begin(r));
    r->net = train_ddp(r, wine_net(r));
    r->optim = wine_optim(r);
    r->loader =
        train_loader(r, td_distributed_sampler(.shuffle = true, .seed = (uint64_t)r->args.seed));
    return train_loop(r);
}

/* One process of several on this host. */
static int rank_main(int local_rank, void *arg)
{
    job *j = arg;
    int64_t global_rank = j->node_rank * j->procs_per_node + local_rank;
    int64_t world_size = j->nodes * j->procs_per_node;
    td_dist_options place = { .init_method = j->url,
                              .rank = (int)global_rank,
                              .world_size = (int)world_size };
    return train_rank(&j->wine.base, &place, lesson);
}

int main(int argc, char **argv)
{
    job j = { .nodes = 1, .procs_per_node = 2, .url = "tcp://127.0.0.1:12355" };
    train_run *r = wine_options(&j.wine, "wine_ddp_multinode");
    wine_rank_options(r);
    train_args *args = &r->args;
    train_args_add_count(args, "nodes", &j.nodes, 1, 1024, "Hosts that take part");
    train_args_add_count(args, "procs-per-node", &j.procs_per_node, 1, 1024,
                         "Processes on each host");
    train_args_add_count(args, "node-rank", &j.node_rank, 0, 1023, "This host's number, from 0");
    train_args_add(args, (cli_option){ .name = "dist-url",
                                       .argument = "URL",
                                       .help = "Where the ranks meet: a port on host 0",
                                       .kind = CLI_TEXT,
                                       .value = &j.url });
    cli_parse(argc, argv, "Trains a small network on the wine data, on several hosts.",
              args->options, args->option_count);
    if (!train_node_fits(r->app, j.node_rank, j.nodes)) {
        return 1;
    }
    return train_spawn(r->app, rank_main, &j, j.procs_per_node);
}
