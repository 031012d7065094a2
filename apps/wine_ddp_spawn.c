/* Lesson 2: the small network on several processes of one host.
 *
 * Against wine_single.c, four things are new, and all are in this file: the program starts
 * processes (td_spawn), they find each other (td_dist_init), each trains on its own part of the
 * data (td_distributed_sampler), and after each backward all have the mean of everybody's gradients
 * (td_ddp), so that their weights stay equal. The loop itself is as before. */
#include "apps/common/ranks.h"
#include "apps/common/wine.h"
#include "apps/common/wine_train.h"

#include <stdio.h>

typedef struct job {
    wine_run run;
    int64_t nprocs;
    char url[64]; /* where the ranks meet */
} job;

static td_status train(wine_run *r)
{
    TD_TRY(wine_begin(r));
    r->net = td_ddp(wine_net(), NULL);
    r->loader = wine_loader(r, td_distributed_sampler(&(td_distributed_options){
                                   .shuffle = true, .seed = (uint64_t)r->args.seed }));
    return wine_train(r);
}

/* One process of several. */
static int rank_main(int local_rank, void *arg)
{
    job *j = arg;
    td_status status = td_dist_init(&(td_dist_options){
        .init_method = j->url, .rank = local_rank, .world_size = (int)j->nprocs });
    if (status == TD_OK) {
        status = train(&j->run);
    }
    wine_end(&j->run);
    ranks_end(status);
    return status == TD_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    job j = { .nprocs = 2 };
    wine_options(&j.run);
    train_args *args = &j.run.args;
    train_args_add(args, (cli_option){ .name = "nprocs",
                                       .argument = "N",
                                       .help = "Processes to start",
                                       .kind = CLI_INT,
                                       .value = &j.nprocs,
                                       .low = 1,
                                       .high = 64 });
    cli_parse(argc, argv, "Trains a small network on the wine data, on several processes.",
              args->options, args->option_count);

    snprintf(j.url, sizeof(j.url), "tcp://127.0.0.1:%d", td_free_port());
    return td_spawn(rank_main, &j, (int)j.nprocs, NULL) == TD_OK ? 0 : app_failed("wine_ddp_spawn");
}
