/* The wine lessons with several processes, as far as they do not differ: options, data, and the
 * loop that wine_single.c shows in full. Every rank runs it; rank 0 prints and saves. */
#ifndef APPS_COMMON_WINE_TRAIN_H
#define APPS_COMMON_WINE_TRAIN_H

#include "apps/common/metrics.h"
#include "apps/common/resume.h"
#include "apps/common/train_args.h"
#include "dist/dist.h"
#include "tandem.h"

typedef struct wine_run {
    train_args args;
    bool shard;        /* print the loss of rank 0's own samples, as the article does */
    bool no_set_epoch; /* every epoch in the order of the first, as the article does */
    td_dataset *train, *test;
    td_module *net;    /* made by the lesson */
    td_loader *loader; /* made by the lesson */
    td_optim *optim;
    metrics *log;
    train_state state;
} wine_run;

/* Sets the defaults and adds the options; the lesson adds its own and calls cli_parse. */
void wine_options(wine_run *r);

/* After td_dist_init: greets, seeds, opens the data. */
td_status wine_begin(wine_run *r);

/* A loader of this rank's batches; NULL if the sampler is, or memory is short. */
td_loader *wine_loader(wine_run *r, td_sampler *sampler);

/* Trains r->net on r->loader and tests it; the printed loss is the mean over all ranks. */
td_status wine_train(wine_run *r);

/* Before td_dist_destroy. */
void wine_end(wine_run *r);

#endif
