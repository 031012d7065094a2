/* Watched memory, unless TANDEM_EMULATE_SEED is 0. Memory of the emulated GPUs that is not in use
 * is full of 0xff, which is NaN for every float type: step memory when it is taken and when it is
 * given back, persistent memory when it is given back and kept for the next user. What is behind
 * a block, up to where the next one may begin, must still be 0xff when the block is given back:
 * otherwise a kernel has written beyond the block's end, and the program ends.
 *
 * All of it is work of the compute stream, in its order, and is recorded with a step. What such a
 * step still has in use counts as given back when its recording ends: td_step_end comes later, and
 * what it gives back would be checked before the step has run. The linker puts these functions in
 * front of the library's (--wrap). */
#include "tensor/arena.h"
#include "tensor/cuda/cuda.h"
#include "tensor/hooks.h"

#include <pthread.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEP_UNIT = 256, UNIT = 512, TREES = 64 }; /* where arena.c and memory.c let blocks begin */

typedef struct watched {
    unsigned char *memory;
    size_t bytes, room;
    td_device device;
} watched;

/* The blocks in use, by address: of each arena, and (arena NULL) of persistent memory. */
static struct {
    const td_arena *arena;
    void *blocks; /* tsearch's */
} trees[TREES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local const td_arena *recorded; /* of the step that this thread records, or NULL */

static int by_address(const void *a, const void *b)
{
    const watched *x = a, *y = b;
    return (x->memory > y->memory) - (x->memory < y->memory);
}

static void **tree_of(const td_arena *arena)
{
    int free_one = TREES - 1;
    for (int i = TREES - 1; i >= 0; i--) {
        if (trees[i].arena == arena && trees[i].blocks != NULL) {
            return &trees[i].blocks;
        }
        free_one = trees[i].blocks == NULL ? i : free_one;
    }
    trees[free_one].arena = arena;
    return &trees[free_one].blocks;
}

static void watch_block(const td_arena *arena, watched b)
{
    watched *kept = malloc(sizeof *kept);
    if (kept == NULL) {
        abort();
    }
    *kept = b;
    pthread_mutex_lock(&lock);
    watched **node = tsearch(kept, tree_of(arena), by_address);
    if (node != NULL && *node != kept) { /* of a step that was abandoned */
        **node = b;
        free(kept);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- on the compute stream ---- */

static void run_check(void *arguments)
{
    const watched *b = arguments;
    for (size_t i = b->bytes; i < b->room; i++) {
        if (b->memory[i] != 0xff) {
            fprintf(
                stderr,
                "emulated GPU: a kernel has written byte %zu of a block of %zu bytes, behind its "
                "end\n",
                i, b->bytes);
            abort();
        }
    }
}

static void fill_block(const watched *b)
{
    (void)cudaMemsetAsync(b->memory, 0xff, b->room, td_cuda_of(b->device)->stream);
}

static void leave_block(void *block)
{
    watched *b = block;
    if (b->room > b->bytes) {
        td_emulate_enqueue(td_cuda_of(b->device)->stream, run_check, b, sizeof *b);
    }
    fill_block(b);
    free(b);
}

static void leave(const td_arena *arena, void *memory, void (*with)(void *block))
{
    watched wanted = { .memory = memory }, *found = NULL;
    pthread_mutex_lock(&lock);
    void **tree = tree_of(arena);
    watched **node = tfind(&wanted, tree, by_address);
    if (node != NULL) {
        found = *node;
        (void)tdelete(&wanted, tree, by_address);
    }
    pthread_mutex_unlock(&lock);
    if (found != NULL) {
        with(found);
    }
}

static void leave_all(const td_arena *arena, void (*with)(void *block))
{
    pthread_mutex_lock(&lock);
    void **tree = tree_of(arena), *all = *tree;
    *tree = NULL;
    pthread_mutex_unlock(&lock);
    tdestroy(all, with);
}

/* ---- in front of tensor/arena.c, and of what tensor/cuda/ calls ---- */

#define WRAPPED(type, name, ...)                                                                   \
    type __real_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__)

static size_t room_for(size_t bytes, size_t unit)
{
    return ((bytes > 0 ? bytes : 1) + unit - 1) / unit * unit;
}

WRAPPED(void *, td_arena_take, td_arena *arena, size_t bytes)
{
    void *memory = __real_td_arena_take(arena, bytes);
    int device =
        td_emulate_is_seeded() && bytes < TD_EMULATE_SPARSE ? td_emulate_device_of(memory) : -1;
    if (device >= 0) {
        watched b = { memory, bytes, room_for(bytes, STEP_UNIT), TD_CUDA_N(device) };
        const td_recorder *recorder = td_recorder_now();
        recorded = recorder != NULL && recorder->recording ? arena : recorded;
        fill_block(&b);
        watch_block(arena, b);
    }
    return memory;
}

WRAPPED(void, td_arena_give, td_arena *arena, void *block)
{
    leave(arena, block, leave_block);
    __real_td_arena_give(arena, block);
}

WRAPPED(size_t, td_arena_reset, td_arena *arena)
{
    leave_all(arena, leave_block);
    return __real_td_arena_reset(arena);
}

WRAPPED(void, td_arena_free, td_arena *arena)
{
    if (arena != NULL) {
        leave_all(arena, free);
    }
    __real_td_arena_free(arena);
}

WRAPPED(void *, td_cuda_take, td_device device, size_t bytes)
{
    void *memory = __real_td_cuda_take(device, bytes);
    if (memory != NULL && bytes < TD_EMULATE_SPARSE && td_emulate_is_seeded()) {
        watch_block(NULL, (watched){ memory, bytes, room_for(bytes, UNIT), device });
    }
    return memory;
}

/* While a step is recorded the block is only forgotten: replays would write what is another's then.
 */
WRAPPED(void, td_cuda_give, td_device device, void *memory)
{
    leave(NULL, memory, td_emulate_is_recorded(td_cuda_of(device)->stream) ? free : leave_block);
    __real_td_cuda_give(device, memory);
}

WRAPPED(cudaError_t, cudaStreamEndCapture, cudaStream_t stream, cudaGraph_t *graph)
{
    if (recorded != NULL) {
        leave_all(recorded, leave_block);
        recorded = NULL;
    }
    return __real_cudaStreamEndCapture(stream, graph);
}
