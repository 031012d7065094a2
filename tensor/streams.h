/* Streams and events of a device whose work goes on after a call has returned: what communication
 * needs so that it neither waits on the host nor makes the host wait. Handles are the device's own
 * (cudaStream_t, cudaEvent_t). Any thread. Not for users. */
#ifndef TD_TENSOR_STREAMS_H
#define TD_TENSOR_STREAMS_H

#include "tensor/device.h"

#include <stddef.h>

typedef struct td_streams {
    /* The stream on which all kernels of the device run. */
    void *(*compute)(td_device device);
    td_status (*stream_new)(td_device device, void **stream);
    void (*stream_free)(td_device device, void *stream);
    td_status (*event_new)(td_device device, void **event);
    void (*event_free)(td_device device, void *event);
    /* The event stands for what the stream has been asked for so far. */
    td_status (*record)(td_device device, void *event, void *stream);
    /* What the stream is asked for from now on waits for what the event stands for now. */
    td_status (*wait)(td_device device, void *stream, void *event);
    td_status (*reached)(td_device device, void *event, bool *reached);
    /* An event that knows when the stream came to it; the seconds from one to another, both
     * reached. For the rest it is as the others. */
    td_status (*clock_new)(td_device device, void **event);
    td_status (*between)(td_device device, void *begin, void *end, double *seconds);
    /* Bytes to the device, in the order of the stream; the host's may change at once. */
    void (*upload)(td_device device, void *stream, void *memory, const void *host, size_t bytes);
    /* Which device of this host it is: equal texts, the same device. */
    void (*place)(td_device device, char *text, size_t size);
} td_streams;

/* NULL: the device's calls return when their work is done, as the CPU's do. */
const td_streams *td_streams_of(td_device device);

/* Plain bytes in a device's memory, in the order of its work; a download waits. */
void td_memory_move(td_device device, void *to, const void *from, size_t bytes);
void td_memory_download(td_device device, void *host, const void *memory, size_t bytes);
void td_memory_upload(td_device device, void *memory, const void *host, size_t bytes);

#endif
