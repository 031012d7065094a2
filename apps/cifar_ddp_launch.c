/* Lesson 8: the same under a launcher (the articles' "mnmc_ddp_launch").
 *
 * Against cifar_ddp_spawn.c: the program no longer starts processes, nor knows of hosts. Whoever
 * starts it says in the environment who it is (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
 * MASTER_PORT), and td_dist_init reads that:
 *
 *   tdrun --nproc-per-node 2 cifar_ddp_launch --epochs 5
 *
 * The launcher also starts the program again when a process has died, and --auto-resume then makes
 * it go on from its latest checkpoint instead of from the beginning:
 *
 *   tdrun --nproc-per-node 2 --max-restarts 3 cifar_ddp_launch --save model.st --auto-resume */
#include "apps/common/cifar.h"

static td_status lesson(train_run *r)
{
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
    train_run *r = cifar_options(&c, "cifar_ddp_launch", 0.02, 25);
    train_args_rank_options(&r->args);
    cli_parse(argc, argv,
              "Trains ResNet-18 on CIFAR-10, on several processes that a launcher (tdrun) starts.",
              r->args.options, r->args.option_count);
    return train_rank(r, &(td_dist_options){ .init_method = "env://" }, lesson);
}
