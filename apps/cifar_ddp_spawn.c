/* Lesson 6: ResNet-18 on several processes of one or more hosts (the articles' "mnmc_ddp_mp").
 *
 * Against cifar_dp.c: every device has a process of its own, which td_spawn starts, and which takes
 * batches of 256 from its own part of the data. With one process for each device nothing is copied
 * to replicas, and gradients travel while backward still runs: the last lines of the output say how
 * much of that was hidden. The joined batch is larger, hence the larger learning rate. */
#include "apps/common/cifar_train.h"
#include "apps/common/ranks.h"

#include <stdio.h>

typedef struct job {
    cifar_run run;
    int64_t nodes, nprocs, node_rank;
    const char *url; /* where the ranks meet */
} job;

static td_status train(cifar_run *r)
{
    TD_TRY(cifar_begin(r));
    r->net = td_ddp(cifar_net(r), NULL);
    r->loader = cifar_loader(r, td_distributed_sampler(&(td_distributed_options){
                                    .shuffle = true, .seed = (uint64_t)r->args.seed }));
    TD_TRY(cifar_train(r));
    if (ranks_first()) {
        td_ddp_print_figures(r->net, stdout);
    }
    return TD_OK;
}

/* One process of several on this host. */
static int rank_main(int local_rank, void *arg)
{
    job *j = arg;
    td_status status =
        td_dist_init(&(td_dist_options){ .init_method = j->url,
                                         .rank = (int)(j->node_rank * j->nprocs + local_rank),
                                         .world_size = (int)(j->nodes * j->nprocs) });
    if (status == TD_OK) {
        status = train(&j->run);
    }
    cifar_end(&j->run);
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
    char free_place[64];
    job j = { .nodes = 1, .nprocs = 2 };
    cifar_run_options(&j.run, 0.02, 25);
    train_args *args = &j.run.args;
    add_count(args, "nodes", &j.nodes, 1, "Hosts that take part");
    add_count(args, "nprocs", &j.nprocs, 1, "Processes to start on each host");
    add_count(args, "node-rank", &j.node_rank, 0, "This host's number, from 0");
    train_args_add(args, (cli_option){ .name = "dist-url",
                                       .argument = "URL",
                                       .help = "Where the ranks meet: tcp://HOST:PORT on host 0; "
                                               "needed with several hosts",
                                       .kind = CLI_TEXT,
                                       .value = &j.url });
    cli_parse(argc, argv, "Trains ResNet-18 on CIFAR-10, on several processes that it starts.",
              args->options, args->option_count);

    if (j.url == NULL && j.nodes == 1) {
        snprintf(free_place, sizeof(free_place), "tcp://127.0.0.1:%d", td_free_port());
        j.url = free_place;
    }
    if (j.url == NULL) {
        fprintf(stderr,
                "cifar_ddp_spawn: --nodes %d needs --dist-url tcp://HOST:PORT, the same on "
                "all hosts\n",
                (int)j.nodes);
        return 1;
    }
    return td_spawn(rank_main, &j, (int)j.nprocs, NULL) == TD_OK ? 0
                                                                 : app_failed("cifar_ddp_spawn");
}
