/* The emulated runtime: recording a stream's work as a graph, and running it again.
 *
 * While a stream is recorded, what is put on it is kept, with its arguments as they are then, and
 * nothing of it runs. What CUDA does not allow meanwhile (waiting for the stream, taking or giving
 * memory, copying to or from the host's ordinary memory) spoils the recording; so do events, which
 * CUDA would allow. */
#include "tests/emulate/cudart.h"

#include <stdlib.h>

struct node {
    node *next;
    void (*run)(void *arguments);
    size_t bytes;
    alignas(16) char arguments[];
};

struct emulated_graph {
    node *first, **last;
    bool spoilt;
    cudaStream_t stream; /* that is recorded */
};

namespace
{

thread_local emulated_graph *recording; /* by this thread */

struct locked {
    locked()
    {
        td_emulate_lock();
    }
    ~locked()
    {
        td_emulate_unlock();
    }
};

cudaError_t give(cudaError_t error)
{
    if (error != cudaSuccess) {
        td_emulate_error(error);
    }
    return error;
}

emulated_graph *new_graph()
{
    emulated_graph *g = (emulated_graph *)calloc(1, sizeof *g);
    if (g != NULL) {
        g->last = &g->first;
    }
    return g;
}

void free_graph(emulated_graph *g)
{
    while (g->first != NULL) {
        node *n = g->first;
        g->first = n->next;
        free(n);
    }
    free(g);
}

void run_graph(void *arguments)
{
    emulated_graph *g = *(emulated_graph **)arguments;
    for (node *n = g->first; n != NULL; n = n->next) {
        n->run(n->arguments);
    }
}

} // namespace

void td_emulate_graph_add(emulated_graph *g, void (*run)(void *arguments), const void *arguments,
                          size_t bytes)
{
    node *n = (node *)malloc(sizeof *n + bytes);
    if (n == NULL) {
        g->spoilt = true;
        return;
    }
    n->next = NULL;
    n->run = run;
    n->bytes = bytes;
    if (bytes > 0) {
        memcpy(n->arguments, arguments, bytes);
    }
    *g->last = n;
    g->last = &n->next;
}

bool td_emulate_spoils(cudaStream_t stream)
{
    emulated_graph *g = stream != NULL ? *td_emulate_recording_of(stream) : recording;
    if (g == NULL) {
        return false;
    }
    g->spoilt = true;
    td_emulate_error(cudaErrorStreamCaptureUnsupported);
    return true;
}

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    (void)mode;
    locked guard;
    emulated_graph **slot = td_emulate_recording_of(stream);
    if (*slot != NULL || recording != NULL) {
        return give(cudaErrorInvalidValue);
    }
    *slot = recording = new_graph();
    if (recording == NULL) {
        return give(cudaErrorMemoryAllocation);
    }
    recording->stream = stream;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    locked guard;
    emulated_graph **slot = td_emulate_recording_of(stream), *recorded = *slot;
    *graph = NULL;
    if (recorded == NULL || recorded != recording) {
        return give(cudaErrorInvalidValue);
    }
    *slot = recording = NULL;
    if (recorded->spoilt) {
        free_graph(recorded);
        return give(cudaErrorStreamCaptureInvalidated);
    }
    *graph = recorded;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    emulated_graph *copy = new_graph();
    for (node *n = graph->first; copy != NULL && n != NULL; n = n->next) {
        td_emulate_graph_add(copy, n->run, n->arguments, n->bytes);
    }
    *made = copy;
    return give(copy != NULL && !copy->spoilt ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    free_graph(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    locked guard;
    td_emulate_enqueue(stream, run_graph, &graph, sizeof graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    locked guard;
    td_emulate_drain_all(); /* it may be on a stream */
    free_graph(graph);
    return cudaSuccess;
}

} // extern "C"
