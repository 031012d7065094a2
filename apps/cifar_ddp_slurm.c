/* Lesson 9: the same in a cluster (the articles' "mnmc_ddp_slurm").
 *
 * Against cifar_ddp_launch.c: Slurm starts the processes, and td_dist_init finds them in Slurm's
 * environment (SLURM_PROCID, SLURM_NTASKS, the first host of SLURM_JOB_NODELIST). How many there
 * will be is the cluster's affair, so the learning rate grows with them: .01 for each. See
 * apps/slurm/cifar.sbatch. */
#include "apps/common/cifar.h"

static td_status lesson(train_run *r)
{
    r->args.lr *= td_dist_world_size(); /* before a checkpoint says what it was */
    TD_TRY(train_begin(r));
    r->net = train_ddp(r, cifar_net(r));
    r->optim = cifar_optim(r);
    r->loader =
        train_loader(r, td_distributed_sampler(.shuffle = true, .seed = (uint64_t)r->args.seed));
    return train_loop(r);
}

int main(int argc, char **argv)
{
    cifar_run c;
    train_run *r = cifar_options(&c, "cifar_ddp_slurm", 0.01, 25);
    train_args_rank_options(&r->args);
    cli_parse(
        argc, argv,
        "Trains ResNet-18 on CIFAR-10, on several processes that Slurm (srun) starts. --lr is "
        "that of one process; it is multiplied by their number.",
        r->args.options, r->args.option_count);
    return train_rank(r, NULL, lesson);
}
