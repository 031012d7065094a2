/* The compute stream's work as a CUDA graph, with the 16-bit copies that it reads (halves.c). */
#include "tensor/cuda/cuda.h"
#include "tensor/cuda/launch_index.h"
#include "tensor/kernels/staged.h"

#include <stdlib.h>

static td_status cuda_graphs_status_of(cudaError_t error, const char *what)
{
    return td_cuda_tried(error) ? TD_OK
                                : td_fail(TD_E_DEVICE, "CUDA: %s: %s (%s)", what,
                                          cudaGetErrorString(error), cudaGetErrorName(error));
}

static _Thread_local td_cuda *recorded; /* by this thread, or NULL */

/* Thread-local: what other threads ask of CUDA meanwhile does not end the recording, but for a wait
 * for the device (td_cuda_release). */
static td_status begin(td_device device)
{
    td_cuda *gpu = td_cuda_of(device);
    pthread_rwlock_rdlock(&gpu->recording);
    td_status status =
        cuda_graphs_status_of(cudaStreamBeginCapture(gpu->stream, cudaStreamCaptureModeThreadLocal),
                              "beginning to record a graph");
    if (status == TD_OK) {
        recorded = gpu;
    } else {
        pthread_rwlock_unlock(&gpu->recording);
    }
    return status;
}

typedef struct graph {
    cudaGraphExec_t made;
    uint64_t halves;
} graph;

static td_status cuda_graphs_finish(td_device device, graph *g)
{
    cudaGraph_t work = NULL;
    g->halves = td_cuda_halves_record(device);
    td_status status = cuda_graphs_status_of(
        cudaStreamEndCapture(td_cuda_of(device)->stream, &work), "recording a graph");
    if (recorded != NULL) {
        pthread_rwlock_unlock(&recorded->recording);
        recorded = NULL;
    }
    TD_TRY(status);
    status = cuda_graphs_status_of(cudaGraphInstantiate(&g->made, work, 0), "making a graph");
    (void)td_cuda_tried(cudaGraphDestroy(work));
    return status;
}

static td_status end(td_device device, void **made)
{
    graph g = { .made = NULL };
    td_status status = cuda_graphs_finish(device, &g);
    graph *kept = status == TD_OK ? malloc(sizeof *kept) : NULL;
    if (kept != NULL) {
        *kept = g;
        *made = kept;
        return TD_OK;
    }
    td_cuda_halves_forget(device);
    if (g.made != NULL) {
        (void)td_cuda_tried(cudaGraphExecDestroy(g.made));
    }
    return status != TD_OK ? status : td_fail(TD_E_NOMEM, "no memory for a graph");
}

static td_status cuda_graphs_launch(td_device device, void *made)
{
    graph *g = made;
    td_cuda_halves_launch(device);
    td_status status = cuda_graphs_status_of(cudaGraphLaunch(g->made, td_cuda_of(device)->stream),
                                             "launching a graph");
    td_cuda_halves_launched(device, g->halves);
    return status;
}

static void cuda_free_graph(td_device device, void *made)
{
    graph *g = made;
    td_cuda_wait(td_cuda_of(device), "ending a graph");
    (void)td_cuda_tried(cudaGraphExecDestroy(g->made));
    td_cuda_halves_forget(device);
    free(g);
}

static void *host_take(td_device device, size_t bytes)
{
    void *memory = NULL;
    (void)td_cuda_of(device);
    return td_cuda_tried(cudaMallocHost(&memory, bytes)) ? memory : NULL;
}

static void host_give(td_device device, void *memory)
{
    (void)td_cuda_of(device);
    td_cuda_must(cudaFreeHost(memory), "giving pinned memory back");
}

static void fetch(td_device device, void *host, const void *memory, size_t bytes)
{
    td_cuda_must(
        cudaMemcpyAsync(host, memory, bytes, cudaMemcpyDeviceToHost, td_cuda_of(device)->stream),
        "copying from the GPU");
}

static td_status wait_event(td_device device, void *event)
{
    (void)td_cuda_of(device);
    return cuda_graphs_status_of(cudaEventSynchronize(event), "waiting for a step");
}

static void note_outside(const td_tensor *index, int64_t limit, double *fault)
{
    int64_t count = td_numel(index);
    if (count == 0) {
        return;
    }
    td_device device = td_device_of(index);
    td_staged sindex;
    const int64_t *values = td_stage_in(&sindex, index, TD_ROW_MAJOR);
    int64_t *first = td_scratch(device, TD_CUDA_RANGE_BLOCKS * sizeof *first);
    td_cuda_launch_find_outside(first, values, count, limit, td_cuda_stream(index));
    td_cuda_launch_keep_outside(fault, first, values, count, td_cuda_stream(index));
    td_cuda_launched("note_outside");
    td_scratch_free(device, first);
    td_stage_end(&sindex);
}

const td_graphs td_cuda_graphs = {
    .begin = begin,
    .end = end,
    .launch = cuda_graphs_launch,
    .free = cuda_free_graph,
    .host_take = host_take,
    .host_give = host_give,
    .fetch = fetch,
    .wait_event = wait_event,
    .note_outside = note_outside,
};
