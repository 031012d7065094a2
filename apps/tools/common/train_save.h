/* The training loop's checkpoints: when they are written, where, and by whom. */
#ifndef APPS_TOOLS_TRAIN_SAVE_H
#define APPS_TOOLS_TRAIN_SAVE_H

#include "apps/tools/common/train.h"

/* Before train_args_apply: --auto-resume takes the latest checkpoint if there is one. */
void train_find_latest(train_run *r);

/* Takes up the run of --resume, or begins a new one. */
td_status train_resume(train_run *r);

/* All ranks call these; all hold the same weights, so one of them writes. */
td_status train_save_latest(train_run *r);
/* At the end of an epoch: under `path`, if it is not empty, and as the latest one if that is due.
 */
td_status train_save_epoch(train_run *r, const char *path);
/* After a stop; says how to go on. */
td_status train_save_interrupted(train_run *r);

/* What the article does at the end: nobody may read before rank 0 has written. */
td_status train_load_on_all_ranks(train_run *r);

#endif
