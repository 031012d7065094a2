/* Recording the work of a device and doing it again, and what that needs beside. Not for users. */
#ifndef TD_TENSOR_GRAPHS_H
#define TD_TENSOR_GRAPHS_H

#include "tensor/tensor.h"

typedef struct td_graphs {
    /* What this thread asks of the device's compute stream from now on is noted, and not done.
     * Memory, events and the host must be left alone. TD_E_DEVICE. */
    td_status (*begin)(td_device device);
    /* Ends the recording, in any case. TD_E_DEVICE: it cannot be replayed. */
    td_status (*end)(td_device device, void **graph);
    /* All of it once more, in the order of the device's work. */
    td_status (*launch)(td_device device, void *graph);
    void (*free)(td_device device, void *graph);

    /* Host memory that the device writes by itself; fetch does not wait. */
    void *(*host_take)(td_device device, size_t bytes);
    void (*host_give)(td_device device, void *memory);
    void (*fetch)(td_device device, void *host, const void *memory, size_t bytes);
    td_status (*wait_event)(td_device device, void *event); /* the host waits */

    /* Does not wait: if fault[0] is 0 and an element of index (i64) is outside of [0, limit),
     * fault[0] becomes 1 + its place (row-major), and fault[1] the element. fault: on the device.
     */
    void (*note_outside)(const td_tensor *index, int64_t limit, double *fault);
} td_graphs;

#endif
