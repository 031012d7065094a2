/* The emulated GPU, inside. */
#pragma once

#include "cuda_runtime.h"

/* What cudaGetLastError and cudaPeekAtLastError give from now on, on this thread. */
void td_emulate_error(cudaError_t error);
/* The same of an error that a call returns; success leaves what was there. */
static inline cudaError_t give(cudaError_t error)
{
    if (error != cudaSuccess) {
        td_emulate_error(error);
    }
    return error;
}
/* This thread's (cudaSetDevice). */
int td_emulate_device(void);

/* memory.cc: device memory is closed to the host (reading or writing it is a segmentation fault)
 * except while something of a stream runs. Calls nest; under the emulation's lock. */
void td_emulate_open_memory(void);
void td_emulate_close_memory(void);

/* Under the lock. */
void *td_emulate_take(int device, size_t bytes);
bool td_emulate_give(void *memory);
/* The same at an address that is given: mapping.cc's. */
bool td_emulate_map(void *start, size_t bytes, int device);
bool td_emulate_unmap(void *start, size_t bytes);
bool td_emulate_is_device(const void *memory, size_t bytes);
bool td_emulate_is_pinned(const void *memory, size_t bytes);
void td_emulate_free_bytes(int device, size_t *available, size_t *all);

/* graphs.cc: what streams' work is kept in while it is recorded. */
struct emulated_graph;
void td_emulate_graph_add(emulated_graph *graph, cudaStream_t stream, void (*run)(void *arguments),
                          const void *arguments, size_t bytes, bool waits);
/* Where a stream has its recording; NULL there: it is not recorded. */
emulated_graph **td_emulate_recording_of(cudaStream_t stream);
/* For calls that a recording forbids: of this stream, NULL: of whichever this thread records. If
 * there is one it is spoilt, and the call is to fail with cudaErrorStreamCaptureUnsupported. */
bool td_emulate_spoils(cudaStream_t stream);

/* A place in a recording, for which an event that was recorded in it stands. */
struct emulated_place {
    uint64_t recording; /* its number; 0: none, the event is a stream's */
    int branch;
    uint64_t at;
};
emulated_place td_emulate_place_of(emulated_graph *graph, cudaStream_t stream);
/* The stream waits for the place, and belongs to that recording from now on. */
cudaError_t td_emulate_wait_for_place(cudaStream_t stream, const emulated_place *place);
/* Someone asks whether an event has come by that stands for the place: an error, which it gives. */
cudaError_t td_emulate_spoil_place(const emulated_place *place);

/* seed.cc: a number drawn for the order of a grid's blocks and threads, and the number of blocks.
 * TANDEM_EMULATE_SEED=N: other numbers; 1 unless it is set; 0: the number is always 0. Under the
 * lock. */
unsigned td_emulate_draw(unsigned below);

/* Chance, where $TANDEM_EMULATE_ORDER names a seed for it; always false where it does not. */
bool td_emulate_chance(unsigned one_in);
unsigned td_emulate_random(void);

/* The emulation's lock; a thread may take it more than once. */
void td_emulate_lock(void);
bool td_emulate_trylock(void);
void td_emulate_unlock(void);
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

/* blocks.cc: a signal's handler while something of a stream runs: ends the program. */
extern "C" void td_emulate_crashed(int signal);

/* Everything that has been put on any stream is done. */
void td_emulate_drain_all(void);

enum { TD_EMULATE_DEVICES = 2 };
