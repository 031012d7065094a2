/* cifar_resnet18, however it is started: data, model, optimizer, options, and what it prints.
 *
 * All ranks use one seed. That gives them equal weights to begin with, and yet no two pictures
 * equal crops and flips: those are drawn by (seed, epoch, picture), whoever has the picture. */
#ifndef APPS_TOOLS_CIFAR_H
#define APPS_TOOLS_CIFAR_H

#include "apps/tools/common/cifar_data.h"
#include "apps/tools/common/train.h"

typedef struct cifar_run {
    train_run base; /* first: a train_run * of this job is a cifar_run * */
    int64_t limit, print_every;
    const char *stem;
    bool download;
    cifar_data data;
} cifar_run;

/* Sets the defaults and adds the options; the program adds its own and calls cli_parse_rest. */
train_run *cifar_options(cifar_run *c, const char *app, double lr, int64_t print_every);

/* ResNet-18 on the run's device; NULL when memory is short. */
td_module *cifar_net(const train_run *r);

/* SGD with momentum .9, Nesterov, weight decay 1e-4; NULL if there is no r->net. */
td_optim *cifar_optim(const train_run *r);

#endif
