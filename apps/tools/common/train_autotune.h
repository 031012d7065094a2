/* --autotune: algorithms chosen by timing after a run's first step (tensor/autotune.h), the same on
 * all ranks, and kept in checkpoints. */
#ifndef APPS_TOOLS_TRAIN_AUTOTUNE_H
#define APPS_TOOLS_TRAIN_AUTOTUNE_H

#include "apps/tools/common/train.h"

/* After each batch: behind the first one all ranks make their choices, and rank 0 says how many. */
td_status train_autotune_after_step(train_run *r);

/* Takes the choices of the checkpoint that the run goes on from, if it has some: none are then made
 * here, so that the run equals one that was not stopped. */
td_status train_autotune_resume(train_run *r);

#endif
