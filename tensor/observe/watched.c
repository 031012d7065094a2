/* The watched tables, made from tensor/kernels/kernels.def: each kernel says to the watchers what
 * it is and how much work it was, and calls the device's. */

#include "tensor/backend.h"
#include "tensor/observe/timed.h"

#include <pthread.h>

/* Bytes of tensors that are read or written once. */
#define B(t) td_cost_bytes(t)
/* ... and of one that may be added to. */
#define BA(t, accumulate) (((accumulate) ? 2.0 : 1.0) * td_cost_bytes(t))

/* A CPU's kernels: over when they return. */
#define TD_KERNEL(TYPE, NAME, PARAMETERS, ARGUMENTS, COST)                                         \
    static TYPE watched_##NAME PARAMETERS                                                          \
    {                                                                                              \
        double begin = td_watch_enter(#NAME);                                                      \
        td_cpu_kernels()->NAME ARGUMENTS;                                                          \
        td_watch_leave(#NAME, begin, COST);                                                        \
    }
#define TD_KERNEL_VALUE(TYPE, NAME, PARAMETERS, ARGUMENTS, COST)                                   \
    static TYPE watched_##NAME PARAMETERS                                                          \
    {                                                                                              \
        double begin = td_watch_enter(#NAME);                                                      \
        TYPE value = td_cpu_kernels()->NAME ARGUMENTS;                                             \
        td_watch_leave(#NAME, begin, COST);                                                        \
        return value;                                                                              \
    }
#define TD_KERNEL_GPU(TYPE, NAME, PARAMETERS, ARGUMENTS, COST)
#include "tensor/kernels/kernels.def"

/* A GPU's: between two events. */
#define TD_KERNEL(TYPE, NAME, PARAMETERS, ARGUMENTS, COST)                                         \
    static TYPE timed_##NAME PARAMETERS                                                            \
    {                                                                                              \
        td_timed_enter(#NAME)->NAME ARGUMENTS;                                                     \
        td_timed_leave(COST);                                                                      \
    }
#define TD_KERNEL_VALUE(TYPE, NAME, PARAMETERS, ARGUMENTS, COST)                                   \
    static TYPE timed_##NAME PARAMETERS                                                            \
    {                                                                                              \
        TYPE value = td_timed_enter(#NAME)->NAME ARGUMENTS;                                        \
        td_timed_leave(COST);                                                                      \
        return value;                                                                              \
    }
#define TD_KERNEL_CPU(TYPE, NAME, PARAMETERS, ARGUMENTS, COST)
#include "tensor/kernels/kernels.def"

static td_kernels watched, timed;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_tables(void)
{
    const td_backend *gpu = td_backend_of(TD_CUDA);
    watched = *td_cpu_kernels();
#define TD_KERNEL(TYPE, NAME, PARAMETERS, ARGUMENTS, COST) watched.NAME = watched_##NAME;
#define TD_KERNEL_GPU(TYPE, NAME, PARAMETERS, ARGUMENTS, COST)
#include "tensor/kernels/kernels.def"
    if (gpu != NULL) {
        timed = *gpu->kernels();
#define TD_KERNEL(TYPE, NAME, PARAMETERS, ARGUMENTS, COST) timed.NAME = timed_##NAME;
#define TD_KERNEL_CPU(TYPE, NAME, PARAMETERS, ARGUMENTS, COST)
#include "tensor/kernels/kernels.def"
    }
}

const td_kernels *td_watched_kernels(void)
{
    pthread_once(&once, make_tables);
    return &watched;
}

const td_kernels *td_timed_table(void)
{
    pthread_once(&once, make_tables);
    return &timed;
}
