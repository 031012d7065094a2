/* The CIFAR-10 lessons, as far as they do not differ: options, data, model, and the loop. Every
 * rank runs it; rank 0 prints and saves. (cifar_resnet18.c is the same job on one device, in full.)
 *
 * All ranks use one seed. That gives them equal weights to begin with, and yet no two pictures
 * equal crops and flips: those are drawn by (seed, epoch, picture), whoever has the picture. */
#ifndef APPS_COMMON_CIFAR_TRAIN_H
#define APPS_COMMON_CIFAR_TRAIN_H

#include "apps/common/cifar_data.h"
#include "apps/common/metrics.h"
#include "apps/common/resume.h"
#include "apps/common/train_args.h"
#include "dist/dist.h"
#include "tandem.h"

typedef struct cifar_run {
    train_args args;
    int64_t limit, print_every;
    const char *stem, *trace;
    bool download, shard, auto_resume;
    cifar_data data;
    td_module *net;    /* made by the lesson */
    td_loader *loader; /* made by the lesson */
    td_optim *optim;
    metrics *log; /* rank 0's */
    train_state state;
    double epoch_began;
} cifar_run;

/* Sets the defaults and adds the options; the lesson adds its own and calls cli_parse. */
void cifar_run_options(cifar_run *r, double lr, int64_t print_every);

/* After td_dist_init, if there is one: greets, seeds, opens the data. */
td_status cifar_begin(cifar_run *r);

/* ResNet-18 on the run's device; NULL when memory is short. */
td_module *cifar_net(cifar_run *r);

/* A loader in the sampler's order, or NULL: out of memory, or so was the sampler. */
td_loader *cifar_loader(cifar_run *r, td_sampler *sampler);

/* Trains r->net on r->loader. Printed loss and accuracy are those of all ranks. With --save, rank 0
 * saves, and at the end all ranks load what it has saved. */
td_status cifar_train(cifar_run *r);

/* Before td_dist_destroy. */
void cifar_end(cifar_run *r);

#endif
