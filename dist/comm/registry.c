/* Which engines there are. */
#include "dist/comm/engine.h"

#include <string.h>

const td_engine_type *td_engine_find(const char *name)
{
    if (strcmp(name, "shm") == 0) {
        return &td_shm_engine;
    }
    if (strcmp(name, "gloo") == 0 || strcmp(name, "mpi") == 0) {
        return td_p2p_engine_find(name);
    }
    if (strcmp(name, "nccl") == 0) {
        td_fail(TD_E_UNSUPPORTED,
                "nccl moves GPUs' memory, beside one of shm (one host), gloo or mpi (several) for "
                "the CPUs'; td_dist_init takes both together");
    } else {
        td_fail(TD_E_ARG, "there is no backend '%s'; there are shm, gloo, mpi and nccl", name);
    }
    return NULL;
}
