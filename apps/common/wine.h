/* The wine lessons, as far as they do not differ: data, model, optimizer, and what they print. */
#ifndef APPS_COMMON_WINE_H
#define APPS_COMMON_WINE_H

#include "apps/common/train.h"

typedef struct wine_run {
    train_run base; /* first: a train_run * of a wine lesson is a wine_run * */
    td_dataset *train, *test;
} wine_run;

/* Sets the defaults and adds the options; the lesson adds its own and calls cli_parse. */
train_run *wine_options(wine_run *w, const char *app);
/* Those of the lessons with several processes. */
void wine_rank_options(train_run *r);

/* Linear(13, 64) - ReLU - Linear(64, 3): 1,091 parameters, drawn first for fc1, then for fc2. */
td_module *wine_net(const train_run *r);

/* Adam; NULL if there is no r->net. */
td_optim *wine_optim(const train_run *r);

#endif
