/* The NCCL engine: one communicator and one communication stream for a group and a GPU. */
#ifndef TD_DIST_NCCL_NCCL_H
#define TD_DIST_NCCL_NCCL_H

#include "dist/device_engine.h"
#include "dist/nccl/nccl_api.h"

typedef struct td_nccl_options {
    int rank, size;
    td_store *store;  /* of the group, for the unique id */
    const char *name; /* of this engine in the store */
    td_device device;
    double timeout;
    /* Whether somebody else has broken the group meanwhile: then waiting ends. NULL: nobody. */
    bool (*broken)(void *user);
    void *user;
} td_nccl_options;

/* Collective over the group's ranks: rank 0 makes the id, the store carries it, all join. Fails on
 * every rank within the time-out, with rank 0's reason where that is it. */
td_status td_nccl_engine_new(const td_nccl_api *api, const td_streams *streams,
                             const td_nccl_options *options, td_device_engine **engine);

#endif
