/* CUDA's streams and events, for communication and loaders. */
#include "tensor/cuda/cuda.h"

#include <stdio.h>

static td_status streams_status_of(cudaError_t error, const char *what)
{
    return td_cuda_tried(error)
               ? TD_OK
               : td_fail(TD_E_DEVICE, "CUDA: %s: %s", what, cudaGetErrorString(error));
}

static void *compute(td_device device)
{
    return td_cuda_of(device)->stream;
}

/* It does not wait for the default stream, and comes first where both have work. */
static td_status stream_new(td_device device, void **stream)
{
    int least = 0, greatest = 0;
    cudaStream_t made = NULL;
    (void)td_cuda_of(device);
    TD_TRY(streams_status_of(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                             "stream priorities"));
    TD_TRY(streams_status_of(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, greatest),
                             "a stream"));
    *stream = made;
    return TD_OK;
}

static void stream_free(td_device device, void *stream)
{
    (void)td_cuda_of(device);
    (void)td_cuda_tried(cudaStreamDestroy(stream));
}

static td_status event_new(td_device device, void **event)
{
    cudaEvent_t made = NULL;
    (void)td_cuda_of(device);
    TD_TRY(streams_status_of(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "an event"));
    *event = made;
    return TD_OK;
}

static td_status clock_new(td_device device, void **event)
{
    cudaEvent_t made = NULL;
    (void)td_cuda_of(device);
    TD_TRY(streams_status_of(cudaEventCreate(&made), "an event"));
    *event = made;
    return TD_OK;
}

static void event_free(td_device device, void *event)
{
    (void)td_cuda_of(device);
    (void)td_cuda_tried(cudaEventDestroy(event));
}

static td_status streams_record(td_device device, void *event, void *stream)
{
    (void)td_cuda_of(device);
    return streams_status_of(cudaEventRecord(event, stream), "recording an event");
}

static td_status streams_wait(td_device device, void *stream, void *event)
{
    (void)td_cuda_of(device);
    return streams_status_of(cudaStreamWaitEvent(stream, event, 0), "waiting for an event");
}

static td_status reached(td_device device, void *event, bool *is)
{
    (void)td_cuda_of(device);
    cudaError_t error = cudaEventQuery(event);
    *is = td_cuda_tried(error); /* "not ready" would count as a failure too */
    return error == cudaErrorNotReady ? TD_OK : streams_status_of(error, "asking for an event");
}

static td_status between(td_device device, void *begin, void *end, double *seconds)
{
    float milliseconds = 0;
    (void)td_cuda_of(device);
    TD_TRY(streams_status_of(cudaEventElapsedTime(&milliseconds, begin, end),
                             "the time between events"));
    *seconds = 1e-3 * (double)milliseconds;
    return TD_OK;
}

static void place(td_device device, char *text, size_t size)
{
    (void)td_cuda_of(device);
    if (!td_cuda_tried(cudaDeviceGetPCIBusId(text, (int)size, device.index))) {
        snprintf(text, size, "%s", td_device_name(device));
    }
}

const td_streams td_cuda_streams = {
    .compute = compute,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .event_new = event_new,
    .event_free = event_free,
    .record = streams_record,
    .wait = streams_wait,
    .reached = reached,
    .clock_new = clock_new,
    .between = between,
    .upload = td_cuda_upload_on,
    .place = place,
};
