/* The NCCL engine: one communicator and one communication stream for a group and a GPU. */
#pragma once

#include "dist/comm/device_engine.h"
#include "dist/comm/engines/nccl/nccl_api.h"

typedef struct td_nccl_options {
    int rank, size;
    td_store *store;  /* the group's, for the unique id */
    const char *name; /* this engine's name in the store */
    td_device device;
    double timeout;
    /* Whether the group was broken meanwhile, which ends all waiting. NULL: it never is. */
    bool (*broken)(void *user);
    void *user;
} td_nccl_options;

/* Collective over the group's ranks: rank 0 makes the id and writes it into the store, and all
 * ranks join. Fails on all ranks within the time-out; if rank 0 has failed, with its reason. */
td_status td_nccl_engine_new(const td_nccl_api *api, const td_streams *streams,
                             const td_nccl_options *options, td_device_engine **engine);
