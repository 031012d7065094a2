/* Lesson 2: the small network on several processes of one host.
 *
 * Against wine_single.c, four things are new, and all are in this file: the program starts
 * processes (train_spawn calls td_spawn), they find each other (train_rank calls td_dist_init),
 * each trains on its own part of the data (td_distributed_sampler), and after each backward all
 * have the mean of everybody's gradients (td_ddp), so that their weights stay equal. */
#include "apps/common/wine.h"

#include <stdio.h>

typedef struct job {
    wine_run wine;
    int64_t nprocs;
    char url[64]; /* where the ranks meet */
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

/* One process of several. */
static int rank_main(int local_rank, void *arg)
{
    job *j = arg;
    td_dist_options place = { .init_method = j->url,
                              .rank = local_rank,
                              .world_size = (int)j->nprocs };
    return train_rank(&j->wine.base, &place, lesson);
}

int main(int argc, char **argv)
{
    job j = { .nprocs = 2 };
    train_run *r = wine_options(&j.wine, "wine_ddp_spawn");
    wine_rank_options(r);
    train_args_add_count(&r->args, "nprocs", &j.nprocs, 1, 64, "Processes to start");
    cli_parse(argc, argv, "Trains a small network on the wine data, on several processes.",
              r->args.options, r->args.option_count);

    snprintf(j.url, sizeof(j.url), "tcp://127.0.0.1:%d", td_free_port());
    return train_spawn(r->app, rank_main, &j, j.nprocs);
}
