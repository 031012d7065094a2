/* What a kind of device offers beside its kernels (tensor/kernels.h): being found, and memory that
 * the host cannot touch. The CPU needs none of this. Not for users. */
#ifndef TD_TENSOR_BACKEND_H
#define TD_TENSOR_BACKEND_H

#include "tensor/graphs.h"
#include "tensor/kernels.h"
#include "tensor/streams.h"

typedef struct td_backend {
    /* Makes a device ready; otherwise td_last_error() says what is missing. Often called. */
    td_status (*open)(td_device device);
    const char *(*title)(td_device device); /* "NVIDIA H200" */
    const td_kernels *(*kernels)(void);

    /* Persistent memory, 256-byte aligned, contents undefined; NULL with td_last_error() when there
     * is not enough. Work that still uses it may be under way when it is given back. */
    void *(*take)(td_device device, size_t bytes);
    void (*give)(td_device device, void *memory);

    /* All of these keep the order of the device's work; those that read into host memory wait. */
    void (*zero)(td_device device, void *memory, size_t bytes);
    void (*upload)(td_device device, void *memory, const void *host, size_t bytes);
    void (*download)(td_device device, void *host, const void *memory, size_t bytes);
    void (*move)(td_device to, void *memory, td_device from, const void *source, size_t bytes);

    /* A stretch of addresses for step memory, *bytes long (0: what the device has in all; it is set
     * to what there is). NULL with td_last_error(). */
    void *(*reserve)(td_device device, size_t *bytes);
    /* Gives the stretch memory up to at least `bytes` from its start; returns how far it reaches
     * now, which is less than that when memory is short. */
    size_t (*commit)(td_device device, void *stretch, size_t bytes);
    void (*release)(td_device device, void *stretch);

    /* Waits until all work of the device is done. */
    void (*wait)(td_device device);

    const td_streams *streams;
    const td_graphs *graphs; /* NULL: its work cannot be recorded */
} td_backend;

/* NULL for the CPU, and for devices that this build has no kernels for. */
const td_backend *td_backend_of(td_device device);

#endif
