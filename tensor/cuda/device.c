/* GPUs: finding them, one context and compute stream each, errors. */
#include "tensor/cuda/cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    pid_t process; /* that has initialised CUDA; 0: none yet */
    td_cuda *gpus[TD_MAX_DEVICES];
} state = { .lock = PTHREAD_MUTEX_INITIALIZER };

static _Thread_local td_cuda *current; /* the calling thread's */

void td_cuda_must(cudaError_t error, const char *operation)
{
    if (error != cudaSuccess) {
        td_fatal(
            TD_NOWHERE, "cuda: %s: %s (%s)%s", operation, cudaGetErrorString(error),
            cudaGetErrorName(error),
            error == cudaErrorIllegalAddress || error == cudaErrorLaunchFailure
                ? "; the fault may lie in an operation before it: CUDA_LAUNCH_BLOCKING=1 shows "
                  "which"
                : "");
    }
}

void td_cuda_launched(const char *operation)
{
    cudaError_t error = cudaPeekAtLastError();
    if (__builtin_expect(error != cudaSuccess, 0)) {
        td_cuda_must(error, operation);
    }
}

bool td_cuda_tried(cudaError_t error)
{
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
    }
    return error == cudaSuccess;
}

void td_cuda_wait(td_cuda *gpu, const char *operation)
{
    td_cuda_must(cudaStreamSynchronize(gpu->stream), operation);
}

/* ---- opening ---- */

static td_status cannot_use(td_device device, const char *why)
{
    return td_fail(TD_E_DEVICE, "%s cannot be used: %s", td_device_name(device), why);
}

/* How many GPUs there are, or why there is none. */
static td_status count_gpus(td_device device, int *count)
{
    *count = 0; /* without a driver CUDA leaves it as it is */
    cudaError_t error = cudaGetDeviceCount(count);
    int driver = 0;
    (void)td_cuda_tried(error);
    (void)td_cuda_tried(cudaDriverGetVersion(&driver)); /* 0: none */
    char why[512];
    if (driver == 0) {
        return cannot_use(device, "there is no NVIDIA driver (libcuda.so.1 was not found by the "
                                  "dynamic linker); install the driver, or use --device cpu");
    }
    if (error == cudaErrorInsufficientDriver) {
        snprintf(why, sizeof why,
                 "the NVIDIA driver is too old: it can do CUDA %d.%d, and this program was built "
                 "with CUDA %d.%d; update the driver",
                 driver / 1000, driver / 10 % 100, CUDART_VERSION / 1000,
                 CUDART_VERSION / 10 % 100);
        return cannot_use(device, why);
    }
    if (error != cudaSuccess || *count == 0) {
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        snprintf(why, sizeof why, "the driver shows no GPU (%s)%s%s",
                 error != cudaSuccess ? cudaGetErrorString(error) : "none is there",
                 visible != NULL ? "; CUDA_VISIBLE_DEVICES is " : "",
                 visible != NULL ? visible : "");
        return cannot_use(device, why);
    }
    if (device.index >= *count) {
        snprintf(why, sizeof why, "there %s %d GPU%s here, cuda:0 to cuda:%d",
                 *count == 1 ? "is" : "are", *count, *count == 1 ? "" : "s", *count - 1);
        return cannot_use(device, *count == 1 ? "there is one GPU here, cuda:0" : why);
    }
    return TD_OK;
}

static td_status cuda_describe(td_cuda *gpu)
{
    struct cudaDeviceProp found;
    cudaError_t error = cudaGetDeviceProperties(&found, gpu->device.index);
    if (!td_cuda_tried(error)) {
        return cannot_use(gpu->device, cudaGetErrorString(error));
    }
    snprintf(gpu->name, sizeof gpu->name, "%s", found.name);
    gpu->sm = 10 * found.major + found.minor;
    gpu->multiprocessors = found.multiProcessorCount;
    gpu->memory = found.totalGlobalMem;
    return TD_OK;
}

static td_status cuda_start(td_cuda *gpu)
{
    current = NULL; /* until td_cuda_of chooses again */
    cudaError_t error = cudaSetDevice(gpu->device.index);
    if (error == cudaSuccess) {
        error = cudaStreamCreateWithFlags(&gpu->stream, cudaStreamNonBlocking);
    }
    return td_cuda_tried(error) ? TD_OK : cannot_use(gpu->device, cudaGetErrorString(error));
}

/* Copies between this GPU and those that the process has opened before go directly, where the
 * machine allows it; through the host otherwise. */
static void open_ways(td_device device)
{
    for (int other = 0; other < TD_MAX_DEVICES; other++) {
        int ends[] = { device.index, other };
        for (int i = 0; i < 2 && state.gpus[other] != NULL; i++) {
            int can = 0;
            if (td_cuda_tried(cudaDeviceCanAccessPeer(&can, ends[i], ends[1 - i])) && can &&
                td_cuda_tried(cudaSetDevice(ends[i]))) {
                (void)td_cuda_tried(cudaDeviceEnablePeerAccess(ends[1 - i], 0));
            }
        }
    }
}

/* A child has none of its parent's GPUs: td_cuda_open then says so. */
static void forget_gpus(void)
{
    memset(state.gpus, 0, sizeof state.gpus);
    current = NULL;
}

/* Under the lock. */
static td_status cuda_open_gpu(td_device device)
{
    int count;
    if (count_gpus(device, &count) != TD_OK) {
        return TD_E_DEVICE;
    }
    td_cuda *gpu = calloc(1, sizeof *gpu);
    TD_CHECK(gpu != NULL, TD_E_NOMEM, "out of memory for %s", td_device_name(device));
    gpu->device = device;
    (void)pthread_rwlock_init(&gpu->recording, NULL);
    td_status status = cuda_describe(gpu);
    if (status == TD_OK) {
        status = cuda_start(gpu);
    }
    if (status != TD_OK) {
        free(gpu);
        return status;
    }
    open_ways(device);
    if (state.process == 0) {
        pthread_atfork(NULL, NULL, forget_gpus);
    }
    state.process = getpid();
    __atomic_store_n(&state.gpus[device.index], gpu, __ATOMIC_RELEASE);
    return TD_OK;
}

td_status td_cuda_open(td_device device)
{
    pthread_mutex_lock(&state.lock);
    td_status status = TD_OK;
    if (state.process != 0 && state.process != getpid()) {
        status = cannot_use(device, "CUDA was used by the process that this one was forked from, "
                                    "and cannot be used in both: start processes first (td_spawn) "
                                    "and use GPUs in them, or start them by tdrun");
    } else if (state.gpus[device.index] == NULL) {
        status = cuda_open_gpu(device);
    }
    pthread_mutex_unlock(&state.lock);
    return status;
}

td_cuda *td_cuda_of(td_device device)
{
    td_cuda *gpu = __atomic_load_n(&state.gpus[device.index], __ATOMIC_ACQUIRE);
    if (gpu == NULL) {
        TD_REQUIRE(td_cuda_open(device) == TD_OK, TD_NOWHERE, "%s", td_last_error());
        gpu = state.gpus[device.index];
    }
    if (current != gpu) {
        td_cuda_must(cudaSetDevice(device.index), "choosing the GPU");
        current = gpu;
    }
    return gpu;
}

cudaStream_t td_cuda_stream(const td_tensor *t)
{
    return td_cuda_of(t->storage->device)->stream;
}
