/* Collectives on a GPU's memory through the host (staged.c). Not for users. */
#ifndef TD_DIST_STAGED_H
#define TD_DIST_STAGED_H

#include "dist/device_engine.h"

/* Over the group's CPU engine, which must outlive it. NULL: no memory. */
td_device_engine *td_staged_engine_new(td_group *group, td_device device);

#endif
