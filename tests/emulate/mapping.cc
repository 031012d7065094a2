/* The emulated driver: memory that is mapped to reserved addresses.
 *
 * TANDEM_EMULATED_DRIVER=no-mapping, no-export, no-peers or no-create (several: with commas): a
 * device that cannot map memory; that can do so only for itself; other devices are not let at its
 * memory; making it fails for another reason than want of memory. Otherwise all memory that is made
 * must be for others, too, as NCCL wants it. */
#include "tests/emulate/cudart.h"

#include "cuda.h"

#include <stdlib.h>
#include <sys/mman.h>

namespace
{

enum { GRANULARITY = 2 << 20 };

/* Memory that has no address of its own. */
struct physical {
    size_t bytes;
    int device;
};

bool lacks(const char *what)
{
    const char *list = getenv("TANDEM_EMULATED_DRIVER");
    return list != NULL && strstr(list, what) != NULL;
}

CUresult refuse()
{
    return CUDA_ERROR_INVALID_VALUE;
}

} // namespace

extern "C" {

CUresult cuGetErrorName(CUresult error, const char **name)
{
    *name = error == CUDA_ERROR_NOT_SUPPORTED   ? "CUDA_ERROR_NOT_SUPPORTED"
            : error == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE"
                                                : NULL;
    return *name != NULL ? CUDA_SUCCESS : refuse();
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice)
{
    *value = which == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ? !lacks("no-mapping")
                                                                              : !lacks("no-export");
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *,
                                       CUmemAllocationGranularity_flags)
{
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *start, size_t bytes, size_t, CUdeviceptr,
                             unsigned long long)
{
    void *found = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *start = (CUdeviceptr)(uintptr_t)found;
    return found != MAP_FAILED ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAddressFree(CUdeviceptr start, size_t bytes)
{
    return munmap((void *)(uintptr_t)start, bytes) == 0 ? CUDA_SUCCESS : refuse();
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *kind, unsigned long long)
{
    locked guard;
    size_t available, all;
    td_emulate_free_bytes(kind->location.id, &available, &all);
    if (bytes % GRANULARITY != 0) {
        return refuse();
    }
    bool shared = kind->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
                  kind->allocFlags.gpuDirectRDMACapable;
    if (lacks("no-create") || shared == lacks("no-export")) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    physical *p = (physical *)malloc(sizeof *p);
    if (p == NULL || bytes > available) {
        free(p);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *p = { bytes, kind->location.id };
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    free((physical *)(uintptr_t)handle);
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr start, size_t bytes, size_t, CUmemGenericAllocationHandle handle,
                  unsigned long long)
{
    locked guard;
    const physical *p = (const physical *)(uintptr_t)handle;
    if (p->bytes != bytes || !td_emulate_map((void *)(uintptr_t)start, bytes, p->device)) {
        return refuse();
    }
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr start, size_t bytes)
{
    locked guard;
    td_emulate_drain_all();
    return td_emulate_unmap((void *)(uintptr_t)start, bytes) ? CUDA_SUCCESS : refuse();
}

CUresult cuMemSetAccess(CUdeviceptr start, size_t bytes, const CUmemAccessDesc *access,
                        size_t count)
{
    locked guard;
    bool fits = count >= 1 && access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
                td_emulate_is_device((void *)(uintptr_t)start, bytes);
    return !fits                            ? refuse()
           : count > 1 && lacks("no-peers") ? CUDA_ERROR_NOT_SUPPORTED
                                            : CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned,
                                             unsigned long long,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    static const struct {
        const char *name;
        void *function;
    } known[] = {
#define KNOWN(f) { #f, (void *)f }
        KNOWN(cuGetErrorName),
        KNOWN(cuDeviceGetAttribute),
        KNOWN(cuMemGetAllocationGranularity),
        KNOWN(cuMemAddressReserve),
        KNOWN(cuMemAddressFree),
        KNOWN(cuMemCreate),
        KNOWN(cuMemRelease),
        KNOWN(cuMemMap),
        KNOWN(cuMemUnmap),
        KNOWN(cuMemSetAccess)
#undef KNOWN
    };
    *function = NULL;
    *result = cudaDriverEntryPointSymbolNotFound;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].name, name) == 0) {
            *function = known[i].function;
            *result = cudaDriverEntryPointSuccess;
        }
    }
    return cudaSuccess;
}

} // extern "C"
