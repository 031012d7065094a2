/* Lesson 7: ResNet-18 on several processes of one or more hosts (the articles' "mnmc_ddp_mp").
 *
 * Against cifar_dp.c: every device has a process of its own, which takes batches of 256 from its
 * own part of the data. With one process for each device nothing is copied to replicas, and
 * gradients travel while backward still runs: the last lines of the output say how much of that was
 * hidden. The joined batch is larger, hence the larger learning rate. */
#include "apps/common/cifar.h"

#include <stdio.h>

typedef struct job {
    cifar_run cifar;
    int64_t nodes, nprocs, node_rank;
    const char *url; /* where the ranks meet */
} job;

static td_status lesson(train_run *r)
{
    TD_TRY(train_begin(r));
    r->net = train_ddp(r, cifar_net(r));
    r->optim = cifar_optim(r);
    r->loader =
        train_loader(r, td_distributed_sampler(.shuffle = true, .seed = (uint64_t)r->args.seed));
    return train_loop(r);
}

/* One process of several on this host. */
static int rank_main(int local_rank, void *arg)
{
    job *j = arg;
    td_dist_options place = { .init_method = j->url,
                              .rank = (int)(j->node_rank * j->nprocs + local_rank),
                              .world_size = (int)(j->nodes * j->nprocs) };
    return train_rank(&j->cifar.base, &place, lesson);
}

int main(int argc, char **argv)
{
    char free_place[64];
    job j = { .nodes = 1, .nprocs = 2 };
    train_run *r = cifar_options(&j.cifar, "cifar_ddp_spawn", 0.02, 25);
    train_args *args = &r->args;
    train_args_rank_options(args);
    train_args_add_count(args, "nodes", &j.nodes, 1, 1024, "Hosts that take part");
    train_args_add_count(args, "nprocs", &j.nprocs, 1, 1024, "Processes to start on each host");
    train_args_add_count(args, "node-rank", &j.node_rank, 0, 1023, "This host's number, from 0");
    train_args_add(args, (cli_option){ .name = "dist-url",
                                       .argument = "URL",
                                       .help = "Where the ranks meet: tcp://HOST:PORT on host 0; "
                                               "needed with several hosts",
                                       .kind = CLI_TEXT,
                                       .value = &j.url });
    cli_parse(argc, argv, "Trains ResNet-18 on CIFAR-10, on several processes that it starts.",
              args->options, args->option_count);

    if (!train_node_fits(r->app, j.node_rank, j.nodes)) {
        return 1;
    }
    if (j.url == NULL && j.nodes > 1) {
        fprintf(stderr,
                "cifar_ddp_spawn: --nodes %d needs --dist-url tcp://HOST:PORT, the same on all "
                "hosts\n",
                (int)j.nodes);
        return 1;
    }
    if (j.url == NULL) {
        snprintf(free_place, sizeof(free_place), "tcp://127.0.0.1:%d", td_free_port());
        j.url = free_place;
    }
    return train_spawn(r->app, rank_main, &j, j.nprocs);
}
