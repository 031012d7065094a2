/* The main job: ResNet-18 on CIFAR-10 by every way of the lessons, chosen by options and
 * environment.
 *
 *   cifar_resnet18                             one device (lesson 5)
 *   cifar_resnet18 --dp 2                      DataParallel: two devices of one process (lesson 6)
 *   cifar_resnet18 --spawn 2                   two processes that it starts (lesson 7)
 *   tdrun --nproc-per-node 2 cifar_resnet18    the launcher's processes (lesson 8)
 *   srun --ntasks 2 cifar_resnet18             Slurm's (lesson 9)
 *   mpirun -n 2 cifar_resnet18                 MPI's */
#include "apps/tools/common/cifar.h"

#include <stdio.h>

enum { PRINT_EVERY_ALONE = 50, PRINT_EVERY_TOGETHER = 25 /* steps, as in the articles */ };

typedef struct job {
    cifar_run cifar;
    int64_t dp, spawn;
} job;

static td_module *wrapped_net(const train_run *r)
{
    td_device devices[TD_MAX_DEVICES];
    int count = (int)((const job *)r)->dp;
    for (int i = 0; i < count; i++) {
        devices[i] = (td_device){ r->args.device.type, (unsigned char)(r->args.device.index + i) };
    }
    return count > 0                  ? td_data_parallel(cifar_net(r), devices, count)
           : td_dist_is_initialized() ? train_ddp(r, cifar_net(r))
                                      : cifar_net(r);
}

static td_status train(train_run *r)
{
    if (td_dist_is_initialized() && !train_args_given(&r->args, "print-every")) {
        ((job *)r)->cifar.print_every = PRINT_EVERY_TOGETHER;
    }
    if (!train_args_given(&r->args, "lr")) {
        r->args.lr *= td_dist_world_size();
    }
    TD_TRY(train_mesh(r));
    TD_TRY(train_begin(r));
    r->net = wrapped_net(r);
    r->optim = cifar_optim(r);
    r->loader = train_loader(r, td_dist_is_initialized() ? train_sampler(r) : NULL);
    return train_loop(r);
}

static int rank_main(int local_rank, void *arg)
{
    (void)local_rank;
    job *j = arg;
    return train_main(&j->cifar.base, train);
}

static int run(job *j)
{
    train_run *r = &j->cifar.base;
    bool started = td_dist_is_launched();
    if ((j->dp > 0) + (j->spawn > 0) + started > 1) {
        fprintf(stderr,
                "%s: one way at a time: --dp, --spawn, or processes that tdrun, srun or mpirun has "
                "started%s\n",
                r->app, started ? " (the environment says that this is one of those)" : "");
        return 1;
    }
    if (j->spawn > 0) {
        int signal;
        td_status status = td_spawn(rank_main, j, (int)j->spawn, .stopped_by = &signal);
        return signal != 0 ? 128 + signal : status != TD_OK ? app_failed(r->app) : 0;
    }
    return train_main(r, train);
}

int main(int argc, char **argv)
{
    job j = { 0 };
    train_run *r = cifar_options(&j.cifar, "cifar_resnet18", 0.01, PRINT_EVERY_ALONE);
    train_args_rank_options(&r->args);
    const cli_option table[] = {
        cli_int("dp", &j.dp, 0, TD_MAX_DEVICES,
                "DataParallel: so many devices of this process; 0: one, without it"),
        cli_int("spawn", &j.spawn, 0, 1024,
                "DistributedDataParallel: start so many processes here; 0: none"),
        { 0 }
    };
    train_args_add(&r->args, table);
    cli_parse_rest(
        argc, argv,
        "Trains ResNet-18 on CIFAR-10, and tests it: on one device, or by --dp, by --spawn, or "
        "as one of the processes that tdrun, srun or mpirun has started. Unless --lr is "
        "given, the learning rate is multiplied by the number of processes.",
        r->args.options, r->args.option_count, NULL);
    return run(&j);
}
