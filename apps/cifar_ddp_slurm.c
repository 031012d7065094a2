/* Lesson 8: the same in a cluster (the articles' "mnmc_ddp_slurm").
 *
 * Against cifar_ddp_launch.c: Slurm starts the processes, and td_dist_init finds them in Slurm's
 * environment (SLURM_PROCID, SLURM_NTASKS, the first host of SLURM_JOB_NODELIST). How many there
 * will be is the cluster's affair, so the learning rate grows with them: .01 for each. See
 * apps/slurm/cifar.sbatch. */
#include "apps/common/cifar_train.h"
#include "apps/common/ranks.h"

#include <stdio.h>

static td_status train(cifar_run *r)
{
    r->args.lr *= td_dist_world_size(); /* before a checkpoint says what it was */
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

int main(int argc, char **argv)
{
    cifar_run r = { 0 };
    cifar_run_options(&r, 0.01, 25);
    cli_parse(
        argc, argv,
        "Trains ResNet-18 on CIFAR-10, on several processes that Slurm (srun) starts. --lr is "
        "that of one process; it is multiplied by their number.",
        r.args.options, r.args.option_count);

    td_status status = td_dist_init(NULL);
    if (status == TD_OK) {
        status = train(&r);
    }
    int code = status == TD_OK ? 0 : app_failed("cifar_ddp_slurm");
    cifar_end(&r);
    td_dist_destroy();
    return code;
}
