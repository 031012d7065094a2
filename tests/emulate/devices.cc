/* The emulated runtime: which devices there are, and the errors of each thread. */
#include "tests/emulate/cudart.h"

#include <stdio.h>
#include <string.h>

static thread_local int device_now;
static thread_local cudaError_t last_error;

void td_emulate_error(cudaError_t error)
{
    last_error = error;
}

int td_emulate_device(void)
{
    return device_now;
}

extern "C" {

/* ---- errors ---- */

static const struct {
    cudaError_t error;
    const char *name, *text;
} errors[] = {
    { cudaSuccess, "cudaSuccess", "no error" },
    { cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument" },
    { cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory" },
    { cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected" },
    { cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal" },
    { cudaErrorNotReady, "cudaErrorNotReady", "device not ready" },
    { cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported" },
    { cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
      "operation not permitted when stream is capturing" },
    { cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
      "operation failed due to a previous error during capture" },
    { cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
      "capturing stream has unjoined work" },
    { cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
      "dependency created on uncaptured work in another stream" },
    { cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
      "operation not permitted on an event last recorded in a capturing stream" },
};

static size_t find_error(cudaError_t error)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (errors[i].error == error) {
            return i;
        }
    }
    return 1;
}

const char *cudaGetErrorName(cudaError_t error)
{
    return errors[find_error(error)].name;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return errors[find_error(error)].text;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

/* ---- devices ---- */

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = TD_EMULATE_DEVICES;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *found, int device)
{
    if (device < 0 || device >= TD_EMULATE_DEVICES) {
        return give(cudaErrorInvalidDevice);
    }
    size_t available;
    memset(found, 0, sizeof *found);
    snprintf(found->name, sizeof found->name, "emulated GPU %d", device);
    td_emulate_free_bytes(device, &available, &found->totalGlobalMem);
    found->major = 9;
    found->multiProcessorCount = 4;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device)
{
    if (device < 0 || device >= TD_EMULATE_DEVICES) {
        return give(cudaErrorInvalidDevice);
    }
    snprintf(text, (size_t)size, "emulated %d", device);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = *greatest = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= TD_EMULATE_DEVICES) {
        return give(cudaErrorInvalidDevice);
    }
    device_now = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = device_now;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = device != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    static bool enabled[TD_EMULATE_DEVICES][TD_EMULATE_DEVICES];
    (void)flags;
    if (peer < 0 || peer >= TD_EMULATE_DEVICES || peer == device_now) {
        return give(cudaErrorInvalidDevice);
    }
    bool before = enabled[device_now][peer];
    enabled[device_now][peer] = true;
    return give(before ? cudaErrorPeerAccessAlreadyEnabled : cudaSuccess);
}

} // extern "C"
