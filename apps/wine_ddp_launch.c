/* Lesson 4: the small network, started by somebody else.
 *
 * Against wine_ddp_multinode.c all counting is gone: the program neither starts processes nor knows
 * of hosts. Whoever starts it says in the environment who it is: tdrun by RANK, WORLD_SIZE,
 * MASTER_ADDR and MASTER_PORT, Slurm's srun and mpirun by variables of their own.
 *
 *   tdrun --nproc-per-node 2 wine_ddp_launch
 *   srun --ntasks 2 wine_ddp_launch                    (apps/slurm/wine.sbatch) */
#include "apps/common/wine.h"

static td_status lesson(train_run *r)
{
    TD_TRY(train_begin(r));
    r->net = train_ddp(r, wine_net(r));
    r->optim = wine_optim(r);
    r->loader =
        train_loader(r, td_distributed_sampler(.shuffle = true, .seed = (uint64_t)r->args.seed));
    return train_loop(r);
}

int main(int argc, char **argv)
{
    wine_run w;
    train_run *r = wine_options(&w, "wine_ddp_launch");
    wine_rank_options(r);
    cli_parse(argc, argv,
              "Trains a small network on the wine data, on several processes that tdrun, srun or "
              "mpirun starts.",
              r->args.options, r->args.option_count);
    return train_rank(r, NULL, lesson);
}
