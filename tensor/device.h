/* Devices: where a tensor's memory is and where its kernels run. "cpu" means "cpu:0". One machine
 * may have several CPU devices, each with its own thread pool, so that code for several devices
 * runs, and is tested, without a GPU. */
#pragma once

#include "tensor/error.h"

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

/* Parses "cpu", "cpu:3" or "cuda:0" and opens the device. TD_E_ARG: the text has another form, or
 * the index is too large. TD_E_UNSUPPORTED: this build has no kernels for the device. TD_E_DEVICE:
 * the device cannot be used on this machine; the message says what is missing. */
td_status td_device_parse(const char *text, td_device *device);

/* The device that the environment's TANDEM_DEVICE names, as td_device_parse reads it; cpu:0 if it
 * is not set. "cuda" without a number is the GPU of the process's local rank, so call it after
 * td_dist_init. A device that cannot be used ends the program: td_die. */
td_device td_default_device(void);

/* "cpu:0". The text is static. */
const char *td_device_name(td_device device);

/* Sets or returns the number of threads of a CPU device's pool, the calling thread included. Call
 * td_set_threads outside of steps. threads 0 means the default: OMP_NUM_THREADS if that is set;
 * otherwise the number of CPUs that this process may use, divided by the number of processes of
 * this host that td_dist_init joined. Results never depend on the number of threads. TD_E_ARG: no
 * CPU device, or a number out of range. */
td_status td_set_threads(td_device device, int threads);
int td_threads(td_device device);

TD_END_C
