/* Lesson 6: ResNet-18 on several devices of one process (the articles' "snmc_dp").
 *
 * Against cifar_single.c one line is new: the model is wrapped into td_data_parallel, which cuts
 * each batch into as many pieces as there are devices and runs a replica of the model on each.
 * Batch 256 is that of all devices together. */
#include "apps/common/cifar.h"

typedef struct job {
    cifar_run cifar;
    int64_t devices;
} job;

static td_status lesson(train_run *r)
{
    TD_TRY(train_begin(r));
    td_device devices[TD_MAX_DEVICES]; /* cpu:0, cpu:1, ..., which share the cores; or GPUs */
    int count = (int)((job *)r)->devices;
    for (int i = 0; i < count; i++) {
        devices[i] = (td_device){ r->args.device.type, (unsigned char)(r->args.device.index + i) };
    }
    r->net = td_data_parallel(cifar_net(r), devices, count);
    r->optim = cifar_optim(r);
    r->loader = train_loader(r, td_random_sampler(NULL));
    return train_loop(r);
}

int main(int argc, char **argv)
{
    job j = { .devices = 2 };
    train_run *r = cifar_options(&j.cifar, "cifar_dp", 0.01, 50);
    train_args_add_count(&r->args, "devices", &j.devices, 1, TD_MAX_DEVICES,
                         "Devices that share the work");
    cli_parse(argc, argv, "Trains ResNet-18 on CIFAR-10, on several devices of one process.",
              r->args.options, r->args.option_count);
    return train_alone(r, lesson);
}
