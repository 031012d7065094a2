/* make gpu-check: what the GPU and its libraries are. */
#include "tests/gpu/check.h"

#include "tensor/kernels/kernels.h"

#include <stdio.h>

#if TD_HAVE_CUDA && !TD_EMULATED

#include "tensor/cuda/cuda.h"
#include "tensor/cuda/cudnn_graph.h"
#include "tensor/cuda/library.h"

#include <cublasLt.h>

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

static bool show_library(const char *title, const char *file)
{
    void *library;
    if (td_cuda_library_open(title, file, &library) != TD_OK) {
        printf("%s: %s\n", title, td_last_error());
        return false;
    }
    printf("%s: %s\n", title, td_cuda_library_path(library));
    return true;
}

static bool save_description(const td_cudnn *lib, td_device device, const char *path)
{
    static char json[1 << 16];
    size_t bytes = td_cudnn_description(lib, device.index, json, sizeof json);
    FILE *file = bytes > 0 ? fopen(path, "wb") : NULL;
    bool good = file != NULL && fwrite(json, 1, bytes, file) == bytes;
    good = file != NULL && fclose(file) == 0 && good;
    printf("device description: %s\n", good ? path : td_last_error());
    return good;
}

bool check_info(td_device device, const char *description_path)
{
    const td_cuda *gpu = td_cuda_of(device);
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    printf("%s: %s, sm_%d, %d multiprocessors, %.1f GiB\n", td_device_name(device), gpu->name,
           gpu->sm, gpu->multiprocessors, (double)gpu->memory / 0x1p30);
    printf("driver: CUDA %d.%d; runtime: CUDA %d.%d\n", driver / 1000, driver / 10 % 100,
           runtime / 1000, runtime / 10 % 100);
    bool good = show_library("cuBLASLt", "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR));
    good = show_library("cuDNN", "libcudnn.so." TEXT(CUDNN_MAJOR)) && good;
    (void)show_library("NCCL", "libnccl.so.2");
    const td_cudnn *lib = td_cudnn_open();
    if (lib == NULL) {
        return false;
    }
    printf("cuDNN %zu, built for %d\n", lib->cudnnGetVersion(), CUDNN_VERSION);
    return save_description(lib, device, description_path) && good;
}

#else

bool check_info(td_device device, const char *description_path)
{
    printf("%s: %s: no vendor's library is asked for, %s is not written\n", td_device_name(device),
           td_kernels_of(device)->name, description_path);
    return true;
}

#endif
