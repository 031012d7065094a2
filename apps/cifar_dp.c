/* Lesson 5: ResNet-18 on several devices of one process (the articles' "snmc_dp").
 *
 * Against one device (lesson 4, cifar_resnet18.c) one line is new: the model is wrapped into
 * td_data_parallel, which cuts each batch into as many pieces as there are devices and runs a
 * replica of the model on each. Batch 256 is that of all devices together. */
#include "apps/common/cifar_train.h"

#include <stdio.h>

static td_status train(cifar_run *r, int count)
{
    td_device devices[TD_MAX_DEVICES]; /* cpu:0, cpu:1, ...: they share the cores */
    for (int i = 0; i < count; i++) {
        devices[i] = (td_device){ TD_DEVICE_CPU, (unsigned char)i };
    }
    TD_TRY(cifar_begin(r));
    r->net = td_data_parallel(cifar_net(r), devices, count);
    r->loader = cifar_loader(r, td_random_sampler(NULL));
    return cifar_train(r);
}

int main(int argc, char **argv)
{
    cifar_run r = { 0 };
    int64_t devices = 2;
    cifar_run_options(&r, 0.01, 50);
    train_args_add(&r.args, (cli_option){ .name = "devices",
                                          .argument = "N",
                                          .help = "Devices that share the work",
                                          .kind = CLI_INT,
                                          .value = &devices,
                                          .low = 1,
                                          .high = TD_MAX_DEVICES });
    cli_parse(argc, argv, "Trains ResNet-18 on CIFAR-10, on several devices of one process.",
              r.args.options, r.args.option_count);

    td_status status = train(&r, (int)devices);
    cifar_end(&r);
    return status == TD_OK ? 0 : app_failed("cifar_dp");
}
