/* The emulated runtime: recording streams' work as a graph, and running it again.
 *
 * While a stream is recorded, what is put on it is kept, with its arguments as they are then, and
 * nothing of it runs. A stream that waits for an event of the recording belongs to it, too, as a
 * branch, and must be waited for before the end. What CUDA does not allow meanwhile (waiting for
 * the stream, taking or giving memory, copying to or from the host's ordinary memory, asking for an
 * event that was recorded) spoils the recording. A graph's branches are as lazy as streams are. */
#include "tests/emulate/cudart.h"

#include <atomic>
#include <stdlib.h>

struct node {
    node *next;
    void (*run)(void *arguments); /* NULL: it waits for a place in another branch */
    emulated_place place;
    size_t bytes;
    alignas(16) char arguments[];
};

struct branch {
    node *first, **last;
    uint64_t put;
    cudaStream_t stream;
};

enum { BRANCHES = 8 };

struct emulated_graph {
    uint64_t number;           /* of the recording, from 1 */
    branch branches[BRANCHES]; /* the first is that of the stream that is recorded */
    int count;
    bool spoilt, waits;
};

namespace
{

thread_local emulated_graph *recording; /* by this thread */
emulated_graph *recordings[BRANCHES];   /* all that are under way */
std::atomic_int graphs_that_wait;       /* made and not freed, with work that waits */

emulated_graph *new_graph(uint64_t number)
{
    emulated_graph *g = (emulated_graph *)calloc(1, sizeof *g);
    if (g != NULL) {
        g->number = number;
    }
    return g;
}

int new_branch(emulated_graph *g, cudaStream_t stream)
{
    if (g->count == BRANCHES) {
        g->spoilt = true;
        return 0;
    }
    branch *b = &g->branches[g->count];
    b->last = &b->first;
    b->stream = stream;
    return g->count++;
}

int branch_of(const emulated_graph *g, cudaStream_t stream)
{
    int b = g->count - 1;
    while (b > 0 && g->branches[b].stream != stream) {
        b--;
    }
    return b;
}

void add(emulated_graph *g, int to, const node *like, const void *arguments)
{
    node *n = (node *)malloc(sizeof *n + like->bytes);
    if (n == NULL) {
        g->spoilt = true;
        return;
    }
    *n = *like;
    n->next = NULL;
    if (n->bytes > 0) {
        memcpy(n->arguments, arguments, n->bytes);
    }
    branch *b = &g->branches[to];
    *b->last = n;
    b->last = &n->next;
    b->put++;
}

void free_graph(emulated_graph *g)
{
    for (int b = 0; b < g->count; b++) {
        while (g->branches[b].first != NULL) {
            node *n = g->branches[b].first;
            g->branches[b].first = n->next;
            free(n);
        }
    }
    free(g);
}

/* ---- running ---- */

struct run {
    const emulated_graph *graph;
    const node *next[BRANCHES];
    uint64_t done[BRANCHES];
};

/* The branch's next node; false: it waits, or there is none. */
bool advance(run *r, int b)
{
    const node *n = r->next[b];
    if (n == NULL || (n->run == NULL && r->done[n->place.branch] < n->place.at)) {
        return false;
    }
    if (n->run != NULL) {
        n->run((void *)(uintptr_t)n->arguments);
    }
    r->next[b] = n->next;
    r->done[b]++;
    return true;
}

/* Runs a branch up to a place, and of the others what it waits for. */
void run_branch(run *r, int b, uint64_t until)
{
    while (r->done[b] < until) {
        if (td_emulate_chance(2)) {
            (void)advance(r, (int)(td_emulate_random() % (unsigned)r->graph->count));
        } else if (!advance(r, b)) {
            run_branch(r, r->next[b]->place.branch, r->next[b]->place.at);
        }
    }
}

void run_graph(void *arguments)
{
    const emulated_graph *g = *(emulated_graph **)arguments;
    run r = {};
    r.graph = g;
    for (int b = 0; b < g->count; b++) {
        r.next[b] = g->branches[b].first;
    }
    for (int b = 0; b < g->count; b++) {
        run_branch(&r, b, g->branches[b].put);
    }
}

/* ---- the end of a recording ---- */

/* Whether the first branch, at its end, has waited for all that is in the others. */
bool is_joined(const emulated_graph *g)
{
    uint64_t reached[BRANCHES] = { g->branches[0].put };
    for (bool more = true; more;) {
        more = false;
        for (int b = 0; b < g->count; b++) {
            const node *n = g->branches[b].first;
            for (uint64_t at = 0; at < reached[b]; at++, n = n->next) {
                if (n->run == NULL && n->place.at > reached[n->place.branch]) {
                    reached[n->place.branch] = n->place.at;
                    more = true;
                }
            }
        }
    }
    bool joined = true;
    for (int b = 0; b < g->count; b++) {
        joined = joined && reached[b] == g->branches[b].put;
    }
    return joined;
}

emulated_graph **slot_of(uint64_t number)
{
    emulated_graph **slot = NULL;
    for (int i = 0; i < BRANCHES; i++) {
        if (number == 0 ? recordings[i] == NULL
                        : recordings[i] != NULL && recordings[i]->number == number) {
            slot = &recordings[i];
        }
    }
    return slot;
}

} // namespace

void td_emulate_graph_add(emulated_graph *g, cudaStream_t stream, void (*run)(void *arguments),
                          const void *arguments, size_t bytes, bool waits)
{
    node like = {};
    like.run = run;
    like.bytes = bytes;
    g->waits = g->waits || waits;
    add(g, branch_of(g, stream), &like, arguments);
}

emulated_place td_emulate_place_of(emulated_graph *g, cudaStream_t stream)
{
    int b = branch_of(g, stream);
    return { g->number, b, g->branches[b].put };
}

cudaError_t td_emulate_wait_for_place(cudaStream_t stream, const emulated_place *place)
{
    emulated_graph **of = td_emulate_recording_of(stream), **slot = slot_of(place->recording);
    if (slot == NULL || (*of != NULL && *of != *slot)) {
        (void)td_emulate_spoils(stream);
        return cudaErrorCapturedEvent;
    }
    emulated_graph *g = *slot;
    int b = *of == NULL ? new_branch(g, stream) : branch_of(g, stream);
    *of = g;
    node like = {};
    like.place = *place;
    if (b != place->branch) {
        add(g, b, &like, &like);
    }
    return cudaSuccess;
}

cudaError_t td_emulate_spoil_place(const emulated_place *place)
{
    emulated_graph **slot = slot_of(place->recording);
    if (slot != NULL) {
        (*slot)->spoilt = true;
    }
    return cudaErrorCapturedEvent;
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

int td_emulate_graphs_that_wait(void)
{
    return graphs_that_wait;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    (void)mode;
    locked guard;
    static uint64_t number;
    emulated_graph **of = td_emulate_recording_of(stream), **slot = slot_of(0);
    if (*of != NULL || recording != NULL || slot == NULL) {
        return give(cudaErrorInvalidValue);
    }
    *slot = *of = recording = new_graph(++number);
    if (recording == NULL) {
        return give(cudaErrorMemoryAllocation);
    }
    (void)new_branch(recording, stream);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    locked guard;
    emulated_graph *recorded = *td_emulate_recording_of(stream);
    *graph = NULL;
    if (recorded == NULL || recorded != recording || recorded->branches[0].stream != stream) {
        return give(cudaErrorInvalidValue);
    }
    for (int b = 0; b < recorded->count; b++) {
        *td_emulate_recording_of(recorded->branches[b].stream) = NULL;
    }
    *slot_of(recorded->number) = NULL;
    recording = NULL;
    if (recorded->spoilt || !is_joined(recorded)) {
        bool spoilt = recorded->spoilt;
        free_graph(recorded);
        return give(spoilt ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnjoined);
    }
    *graph = recorded;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    emulated_graph *copy = new_graph(graph->number);
    for (int b = 0; copy != NULL && b < graph->count; b++) {
        (void)new_branch(copy, graph->branches[b].stream);
        for (const node *n = graph->branches[b].first; n != NULL; n = n->next) {
            add(copy, b, n, n->arguments);
        }
        copy->waits = graph->waits;
    }
    graphs_that_wait += copy != NULL && copy->waits;
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
    if (graph->waits) {
        td_emulate_enqueue_waiting(stream, run_graph, &graph, sizeof graph);
    } else {
        td_emulate_enqueue(stream, run_graph, &graph, sizeof graph);
    }
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    locked guard;
    td_emulate_drain_all(); /* it may be on a stream */
    graphs_that_wait -= graph->waits;
    free_graph(graph);
    return cudaSuccess;
}

} // extern "C"
