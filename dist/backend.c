/* Which engines there are. */
#include "dist/backend.h"

#include "dist/gloo.h"

#include <string.h>

const td_backend *td_backend_find(const char *name)
{
    if (strcmp(name, "shm") == 0) {
        return &td_shm_backend;
    }
    if (strcmp(name, "gloo") == 0) {
        return td_gloo_backend_find();
    }
    if (strcmp(name, "mpi") == 0) {
        td_fail(TD_E_UNSUPPORTED, "backend mpi is not in this build: install libopenmpi-dev (or "
                                  "your cluster's MPI), then `make`; on one host use shm");
    } else if (strcmp(name, "nccl") == 0) {
        td_fail(TD_E_UNSUPPORTED, "backend nccl comes with CUDA, and this build has none; on CPUs "
                                  "use shm or gloo");
    } else {
        td_fail(TD_E_ARG, "there is no backend '%s'; there are shm, gloo, mpi and nccl", name);
    }
    return NULL;
}
