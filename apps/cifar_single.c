/* Lesson 5: ResNet-18 on pictures, on one device (the articles' "snsc").
 *
 * Against wine_single.c the data and the model are others: pictures, changed at random each time
 * they are seen; running statistics, so that training and testing differ; SGD with momentum; and
 * runs of minutes or hours, for which the loop shows progress and keeps checkpoints. */
#include "apps/common/cifar.h"

static td_status lesson(train_run *r)
{
    TD_TRY(train_begin(r));
    r->net = cifar_net(r);
    r->optim = cifar_optim(r);
    r->loader = train_loader(r, td_random_sampler(NULL));
    return train_loop(r);
}

int main(int argc, char **argv)
{
    cifar_run c;
    train_run *r = cifar_options(&c, "cifar_single", 0.01, 50);
    cli_parse(argc, argv, "Trains ResNet-18 on CIFAR-10, on one device.", r->args.options,
              r->args.option_count);
    return train_alone(r, lesson);
}
