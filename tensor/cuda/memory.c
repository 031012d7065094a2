/* Persistent memory. cudaFree waits for the whole device, so what is given back is kept, by size,
 * for the next one who wants as much; when memory is short, all that is kept goes back. */
#include "tensor/cuda/cuda.h"

#include <pthread.h>
#include <stdlib.h>

enum { UNIT = 512 };

typedef struct block {
    void *memory;
    size_t bytes;
    td_cuda_half half;
    struct block *next;
} block;

/* Blocks of a device: those in use, in a hash table by address, and those kept. */
enum { BUCKETS = 1024 };
static struct heap {
    block *used[BUCKETS];
    block *kept;
} heaps[TD_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static block **cuda_memory_bucket_of(struct heap *heap, const void *memory)
{
    return &heap->used[((uintptr_t)memory / UNIT * 0x9e3779b97f4a7c15u) >> 54];
}

/* Takes a block of just that size out of those kept; NULL if there is none. */
static block *take_kept(struct heap *heap, size_t bytes)
{
    for (block **link = &heap->kept; *link != NULL; link = &(*link)->next) {
        block *found = *link;
        if (found->bytes == bytes) {
            *link = found->next;
            return found;
        }
    }
    return NULL;
}

static void release_kept(struct heap *heap)
{
    while (heap->kept != NULL) {
        block *b = heap->kept;
        heap->kept = b->next;
        td_cuda_must(cudaFree(b->memory), "giving memory back");
        free(b);
    }
}

/* false: there is not as much. Other failures are fatal, and named. */
static bool allocate(block *b)
{
    cudaError_t error = cudaMalloc(&b->memory, b->bytes);
    if (error != cudaErrorMemoryAllocation) {
        td_cuda_must(error, "taking memory");
    }
    return td_cuda_tried(error);
}

static block *new_block(struct heap *heap, size_t bytes)
{
    block *b = malloc(sizeof *b);
    if (b == NULL) {
        return NULL;
    }
    b->bytes = bytes;
    if (allocate(b)) {
        return b;
    }
    release_kept(heap);
    if (allocate(b)) {
        return b;
    }
    free(b);
    return NULL;
}

void td_cuda_release_kept(td_device device)
{
    pthread_mutex_lock(&lock);
    release_kept(&heaps[device.index]);
    pthread_mutex_unlock(&lock);
}

void *td_cuda_take(td_device device, size_t bytes)
{
    (void)td_cuda_of(device);
    struct heap *heap = &heaps[device.index];
    size_t rounded = bytes == 0 ? UNIT : (bytes + UNIT - 1) / UNIT * UNIT;
    pthread_mutex_lock(&lock);
    block *b = rounded < bytes ? NULL : take_kept(heap, rounded);
    if (b == NULL && rounded >= bytes) {
        b = new_block(heap, rounded);
    }
    if (b != NULL) {
        block **bucket = cuda_memory_bucket_of(heap, b->memory);
        b->half = (td_cuda_half){ .memory = NULL };
        b->next = *bucket;
        *bucket = b;
    }
    pthread_mutex_unlock(&lock);
    if (b == NULL) {
        size_t available = 0, all = 0;
        (void)td_cuda_tried(cudaMemGetInfo(&available, &all));
        td_fail(TD_E_NOMEM, "out of memory: %s on %s could not be had; of its %s, %s are free",
                td_describe_bytes(bytes), td_device_name(device), td_describe_bytes(all),
                td_describe_bytes(available));
        return NULL;
    }
    return b->memory;
}

/* Where a block that is in use hangs. Under the lock. */
static block **find_used(struct heap *heap, const void *memory)
{
    block **link = cuda_memory_bucket_of(heap, memory);
    while (*link != NULL && (*link)->memory != memory) {
        link = &(*link)->next;
    }
    return link;
}

td_cuda_half *td_cuda_half_beside(td_device device, const void *memory)
{
    pthread_mutex_lock(&lock);
    block *b = *find_used(&heaps[device.index], memory);
    pthread_mutex_unlock(&lock);
    return b != NULL ? &b->half : NULL;
}

void td_cuda_give(td_device device, void *memory)
{
    struct heap *heap = &heaps[device.index];
    td_cuda_half *half = td_cuda_half_beside(device, memory);
    if (half != NULL && half->memory != NULL) { /* first: then others may take the block */
        td_cuda_half_drop(device, half);
    }
    pthread_mutex_lock(&lock);
    block **link = find_used(heap, memory), *b = *link;
    TD_REQUIRE(b != NULL, TD_NOWHERE, "%s: memory at %p is given back, but it is not taken",
               td_device_name(device), memory);
    *link = b->next;
    b->next = heap->kept;
    heap->kept = b;
    pthread_mutex_unlock(&lock);
}
