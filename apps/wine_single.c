/* Lesson 1: a small network on one device.
 *
 * Three kinds of wine are told apart by 13 measurements (178 wines; 142 to train on, 36 to test).
 * Training needs data, a model, an optimizer, and the loop that takes batches, computes the loss,
 * runs backward, and steps. The model and the data are in common/wine.c, the loop in
 * common/train.c: read train_step and run_epoch there before you go on. The lessons that follow
 * change one thing each, and it is always in the lesson's own file. */
#include "apps/common/wine.h"

static td_status lesson(train_run *r)
{
    TD_TRY(train_begin(r));
    r->net = wine_net(r);
    r->optim = wine_optim(r);
    r->loader = train_loader(r, td_random_sampler(NULL));
    return train_loop(r);
}

int main(int argc, char **argv)
{
    wine_run w;
    train_run *r = wine_options(&w, "wine_single");
    cli_parse(argc, argv, "Trains a small network on the wine data, on one device.",
              r->args.options, r->args.option_count);
    return train_alone(r, lesson);
}
