/* The emulated GPUs' memory: pages that the host may not touch, with a page that nobody may touch
 * behind each block. New memory is full of 0xff, which is NaN for every float type. */
#include "tests/emulate/cudart.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

namespace
{

enum { PAGE = 4096, MAX_PINNED = 4096 };

struct range {
    char *start;
    size_t bytes; /* whole pages */
    int device;
};

range *taken;
int count, capacity;
size_t in_use[TD_EMULATE_DEVICES];
int open_depth;

struct {
    const char *start;
    size_t bytes;
} pinned[MAX_PINNED];
int pinned_count;

/* Bytes of a device: TANDEM_EMULATED_MEMORY in MiB, 4096 unless it is set. */
size_t all_bytes()
{
    const char *wanted = getenv("TANDEM_EMULATED_MEMORY");
    return (wanted != NULL ? (size_t)atoll(wanted) : 4096) << 20;
}

void protect(int rights)
{
    for (int i = 0; i < count; i++) {
        if (mprotect(taken[i].start, taken[i].bytes, rights) != 0) {
            perror("emulated GPU: mprotect");
            abort();
        }
    }
}

/* The range that memory begins in, if all of its bytes are a device's: what is mapped end to end is
 * one. */
const range *find(const void *memory, size_t bytes)
{
    const char *at = (const char *)memory;
    for (int i = 0; i < count; i++) {
        const char *end = taken[i].start + taken[i].bytes;
        if (at >= taken[i].start && at < end) {
            size_t here = (size_t)(end - at);
            return bytes <= here || find(end, bytes - here) != NULL ? &taken[i] : NULL;
        }
    }
    return NULL;
}

bool add(range r)
{
    if (count == capacity) {
        int more = capacity > 0 ? 2 * capacity : 256;
        range *grown = (range *)realloc(taken, (size_t)more * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        taken = grown;
        capacity = more;
    }
    taken[count++] = r;
    in_use[r.device] += r.bytes;
    return true;
}

} // namespace

void td_emulate_open_memory(void)
{
    if (open_depth++ == 0) {
        protect(PROT_READ | PROT_WRITE);
    }
}

void td_emulate_close_memory(void)
{
    if (--open_depth == 0) {
        protect(PROT_NONE);
    }
}

/* Rights change with every operation; of few large pages that takes no time. */
static void fill(void *start, size_t bytes)
{
    mprotect(start, bytes, PROT_READ | PROT_WRITE);
    if (bytes < TD_EMULATE_SPARSE) { /* more is for views of a few far elements: zeros */
        madvise(start, bytes, MADV_HUGEPAGE);
        memset(start, 0xff, bytes);
    }
    if (open_depth == 0) {
        mprotect(start, bytes, PROT_NONE);
    }
}

void *td_emulate_take(int device, size_t bytes)
{
    size_t pages = (bytes + PAGE - 1) / PAGE * PAGE;
    if (pages < bytes || pages > all_bytes() - in_use[device]) {
        return NULL;
    }
    void *start = mmap(NULL, pages + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED || !add({ (char *)start, pages, device })) {
        return NULL;
    }
    fill(start, pages);
    return start;
}

bool td_emulate_give(void *memory)
{
    for (int i = 0; i < count; i++) {
        if (taken[i].start == memory) {
            munmap(memory, taken[i].bytes + PAGE);
            in_use[taken[i].device] -= taken[i].bytes;
            taken[i] = taken[--count];
            return true;
        }
    }
    return false;
}

bool td_emulate_map(void *start, size_t bytes, int device)
{
    if (find(start, 1) != NULL || !add({ (char *)start, bytes, device })) {
        return false;
    }
    fill(start, bytes);
    return true;
}

bool td_emulate_unmap(void *start, size_t bytes)
{
    char *from = (char *)start, *to = from + bytes;
    size_t found = 0;
    for (int i = count - 1; i >= 0; i--) {
        if (taken[i].start >= from && taken[i].start + taken[i].bytes <= to) {
            found += taken[i].bytes;
            in_use[taken[i].device] -= taken[i].bytes;
            taken[i] = taken[--count];
        }
    }
    /* Fresh addresses without memory in their place. */
    return found == bytes &&
           mmap(start, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
                -1, 0) == start;
}

bool td_emulate_is_device(const void *memory, size_t bytes)
{
    return find(memory, bytes) != NULL;
}

bool td_emulate_is_pinned(const void *memory, size_t bytes)
{
    const char *at = (const char *)memory;
    for (int i = 0; i < pinned_count; i++) {
        if (at >= pinned[i].start && at + bytes <= pinned[i].start + pinned[i].bytes) {
            return true;
        }
    }
    return false;
}

void td_emulate_free_bytes(int device, size_t *available, size_t *all)
{
    *all = all_bytes();
    *available = *all - in_use[device];
}

/* ---- copies ---- */

namespace
{

struct copying {
    void *to;
    const void *from; /* NULL: the bytes are behind this */
    size_t bytes;
    alignas(16) char values[];
};

void run_copy(void *arguments)
{
    copying *c = (copying *)arguments;
    memmove(c->to, c->from != NULL ? c->from : c->values, c->bytes);
}

struct filling {
    void *memory;
    int value;
    size_t bytes;
};

void run_fill(void *arguments)
{
    filling *f = (filling *)arguments;
    memset(f->memory, f->value, f->bytes);
}

/* From the host's ordinary memory: CUDA has read it when the call returns. */
cudaError_t copy_values(void *to, const void *from, size_t bytes, cudaStream_t stream)
{
    copying *c = (copying *)malloc(sizeof *c + bytes);
    if (c == NULL) {
        return cudaErrorMemoryAllocation;
    }
    *c = { to, NULL, bytes };
    memcpy(c->values, from, bytes);
    td_emulate_enqueue(stream, run_copy, c, sizeof *c + bytes);
    free(c);
    return cudaSuccess;
}

cudaError_t copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                 cudaStream_t stream)
{
    bool to_device = td_emulate_is_device(to, bytes),
         from_device = td_emulate_is_device(from, bytes);
    bool said_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool said_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind != cudaMemcpyDefault && (said_to != to_device || said_from != from_device)) {
        fprintf(stderr, "emulated GPU: a copy whose kind (%d) does not fit its addresses\n", kind);
        return cudaErrorInvalidValue;
    }
    bool pinned_from = from_device || td_emulate_is_pinned(from, bytes);
    bool pinned_to = to_device || td_emulate_is_pinned(to, bytes);
    if (!(pinned_from && pinned_to) && td_emulate_spoils(stream)) {
        return cudaErrorStreamCaptureUnsupported;
    }
    if (!pinned_from) {
        return copy_values(to, from, bytes, stream);
    }
    copying c = { to, from, bytes };
    td_emulate_enqueue(stream, run_copy, &c, sizeof c);
    /* Into the host's ordinary memory: CUDA waits. */
    return pinned_to ? cudaSuccess : cudaStreamSynchronize(stream);
}

} // namespace

extern "C" {

int td_emulate_device_of(const void *memory)
{
    locked guard;
    const range *found = find(memory, 1);
    return found != NULL ? found->device : -1;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *all)
{
    locked guard;
    int device;
    cudaGetDevice(&device);
    td_emulate_free_bytes(device, available, all);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    locked guard;
    int device;
    if (td_emulate_spoils(NULL)) {
        return cudaErrorStreamCaptureUnsupported;
    }
    cudaGetDevice(&device);
    *memory = td_emulate_take(device, bytes);
    return give(*memory != NULL ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void *memory)
{
    locked guard;
    if (memory == NULL) {
        return cudaSuccess;
    }
    if (td_emulate_spoils(NULL)) {
        return cudaErrorStreamCaptureUnsupported;
    }
    td_emulate_drain_all();
    return give(td_emulate_give(memory) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    (void)flags;
    locked guard;
    if (pinned_count == MAX_PINNED) {
        return give(cudaErrorMemoryAllocation);
    }
    pinned[pinned_count].start = (const char *)memory;
    pinned[pinned_count++].bytes = bytes;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory)
{
    locked guard;
    td_emulate_drain_all();
    for (int i = 0; i < pinned_count; i++) {
        if (pinned[i].start == memory) {
            pinned[i] = pinned[--pinned_count];
            return cudaSuccess;
        }
    }
    return give(cudaErrorInvalidValue);
}

/* A recording thread may not ask for it. */
static bool spoils_recording(void)
{
    locked guard;
    return td_emulate_spoils(NULL);
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    if (spoils_recording()) {
        return cudaErrorStreamCaptureUnsupported;
    }
    *memory = malloc(bytes > 0 ? bytes : 1);
    return give(*memory != NULL ? cudaHostRegister(*memory, bytes, 0) : cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *memory)
{
    if (memory != NULL && spoils_recording()) {
        return cudaErrorStreamCaptureUnsupported;
    }
    cudaError_t error = memory != NULL ? cudaHostUnregister(memory) : cudaSuccess;
    free(memory);
    return error;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    locked guard;
    return give(copy(to, from, bytes, kind, stream));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    locked guard;
    cudaError_t error = copy(to, from, bytes, kind, NULL);
    return give(error == cudaSuccess ? cudaStreamSynchronize(NULL) : error);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t bytes, cudaStream_t stream)
{
    locked guard;
    const range *target = find(to, bytes), *source = find(from, bytes);
    if (target == NULL || source == NULL || target->device != to_device ||
        source->device != from_device) {
        return give(cudaErrorInvalidValue);
    }
    return give(copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    locked guard;
    if (!td_emulate_is_device(memory, bytes)) {
        return give(cudaErrorInvalidValue);
    }
    filling f = { memory, value, bytes };
    td_emulate_enqueue(stream, run_fill, &f, sizeof f);
    return cudaSuccess;
}

} // extern "C"
