/* The runtime's functions, as far as tandem and code compiled by nvcc call them. Each succeeds;
 * those that start work on the GPU count it. */
#include "tests/count/count.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- kernels: what nvcc's host code calls (crt/host_runtime.h) ---- */

enum { MOST_KERNELS = 4096 };
static struct {
    const void *function;
    const char *symbol;
} kernels[MOST_KERNELS];
static int kernel_count;
static struct {
    dim3 grid, block;
    size_t shared;
    void *stream;
} pushed;

void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *function, char *device_function,
                            const char *symbol, int threads, uint3 *thread, uint3 *block,
                            dim3 *block_size, dim3 *grid_size, int *warp);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared, cudaStream_t stream);

void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle[1];
    (void)binary;
    return handle;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
    (void)handle;
}

void __cudaRegisterFunction(void **handle, const char *function, char *device_function,
                            const char *symbol, int threads, uint3 *thread, uint3 *block,
                            dim3 *block_size, dim3 *grid_size, int *warp)
{
    (void)handle, (void)device_function, (void)threads, (void)thread, (void)block;
    (void)block_size, (void)grid_size, (void)warp;
    if (kernel_count == MOST_KERNELS) {
        fputs("tests/count: more than MOST_KERNELS kernels\n", stderr);
        abort();
    }
    kernels[kernel_count].function = function;
    kernels[kernel_count++].symbol = symbol;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream)
{
    pushed.grid = grid;
    pushed.block = block;
    pushed.shared = shared;
    pushed.stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    *grid = pushed.grid;
    *block = pushed.block;
    *shared = pushed.shared;
    *(void **)stream = pushed.stream;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                             size_t shared, cudaStream_t stream)
{
    (void)grid, (void)block, (void)shared, (void)stream;
    int i = 0;
    while (i < kernel_count && kernels[i].function != function) {
        i++;
    }
    if (i == kernel_count) {
        return cudaErrorInvalidDeviceFunction;
    }
    count_kernel(kernels[i].symbol, arguments);
    return cudaSuccess;
}

/* CUDA 13's two calls for the same. */
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function)
{
    memcpy(kernel, &function, sizeof *kernel);
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared, cudaStream_t stream)
{
    return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

/* ---- memory ---- */

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    void *start = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *memory = start != MAP_FAILED ? start : NULL;
    return start != MAP_FAILED ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *memory)
{
    (void)memory; /* whose size nobody knows: addresses are free */
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    *memory = malloc(bytes);
    return *memory != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void *memory)
{
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *all)
{
    *available = *all = (size_t)80 << 30;
    return cudaSuccess;
}

/* Memory that was set to zeros: kernels that would write other numbers there do not run. */
enum { MOST_ZEROED = 64 };
static const char *zeroed[MOST_ZEROED];
static int zeroed_count;

static bool is_zeroed(const void *memory)
{
    bool found = false;
    for (int i = 0; i < zeroed_count; i++) {
        found = found || zeroed[i] == memory;
    }
    return found;
}

/* What comes to the host are the zeros, or large numbers, of whatever type: so a check of indices
 * finds none out of range. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)stream;
    switch (kind) {
    case cudaMemcpyDeviceToDevice:
        count_launch("copy on the device", 2.0 * (double)bytes, 0);
        break;
    case cudaMemcpyHostToDevice:
        count_launch("copy to the device", (double)bytes, 0);
        break;
    default:
        count_launch("copy to the host", (double)bytes, 0);
        memset(to, is_zeroed(from) ? 0 : 0x7f, bytes);
        break;
    }
    return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void *to, int device, const void *from, int other, size_t bytes,
                                cudaStream_t stream)
{
    (void)to, (void)device, (void)from, (void)other, (void)stream;
    count_launch("copy between devices", 2.0 * (double)bytes, 0);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    if (value == 0 && !is_zeroed(memory) && zeroed_count < MOST_ZEROED) {
        zeroed[zeroed_count++] = memory;
    }
    count_launch("memset", (double)bytes, 0);
    return cudaSuccess;
}

/* ---- the device ---- */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *found, int device)
{
    (void)device;
    memset(found, 0, sizeof *found);
    snprintf(found->name, sizeof found->name, "a GPU that counts");
    found->major = 9;
    found->multiProcessorCount = 132;
    found->totalGlobalMem = (size_t)80 << 30;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = *greatest = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device)
{
    (void)device;
    snprintf(text, (size_t)size, "0000:00:00.0");
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    (void)device, (void)peer;
    *can = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    (void)peer, (void)flags;
    return cudaErrorNotSupported;
}

/* No driver: step memory is one stretch of fixed size. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    (void)symbol, (void)version, (void)flags;
    *function = NULL;
    *result = cudaDriverEntryPointSymbolNotFound;
    return cudaErrorNotSupported;
}

/* ---- streams, events, graphs: one handle serves for all ---- */

static char any[1];

static cudaError_t new_stream(cudaStream_t *stream)
{
    *stream = (cudaStream_t)(void *)any;
    return cudaSuccess;
}

static cudaError_t new_event(cudaEvent_t *event)
{
    *event = (cudaEvent_t)(void *)any;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    return new_stream(stream);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    return new_stream(stream);
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return new_event(event);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    return new_event(event);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end)
{
    (void)begin, (void)end;
    *milliseconds = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    (void)stream;
    *graph = (cudaGraph_t)(void *)any;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags)
{
    (void)graph, (void)flags;
    *made = (cudaGraphExec_t)(void *)any;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    count_wait();
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    return cudaStreamSynchronize(NULL);
}

/* What gives nothing back. */
#define SUCCEEDS(name, ...)                                                                        \
    cudaError_t name(__VA_ARGS__)                                                                  \
    {                                                                                              \
        return cudaSuccess;                                                                        \
    }
#if defined __GNUC__
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif
SUCCEEDS(cudaSetDevice, int device)
SUCCEEDS(cudaStreamDestroy, cudaStream_t stream)
SUCCEEDS(cudaStreamWaitEvent, cudaStream_t stream, cudaEvent_t event, unsigned flags)
SUCCEEDS(cudaStreamBeginCapture, cudaStream_t stream, enum cudaStreamCaptureMode mode)
SUCCEEDS(cudaEventDestroy, cudaEvent_t event)
SUCCEEDS(cudaEventQuery, cudaEvent_t event)
SUCCEEDS(cudaEventRecord, cudaEvent_t event, cudaStream_t stream)
SUCCEEDS(cudaEventSynchronize, cudaEvent_t event)
SUCCEEDS(cudaGraphDestroy, cudaGraph_t graph)
SUCCEEDS(cudaGraphExecDestroy, cudaGraphExec_t graph)
SUCCEEDS(cudaGraphLaunch, cudaGraphExec_t graph, cudaStream_t stream)
SUCCEEDS(cudaGetLastError, void)
SUCCEEDS(cudaPeekAtLastError, void)

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaSuccess ? "cudaSuccess" : "an error of the stand-in";
}

const char *cudaGetErrorString(cudaError_t error)
{
    return cudaGetErrorName(error);
}
