/* SyncBatchNorm from inside. */
#ifndef TD_DIST_SYNC_BATCH_NORM_H
#define TD_DIST_SYNC_BATCH_NORM_H

#include "dist/dist.h"

/* Whether td_convert_sync_batch_norm has changed a module of the model. */
bool td_has_sync_batch_norm(td_module *model);

#endif
