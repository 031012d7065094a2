/* Lesson 3: the small network on several hosts.
 *
 * Against wine_ddp_spawn.c one thing is new: a process's number on its host is no longer its number
 * among all. The program is started once on each host, with the host's own --node-rank:
 *
 *   host0$ wine_ddp_multinode --nodes 2 --node-rank 0 --dist-url tcp://host0:12355
 *   host1$ wine_ddp_multinode --nodes 2 --node-rank 1 --dist-url tcp://host0:12355 */
#include "apps/common/ranks.h"
#include "apps/common/wine.h"
#include "apps/common/wine_train.h"

typedef struct job {
    wine_run run;
    int64_t nodes, procs_per_node, node_rank;
    const char *url; /* where the ranks meet: a port on the first host */
} job;

static td_status train(wine_run *r)
{
    TD_TRY(wine_begin(r));
    r->net = td_ddp(wine_net(), NULL);
    r->loader = wine_loader(r, td_distributed_sampler(&(td_distributed_options){
                                   .shuffle = true, .seed = (uint64_t)r->args.seed }));
    return wine_train(r);
}

/* One process of several on this host. */
static int rank_main(int local_rank, void *arg)
{
    job *j = arg;
    int64_t global_rank = j->node_rank * j->procs_per_node + local_rank;
    int64_t world_size = j->nodes * j->procs_per_node;
    td_status status = td_dist_init(&(td_dist_options){
        .init_method = j->url, .rank = (int)global_rank, .world_size = (int)world_size });
    if (status == TD_OK) {
        status = train(&j->run);
    }
    wine_end(&j->run);
    ranks_end(status);
    return status == TD_OK ? 0 : 1;
}

static void add_count(train_args *args, const char *name, int64_t *value, int64_t low,
                      const char *help)
{
    train_args_add(args, (cli_option){ .name = name,
                                       .argument = "N",
                                       .help = help,
                                       .kind = CLI_INT,
                                       .value = value,
                                       .low = (double)low,
                                       .high = 1024 });
}

int main(int argc, char **argv)
{
    job j = { .nodes = 1, .procs_per_node = 2, .url = "tcp://127.0.0.1:12355" };
    wine_options(&j.run);
    train_args *args = &j.run.args;
    add_count(args, "nodes", &j.nodes, 1, "Hosts that take part");
    add_count(args, "procs-per-node", &j.procs_per_node, 1, "Processes on each host");
    add_count(args, "node-rank", &j.node_rank, 0, "This host's number, from 0");
    train_args_add(args, (cli_option){ .name = "dist-url",
                                       .argument = "URL",
                                       .help = "Where the ranks meet: a port on host 0",
                                       .kind = CLI_TEXT,
                                       .value = &j.url });
    cli_parse(argc, argv, "Trains a small network on the wine data, on several hosts.",
              args->options, args->option_count);

    return td_spawn(rank_main, &j, (int)j.procs_per_node, NULL) == TD_OK
               ? 0
               : app_failed("wine_ddp_multinode");
}
