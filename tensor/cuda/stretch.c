/* Step memory: a long stretch of addresses, to which memory is mapped at its end as it is needed.
 * So an arena grows in place, and equal steps have equal addresses. These are functions of the
 * driver, found at run time. A GPU that cannot map memory (some virtual ones) gives a stretch of
 * fixed size instead: half of what is free when it is first asked for. */
#include "tensor/cuda/cuda.h"
#include "tensor/hooks.h"

#include <cuda.h>
#include <pthread.h>
#include <stdlib.h>

#define DRIVER_FUNCTIONS(X)                                                                        \
    X(cuGetErrorName)                                                                              \
    X(cuDeviceGetAttribute)                                                                        \
    X(cuMemGetAllocationGranularity)                                                               \
    X(cuMemAddressReserve)                                                                         \
    X(cuMemAddressFree)                                                                            \
    X(cuMemCreate)                                                                                 \
    X(cuMemRelease)                                                                                \
    X(cuMemMap)                                                                                    \
    X(cuMemUnmap)                                                                                  \
    X(cuMemSetAccess)

/* NULL until find_driver. */
#define DECLARE(name) static __typeof__(&name) driver_##name;
DRIVER_FUNCTIONS(DECLARE)
#undef DECLARE

enum { GROWTH = 32 << 20 }; /* bytes; mapping costs about a millisecond */

typedef struct piece {
    size_t bytes;
    struct piece *below; /* the one in front of it */
} piece;

typedef struct td_stretch {
    CUdeviceptr start;
    size_t reserved, mapped;
    bool fixed;    /* from cudaMalloc */
    piece *pieces; /* mappings, the last one first: each is undone by itself */
    struct td_stretch *next;
} td_stretch;

static td_stretch *stretches;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for the list */

static bool driver_found;

static void find_driver(void)
{
    driver_found = true;
#define FIND(name)                                                                                 \
    {                                                                                              \
        enum cudaDriverEntryPointQueryResult result;                                               \
        void *found = NULL;                                                                        \
        driver_found &= td_cuda_tried(cudaGetDriverEntryPointByVersion(                            \
                            #name, &found, 12000, cudaEnableDefault, &result)) &&                  \
                        found != NULL;                                                             \
        *(void **)(void *)&driver_##name = found;                                                  \
    }
    DRIVER_FUNCTIONS(FIND)
#undef FIND
}

/* Fatal, with the driver's name for the error, unless it went well or memory is short, which is
 * false. */
static bool had(CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
        const char *name = NULL;
        (void)driver_cuGetErrorName(result, &name);
        td_fatal(TD_NOWHERE, "cuda: step memory: %s: %s (%d)", call,
                 name != NULL ? name : "an error without a name", (int)result);
    }
    return result == CUDA_SUCCESS;
}

static bool stretch_can(td_device device, CUdevice_attribute what)
{
    int can = 0;
    return driver_cuDeviceGetAttribute(&can, what, device.index) == CUDA_SUCCESS && can;
}

/* Memory that NCCL can register, where the device allows it: buckets of recorded steps then need
 * no copy on their way. */
static CUmemAllocationProp memory_of(td_device device)
{
    CUmemAllocationProp kind = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device.index },
    };
    if (stretch_can(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
        kind.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    }
    kind.allocFlags.gpuDirectRDMACapable =
        stretch_can(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
    return kind;
}

static size_t stretch_round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* Addresses for what the device has in all; memory comes later. */
static bool reserve_mapped(td_stretch *s, td_cuda *gpu, size_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_driver);
    if (!driver_found ||
        !stretch_can(gpu->device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) {
        return false;
    }
    CUmemAllocationProp kind = memory_of(gpu->device);
    size_t granularity = 0;
    if (driver_cuMemGetAllocationGranularity(
            &granularity, &kind, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS ||
        granularity == 0 || GROWTH % granularity != 0) {
        return false;
    }
    s->reserved = stretch_round_up(bytes > 0 ? bytes : gpu->memory, GROWTH);
    return driver_cuMemAddressReserve(&s->start, s->reserved, GROWTH, 0, 0) == CUDA_SUCCESS;
}

static bool reserve_fixed(td_stretch *s, size_t bytes)
{
    size_t available = 0, all = 0;
    void *start = NULL;
    td_cuda_must(cudaMemGetInfo(&available, &all), "taking step memory");
    s->reserved = stretch_round_up(bytes > 0 ? bytes : available / 2, GROWTH);
    cudaError_t error = cudaMalloc(&start, s->reserved);
    if (error != cudaErrorMemoryAllocation) {
        td_cuda_must(error, "taking step memory");
    }
    if (!td_cuda_tried(error)) {
        return false;
    }
    s->start = (CUdeviceptr)(uintptr_t)start;
    s->mapped = s->reserved;
    s->fixed = true;
    return true;
}

void *td_cuda_reserve(td_device device, size_t *bytes)
{
    td_cuda *gpu = td_cuda_of(device);
    td_stretch *s = calloc(1, sizeof *s);
    if (s == NULL || (!reserve_mapped(s, gpu, *bytes) && !reserve_fixed(s, *bytes))) {
        free(s);
        td_fail(TD_E_NOMEM, "no addresses for step memory on %s", td_device_name(device));
        return NULL;
    }
    pthread_mutex_lock(&lock);
    s->next = stretches;
    stretches = s;
    pthread_mutex_unlock(&lock);
    *bytes = s->reserved;
    return (void *)(uintptr_t)s->start;
}

static td_stretch **stretch_find(const void *start)
{
    td_stretch **link = &stretches;
    while (*link != NULL && (*link)->start != (CUdeviceptr)(uintptr_t)start) {
        link = &(*link)->next;
    }
    TD_REQUIRE(*link != NULL, TD_NOWHERE, "step memory at %p is not reserved", start);
    return link;
}

static CUmemAccessDesc access_of(int index)
{
    return (CUmemAccessDesc){
        .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = index },
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
}

/* The device itself, first, and those that can read its memory for copies between GPUs. */
static size_t who_has_access(td_device device, CUmemAccessDesc access[TD_MAX_DEVICES])
{
    int count = 0;
    size_t allowed = 0;
    (void)td_cuda_tried(cudaGetDeviceCount(&count));
    access[allowed++] = access_of(device.index);
    for (int i = 0; i < count && i < TD_MAX_DEVICES; i++) {
        int can = 0;
        if (i != device.index && td_cuda_tried(cudaDeviceCanAccessPeer(&can, i, device.index)) &&
            can) {
            access[allowed++] = access_of(i);
        }
    }
    return allowed;
}

/* Other GPUs may be refused although they can in general: the device alone does for everything but
 * direct copies between them. */
static bool give_access(td_device device, CUdeviceptr start, size_t bytes)
{
    CUmemAccessDesc access[TD_MAX_DEVICES];
    size_t allowed = who_has_access(device, access);
    return driver_cuMemSetAccess(start, bytes, access, allowed) == CUDA_SUCCESS ||
           had(driver_cuMemSetAccess(start, bytes, access, 1), "cuMemSetAccess");
}

/* Maps `bytes` more; false: there is not as much. The mapping holds the memory: its handle is not
 * needed any longer. */
static bool map_more(td_stretch *s, td_device device, size_t bytes)
{
    CUmemAllocationProp kind = memory_of(device);
    CUmemGenericAllocationHandle handle;
    if (!had(driver_cuMemCreate(&handle, bytes, &kind, 0), "cuMemCreate")) {
        return false;
    }
    piece *p = malloc(sizeof *p);
    CUdeviceptr end = s->start + s->mapped;
    bool mapped = p != NULL && had(driver_cuMemMap(end, bytes, 0, handle, 0), "cuMemMap");
    bool usable = mapped && give_access(device, end, bytes);
    if (mapped && !usable) {
        (void)driver_cuMemUnmap(end, bytes);
    }
    (void)driver_cuMemRelease(handle);
    if (!usable) {
        free(p);
        return false;
    }
    *p = (piece){ bytes, s->pieces };
    s->pieces = p;
    s->mapped += bytes;
    return true;
}

size_t td_cuda_commit(td_device device, void *stretch, size_t bytes)
{
    (void)td_cuda_of(device);
    pthread_mutex_lock(&lock);
    td_stretch *s = *stretch_find(stretch);
    size_t wanted = stretch_round_up(bytes, GROWTH);
    if (wanted > s->mapped && wanted <= s->reserved && !map_more(s, device, wanted - s->mapped)) {
        td_cuda_release_kept(device); /* freed tensors whose memory was kept for the next ones */
        (void)map_more(s, device, wanted - s->mapped);
    }
    size_t reached = s->mapped;
    pthread_mutex_unlock(&lock);
    return reached;
}

/* All streams may use the memory. Waiting for the device would spoil a recording of another thread,
 * so the wait comes behind it. */
void td_cuda_release(td_device device, void *stretch)
{
    td_cuda *gpu = td_cuda_of(device);
    const td_recorder *own = td_recorder_now();
    TD_REQUIRE(own == NULL || !own->recording, TD_NOWHERE,
               "a step that is recorded gives step memory back");
    pthread_rwlock_wrlock(&gpu->recording);
    cudaError_t error = cudaDeviceSynchronize();
    pthread_rwlock_unlock(&gpu->recording);
    td_cuda_must(error, "giving step memory back");
    pthread_mutex_lock(&lock);
    td_stretch **link = stretch_find(stretch), *s = *link;
    *link = s->next;
    pthread_mutex_unlock(&lock);
    if (s->fixed) {
        td_cuda_must(cudaFree(stretch), "giving step memory back");
    } else {
        while (s->pieces != NULL) {
            piece *p = s->pieces;
            s->pieces = p->below;
            s->mapped -= p->bytes;
            (void)had(driver_cuMemUnmap(s->start + s->mapped, p->bytes), "cuMemUnmap");
            free(p);
        }
        (void)had(driver_cuMemAddressFree(s->start, s->reserved), "cuMemAddressFree");
    }
    free(s);
}
