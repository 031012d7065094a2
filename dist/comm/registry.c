/* Which engines there are, and what starts ranks in place of td_spawn's processes. */
#include "dist/comm/engine.h"

#include <stdlib.h>
#include <string.h>

#define SIM td_sim_spawn

td_spawn_way td_spawn_way_find(void)
{
    return getenv("TANDEM_SIM") != NULL ? SIM : NULL;
}

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
