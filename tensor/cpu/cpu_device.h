/* The CPU devices of this process: a thread pool each, made when it is first used. Any thread may
 * call these. */
#ifndef TD_TENSOR_CPU_CPU_DEVICE_H
#define TD_TENSOR_CPU_CPU_DEVICE_H

#include "tensor/cpu/pool.h"
#include "tensor/device.h"

enum { TD_MAX_CPU_THREADS = 1024 };

/* The pool of a device. NULL (which runs on the caller alone) when there is no memory for one. */
td_pool *td_cpu_pool(td_device device);

/* As td_set_threads and td_threads say, for valid arguments. */
td_status td_cpu_set_threads(td_device device, int threads);
void td_cpu_share(int processes); /* td_share_cpus */
td_status td_cpu_pin(td_device device, int rank, int ranks);
int td_cpu_threads(td_device device);

#endif
