/* Devices: where a tensor's memory lies and its kernels run. They are uniform: `cpu` is `cpu:0`;
 * several CPU devices may be asked for on one machine (each with a thread pool of its own), so that
 * everything written for several devices runs and is tested without a GPU. */
#ifndef TD_TENSOR_DEVICE_H
#define TD_TENSOR_DEVICE_H

#include "tensor/error.h"
#include "tensor/extern_c.h"

#include <stdbool.h>

TD_BEGIN_C

enum { TD_MAX_DEVICES = 16 }; /* per type */

typedef enum td_device_type { TD_DEVICE_CPU = 0, TD_DEVICE_CUDA = 1 } td_device_type;

typedef struct td_device {
    unsigned char type;  /* td_device_type */
    unsigned char index; /* 0 .. TD_MAX_DEVICES-1 */
} td_device;

#define TD_CPU ((td_device){ TD_DEVICE_CPU, 0 })
#define TD_CPU_N(n) ((td_device){ TD_DEVICE_CPU, (unsigned char)(n) })
#define TD_CUDA ((td_device){ TD_DEVICE_CUDA, 0 })
#define TD_CUDA_N(n) ((td_device){ TD_DEVICE_CUDA, (unsigned char)(n) })

static inline bool td_same_device(td_device a, td_device b)
{
    return a.type == b.type && a.index == b.index;
}

/* Reads "cpu", "cpu:3" or "cuda:0", and opens the device. TD_E_ARG: not of that form, index too
 * large. TD_E_UNSUPPORTED: a device that this build has no kernels for. TD_E_DEVICE: it cannot be
 * used here; the message says what is missing. */
td_status td_device_parse(const char *text, td_device *device);

/* The device that the environment's TANDEM_DEVICE names, as td_device_parse reads it; cpu:0 if it
 * is not set. "cuda" without a number is the GPU of the process's local rank, so call it after
 * td_dist_init. A device that cannot be used ends the program: td_die. */
td_device td_default_device(void);
/* The local rank, told by td_dist_init; td_dist_destroy sets 0. */
void td_set_local_rank(int local_rank);

/* "cpu:0". The string is static. */
const char *td_device_name(td_device device);

/* "cpu:0, 4 threads" or "cuda:0, NVIDIA H200". In a buffer of the
 * calling thread's, until the next call. */
const char *td_device_describe(td_device device);

/* The number of threads of a CPU device's pool, the caller's own included. The first use of a
 * device makes its pool; before that, or between steps, it can be set. Default: OMP_NUM_THREADS if
 * it is set, otherwise the CPUs that this process may run on, divided by the processes that share
 * them. Results never depend on it. threads = 0 sets the default. */
td_status td_set_threads(td_device device, int threads);
int td_threads(td_device device);
/* So many processes of this host do the same and share its CPUs: pools of the default size change.
 * Between steps. td_dist_init tells, and td_dist_destroy takes it back (1). */
void td_share_cpus(int processes);
/* Binds a CPU device's threads to CPUs, each to one of its own, and the calling thread, with all
 * that it starts later, to those. The rank-th of `ranks` processes on this host that do the same
 * takes CPUs that no other takes. Between steps. TD_E_ARG: there are fewer CPUs than such threads.
 * Results never depend on it. */
td_status td_pin_threads(td_device device, int rank, int ranks);

TD_END_C

#endif
