/* Lesson 7: the same under a launcher (the articles' "mnmc_ddp_launch").
 *
 * Against cifar_ddp_spawn.c: the program no longer starts processes, nor knows of hosts. Whoever
 * starts it says in the environment who it is (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
 * MASTER_PORT), and td_dist_init reads that:
 *
 *   tdrun --nproc-per-node 2 cifar_ddp_launch --epochs 5
 *
 * The launcher also starts the program again when a process has died, and --auto-resume then makes
 * it go on from its checkpoint instead of from the beginning:
 *
 *   tdrun --nproc-per-node 2 --max-restarts 3 cifar_ddp_launch --save model.st --auto-resume */
#include "apps/common/cifar_train.h"
#include "apps/common/ranks.h"

#include <stdio.h>

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

int main(int argc, char **argv)
{
    cifar_run r = { 0 };
    cifar_run_options(&r, 0.02, 25);
    cli_parse(argc, argv,
              "Trains ResNet-18 on CIFAR-10, on several processes that a launcher (tdrun) starts.",
              r.args.options, r.args.option_count);

    td_status status = td_dist_init(&(td_dist_options){ .init_method = "env://" });
    if (status == TD_OK) {
        status = train(&r);
    }
    int code = status == TD_OK ? 0 : app_failed("cifar_ddp_launch");
    cifar_end(&r);
    td_dist_destroy();
    return code;
}
